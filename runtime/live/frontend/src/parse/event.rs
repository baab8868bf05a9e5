//! Events of tool-call parsers, and the search for delimiters.

/// An event in an answer.
pub(super) enum CallEvent<'a> {
    /// Text that is not part of a call.
    Text(&'a str),
    /// A call of the tool with this name.
    Call(String),
    /// More arguments of the last call.
    Arguments(&'a str),
}

/// The length of the longest suffix of `text` that is a prefix of `mark`.
pub(super) fn beginning(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    let lengths = (1..=longest).rev().filter(|length| mark.is_char_boundary(*length));
    lengths.into_iter().find(|length| text.ends_with(&mark[..*length])).unwrap_or(0)
}

/// The result of comparing the start of a text with a mark.
pub(super) enum Begins<'a> {
    /// The text starts with the whole mark. The rest of the text follows.
    Whole(&'a str),
    /// The text is a part of the mark. More text is needed.
    Partial,
    /// The text starts with something else.
    Not,
}

/// Compares the start of a text with `mark`, after white space.
pub(super) fn begins<'a>(text: &'a str, mark: &str) -> Begins<'a> {
    let text = text.trim_ascii_start();
    match text.strip_prefix(mark) {
        Some(behind) => Begins::Whole(behind),
        None if mark.starts_with(text) => Begins::Partial,
        None => Begins::Not,
    }
}

/// Passes the text before `mark` to `out`, or all text that cannot be a part of the mark. Returns whether the mark
/// was found. If so, it is removed from the buffer.
pub(super) fn text_before(buffer: &mut String, mark: &str, out: &mut impl FnMut(CallEvent<'_>)) -> bool {
    let found = buffer.find(mark);
    let free = found.unwrap_or_else(|| buffer.len() - beginning(buffer, mark));
    if free > 0 {
        out(CallEvent::Text(&buffer[..free]));
    }
    buffer.drain(..free + found.map_or(0, |_| mark.len()));
    found.is_some()
}
