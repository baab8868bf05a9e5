//! Opens files, packed or plain, and reads their rows.

use std::io::{self, BufRead, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use vcr_base::input::{LineError, Lines, Unpacked};

use crate::import::ImportError;
use crate::import::error::{Place, Problem, decode};
use crate::import::output::Tally;

const PEEKED_BYTES: usize = 128 << 10;

/// Opens a file, and unpacks it if necessary.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn open(path: &Path) -> Result<Unpacked<'static>, ImportError> {
    Unpacked::open(path).map_err(|source| ImportError::Read { name: path.display().to_string(), source })
}

pub(crate) struct Rows<'a, R> {
    lines: Lines<R>,
    pub(crate) name: &'a str,
}

impl<'a, R: BufRead> Rows<'a, R> {
    pub(crate) fn new(reader: R, name: &'a str) -> Self {
        Self { lines: Lines::new(reader), name }
    }

    pub(crate) fn next_row(&mut self) -> Result<Option<(u64, &[u8])>, ImportError> {
        self.lines.next_row().map_err(|error| match error {
            LineError::Io(source) => ImportError::Read { name: self.name.to_owned(), source },
            LineError::TooLong { line } => Problem::new("", error.to_string()).at(self.name, Place::Line(line)),
        })
    }

    /// Returns the next line that is a `T`. Other lines are skipped if `tally` is lenient.
    pub(crate) fn next_as<T: DeserializeOwned>(&mut self, tally: &mut Tally) -> Result<Option<(u64, T)>, ImportError> {
        let name = self.name;
        while let Some((line, bytes)) = self.next_row()? {
            match of_bytes(bytes) {
                Ok(row) => return Ok(Some((line, row))),
                Err(problem) => tally.refuse(problem.at(name, Place::Line(line)))?,
            }
        }
        Ok(None)
    }
}

/// Parses JSON that contains only a `T`.
pub(crate) fn of_bytes<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = decode(&mut deserializer)?;
    deserializer.end().map_err(|error| Problem::new("", error.to_string()))?;
    Ok(value)
}

/// Returns the start of a file and a reader of the whole file. If a packed file is cut off, its readable part is
/// returned.
pub(crate) fn peek<'a>(mut reader: Unpacked<'a>, name: &str) -> Result<(Vec<u8>, Unpacked<'a>), ImportError> {
    let start = reader.peek(PEEKED_BYTES);
    let start = start.map_err(|source| ImportError::Read { name: name.to_owned(), source })?.to_vec();
    if start.is_empty() && reader.is_cut() {
        return Err(ImportError::CutAtStart { name: name.to_owned() });
    }
    Ok((start, reader))
}

/// Reads the elements of arrays in a JSON document, one at a time.
pub(crate) mod elements {
    use std::fmt;

    use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
    use serde_json::Value;

    use crate::import::ImportError;

    /// Passes each element of an array to a function. An error of the function ends reading.
    pub(crate) struct Each<'a> {
        pub(crate) of: &'a mut dyn FnMut(usize, Value) -> Result<(), ImportError>,
        /// Receives an error that the deserializer's error type cannot contain.
        pub(crate) failed: &'a mut Option<ImportError>,
    }

    impl<'de> DeserializeSeed<'de> for Each<'_> {
        type Value = usize;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
            deserializer.deserialize_seq(self)
        }
    }

    impl<'de> Visitor<'de> for Each<'_> {
        type Value = usize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_unit<E>(self) -> Result<usize, E> {
            Ok(0)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<usize, A::Error> {
            let mut index = 0;
            while let Some(value) = array.next_element()? {
                if let Err(error) = (self.of)(index, value) {
                    *self.failed = Some(error);
                    return Err(A::Error::custom("stopped"));
                }
                index += 1;
            }
            Ok(index)
        }
    }
}

/// A result of a benchmark is never larger.
const MAX_BYTES: u64 = 2 << 30;

/// Reads a whole stream, for a parser that needs the whole document.
///
/// # Errors
/// If the stream fails or is too long.
pub(crate) fn read_python_json(reader: impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("the document is longer than {MAX_BYTES} bytes; split it")));
    }
    Ok(without_nan(bytes))
}

/// Replaces NaN and infinities in a document with `null`.
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
