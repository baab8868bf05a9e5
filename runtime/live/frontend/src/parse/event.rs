//! Events of parsers of calls, and the search for marks.

/// A part of an answer.
pub(super) enum CallEvent<'a> {
    /// Text that is not part of a call.
    Text(&'a str),
    /// A call of the tool with this name.
    Call(String),
    /// More of its arguments.
    Arguments(&'a str),
}

/// The length of the longest end of `text` that `mark` begins with.
pub(super) fn beginning(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    let lengths = (1..=longest).rev().filter(|length| mark.is_char_boundary(*length));
    lengths.into_iter().find(|length| text.ends_with(&mark[..*length])).unwrap_or(0)
}

/// Beginning of a text.
pub(super) enum Begins<'a> {
    /// The mark, and this behind it.
    Whole(&'a str),
    /// A part of it: more text must come.
    Partial,
    /// Something else.
    Not,
}

/// Whether a text begins with `mark`, after white space.
pub(super) fn begins<'a>(text: &'a str, mark: &str) -> Begins<'a> {
    let text = text.trim_ascii_start();
    match text.strip_prefix(mark) {
        Some(behind) => Begins::Whole(behind),
        None if mark.starts_with(text) => Begins::Partial,
        None => Begins::Not,
    }
}

/// Passes on the text before `mark`, or the text that cannot be a part of it. Returns whether the
/// mark was found; it is then removed from the buffer.
pub(super) fn text_before(buffer: &mut String, mark: &str, out: &mut impl FnMut(CallEvent<'_>)) -> bool {
    let found = buffer.find(mark);
    let free = found.unwrap_or_else(|| buffer.len() - beginning(buffer, mark));
    if free > 0 {
        out(CallEvent::Text(&buffer[..free]));
    }
    buffer.drain(..free + found.map_or(0, |_| mark.len()));
    found.is_some()
}
