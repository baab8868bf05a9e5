//! Opening files, packed or not, and going through their rows.

use std::io::BufRead;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use vcr_input::{LineError, Lines, Unpacked};

use crate::ImportError;
use crate::error::{Place, Problem, decode};
use crate::output::Tally;

/// Bytes read to detect the format.
const PEEKED_BYTES: usize = 128 << 10;

/// Opens a file for reading; one that is packed is unpacked.
///
/// # Errors
/// Those of the file.
pub(crate) fn open(path: &Path) -> Result<Unpacked<'static>, ImportError> {
    Unpacked::open(path).map_err(|source| ImportError::Read { name: path.display().to_string(), source })
}

/// Lines of a stream that are not blank.
pub(crate) struct Rows<'a, R> {
    lines: Lines<R>,
    pub(crate) name: &'a str,
}

impl<'a, R: BufRead> Rows<'a, R> {
    pub(crate) fn new(reader: R, name: &'a str) -> Self {
        Self { lines: Lines::new(reader), name }
    }

    /// The next line with its number, from 1.
    pub(crate) fn next_row(&mut self) -> Result<Option<(u64, &[u8])>, ImportError> {
        self.lines.next_row().map_err(|error| match error {
            LineError::Io(source) => ImportError::Read { name: self.name.to_owned(), source },
            LineError::TooLong { line } => Problem::new("", error.to_string()).at(self.name, Place::Line(line)),
        })
    }

    /// The next line that is a `T`. One that is none is skipped if `tally` is
    /// lenient.
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

/// A value of JSON that is nothing but a `T`.
pub(crate) fn of_bytes<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = decode(&mut deserializer)?;
    deserializer.end().map_err(|error| Problem::new("", error.to_string()))?;
    Ok(value)
}

/// The beginning of a file and a reader of all of it. A packed file that is cut
/// off begins with what of it can be read.
pub(crate) fn peek<'a>(mut reader: Unpacked<'a>, name: &str) -> Result<(Vec<u8>, Unpacked<'a>), ImportError> {
    let start = reader.peek(PEEKED_BYTES);
    let start = start.map_err(|source| ImportError::Read { name: name.to_owned(), source })?.to_vec();
    if start.is_empty() && reader.is_cut() {
        return Err(ImportError::CutAtStart { name: name.to_owned() });
    }
    Ok((start, reader))
}

/// Elements of arrays in a JSON document, one at a time.
pub(crate) mod elements {
    use std::fmt;

    use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
    use serde_json::Value;

    use crate::ImportError;

    /// Gives every element of an array to a function, whose error ends reading.
    pub(crate) struct Each<'a> {
        pub(crate) of: &'a mut dyn FnMut(usize, Value) -> Result<(), ImportError>,
        /// The place of an error that the error of the deserializer cannot carry.
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
