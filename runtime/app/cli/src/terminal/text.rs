//! Makes text from outside safe for a terminal, and parser messages readable without Rust.

use std::borrow::Cow;
use std::fmt::{Display, Write};

/// Rust number types in parser messages, and their meaning.
const TYPES: &[(&str, &str)] = &[
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number of at least 0"),
    ("usize", "a whole number of at least 0"),
    ("i8", "a whole number from -128 to 127"),
    ("i16", "a whole number from -32768 to 32767"),
    ("i32", "a whole number from -2147483648 to 2147483647"),
    ("i64", "a whole number"),
    ("isize", "a whole number"),
    ("f32", "a number"),
    ("f64", "a number"),
];

/// Messages of Rust's number parsers, and their replacements.
const PARSE_MESSAGES: &[(&str, &str)] = &[
    ("invalid digit found in string", "expected a whole number of at least 0"),
    ("cannot parse integer from empty string", "expected a whole number"),
    ("number would be zero for non-zero type", "expected a whole number of at least 1"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid float literal", "expected a number"),
    ("cannot parse float from empty string", "expected a number"),
];

/// Replaces messages of Rust's number parsers.
pub(crate) fn without_parse_messages(text: String) -> String {
    PARSE_MESSAGES.iter().fold(text, |text, (message, plain)| text.replace(message, plain))
}

/// Escapes control characters except line breaks and tabs, so that a name in a file cannot control the terminal.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let hides = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(hides) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if hides(c) {
            let _ = write!(shown, "{}", c.escape_default());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Replaces the names of Rust types, such as `u32` in "expected u32".
pub(crate) fn without_rust_types(text: &str) -> Cow<'_, str> {
    const EXPECTED: &str = "expected ";
    let mut parts = text.split(EXPECTED);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    let mut is_changed = false;
    for part in parts {
        plain.push_str(EXPECTED);
        let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len());
        match TYPES.iter().find(|(name, _)| *name == &part[..end]) {
            Some((_, meaning)) => {
                is_changed = true;
                plain.push_str(meaning);
                plain.push_str(&part[end..]);
            }
            None => plain.push_str(part),
        }
    }
    if is_changed { Cow::Owned(plain) } else { Cow::Borrowed(text) }
}

/// A count such as `1 run` or `2 runs`. `thing` is singular; its plural must end in `s`.
pub(crate) fn counted<N: Display + PartialEq + From<u8>>(number: N, thing: &str) -> String {
    let plural = if number == N::from(1) { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Quotes a word for a POSIX shell.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(printable("a\u{1b}[31mb\tc\nd"), "a\\u{1b}[31mb\tc\nd");
        assert!(matches!(printable("µs ✓"), Cow::Borrowed(_)));
    }

    #[test]
    fn number_types_become_words() {
        let text = "invalid value: integer `-5`, expected u32 (column 32)";
        let plain = "invalid value: integer `-5`, expected a whole number from 0 to 4294967295 (column 32)";
        assert_eq!(without_rust_types(text), plain);
        assert_eq!(without_rust_types("expected f64"), "expected a number");
        assert!(matches!(without_rust_types("expected u32s, expected a map"), Cow::Borrowed(_)));
    }

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!([0_u64, 1, 2].map(|number| counted(number, "run")), ["0 runs", "1 run", "2 runs"]);
        assert_eq!(counted(1_usize, "value"), "1 value");
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("scenarios/pd_burst.rhai"), "scenarios/pd_burst.rhai");
        assert_eq!(quoted("name=two words"), "'name=two words'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
