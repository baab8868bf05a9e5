//! JSON as Python writes it: with `NaN` and `Infinity`, which JSON does not have.

use std::io::{self, BufRead, Read};

/// Larger documents are not results of a benchmark.
const MAX_BYTES: u64 = 2 << 30;

/// All of a stream, for a parser that needs it at once.
///
/// # Errors
/// Those of the stream, and when it is too long.
pub(crate) fn read(reader: impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("the document is longer than {MAX_BYTES} bytes; split it")));
    }
    Ok(without_nan(bytes))
}

/// The same document with `null` for numbers that are none.
#[must_use]
pub fn without_nan(bytes: Vec<u8>) -> Vec<u8> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    if !WORDS[1..].iter().any(|word| bytes.windows(word.len()).any(|window| window == *word)) {
        return bytes;
    }
    let mut clean = Vec::with_capacity(bytes.len());
    let (mut rest, mut in_text) = (&bytes[..], false);
    while let Some((byte, after)) = rest.split_first() {
        let word = WORDS.into_iter().find(|word| !in_text && rest.starts_with(word));
        if let Some(word) = word {
            clean.extend_from_slice(b"null");
            rest = &rest[word.len()..];
            continue;
        }
        clean.push(*byte);
        rest = after;
        match byte {
            b'"' => in_text = !in_text,
            b'\\' if in_text => {
                clean.extend(rest.first());
                rest = rest.get(1..).unwrap_or_default();
            }
            _ => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_texts_become_null() {
        let text = br#"{"NaN \" Infinity": [NaN, -Infinity, Infinity, -1], "a": "\\", "b": NaN}"#;
        let clean = String::from_utf8(without_nan(text.to_vec())).expect("text");
        assert_eq!(clean, r#"{"NaN \" Infinity": [null, null, null, -1], "a": "\\", "b": null}"#);
        assert_eq!(without_nan(b"{}".to_vec()), b"{}");
        assert_eq!(without_nan(b"\"NaN\\".to_vec()), b"\"NaN\\");
    }
}
