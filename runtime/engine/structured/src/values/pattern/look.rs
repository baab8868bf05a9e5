//! Look-around, which is taken out of patterns before they are read. A look-ahead at the start is checked later, all
//! other look-around is not.

use alloc::string::String;
use alloc::vec::Vec;

/// A pattern without look-around.
pub(super) struct Split {
    pub(super) rest: String,
    /// What is looked at from the start, and whether it must not be there.
    pub(super) at_start: Vec<(String, bool)>,
    /// Whether there is more look-around.
    pub(super) is_partial: bool,
    /// Whether it has parts that only other programs know.
    pub(super) is_foreign: bool,
}

pub(super) fn split(pattern: &str) -> Split {
    let mut split =
        Split { rest: String::new(), at_start: Vec::new(), is_partial: false, is_foreign: is_foreign(pattern) };
    let mut rest = pattern;
    let mut is_in_class = false;
    while let Some(first) = rest.chars().next() {
        let look = ["(?=", "(?!", "(?<=", "(?<!"].into_iter().find(|look| !is_in_class && rest.starts_with(look));
        if let Some((look, end)) = look.and_then(|look| Some((look, group_end(rest)?))) {
            let inner = &rest[look.len()..end - 1];
            if look.len() == 3 && ["", "^"].contains(&split.rest.as_str()) {
                split.at_start.push((inner.into(), look == "(?!"));
            } else {
                split.is_partial = true;
            }
            rest = &rest[end..];
            continue;
        }
        is_in_class = match first {
            '[' => true,
            ']' => false,
            _ => is_in_class,
        };
        // An escape stays with what is escaped.
        let length = match first {
            '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            first => first.len_utf8(),
        };
        split.rest += &rest[..length];
        rest = &rest[length..];
    }
    split
}

/// Where the group ends that a text begins with: behind its `)`.
fn group_end(text: &str) -> Option<usize> {
    let (mut depth, mut is_in_class, mut is_escaped) = (0, false, false);
    for (at, char) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
            continue;
        }
        match char {
            '\\' => is_escaped = true,
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            '(' if !is_in_class => depth += 1,
            ')' if !is_in_class => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether a pattern has back-references or classes of Unicode, which are not known here.
fn is_foreign(pattern: &str) -> bool {
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        if char == '\\' && matches!(chars.next(), Some('1'..='9' | 'k' | 'p' | 'P' | 'c')) {
            return true;
        }
    }
    false
}
