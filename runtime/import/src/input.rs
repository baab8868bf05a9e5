//! Opening files, packed or not, and going through their rows.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use serde::de::DeserializeOwned;

use crate::ImportError;
use crate::error::{Place, Problem, decode};
use crate::output::Tally;

const BUFFER_BYTES: usize = 128 << 10;

/// A row of a million tokens is less than 16 MiB; what exceeds this is no row,
/// and must not exhaust the memory.
const MAX_ROW_BYTES: u64 = 256 << 20;

/// Opens a file for reading; what its suffix says is packed is unpacked.
///
/// # Errors
/// Those of the file.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead>, ImportError> {
    let fail = |source| ImportError::Read { name: path.display().to_string(), source };
    let file = BufReader::with_capacity(BUFFER_BYTES, File::open(path).map_err(fail)?);
    Ok(match path.extension().and_then(|suffix| suffix.to_str()) {
        Some("gz") => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(file))),
        Some("zst") => {
            let unpacked = zstd::Decoder::with_buffer(file).map_err(fail)?;
            Box::new(BufReader::with_capacity(BUFFER_BYTES, unpacked))
        }
        _ => Box::new(file),
    })
}

/// Lines of a stream that are not blank.
pub(crate) struct Rows<'a, R> {
    reader: R,
    pub(crate) name: &'a str,
    buffer: Vec<u8>,
    line: u64,
}

impl<'a, R: BufRead> Rows<'a, R> {
    pub(crate) fn new(reader: R, name: &'a str) -> Self {
        Self { reader, name, buffer: Vec::new(), line: 0 }
    }

    /// The next line with its number, from 1.
    pub(crate) fn next_row(&mut self) -> Result<Option<(u64, &[u8])>, ImportError> {
        loop {
            self.buffer.clear();
            let mut limited = self.reader.by_ref().take(MAX_ROW_BYTES + 1);
            let fail = |source| ImportError::Read { name: self.name.to_owned(), source };
            let bytes = limited.read_until(b'\n', &mut self.buffer).map_err(fail)?;
            if bytes == 0 {
                return Ok(None);
            }
            self.line += 1;
            if bytes as u64 > MAX_ROW_BYTES {
                let text =
                    format!("the line is longer than {MAX_ROW_BYTES} bytes; is this a file with one row a line?");
                return Err(Problem::new("", text).at(self.name, Place::Line(self.line)));
            }
            let has_mark = self.line == 1 && self.buffer.starts_with(b"\xef\xbb\xbf");
            let from = if has_mark { 3 } else { 0 };
            if !self.buffer[from..].trim_ascii().is_empty() {
                return Ok(Some((self.line, &self.buffer[from..])));
            }
        }
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
pub(crate) fn of_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = decode(&mut deserializer)?;
    deserializer.end().map_err(|error| Problem::new("", error.to_string()))?;
    Ok(value)
}

/// The beginning of a file and a reader of all of it.
pub(crate) fn peek<R: BufRead>(mut reader: R, name: &str) -> Result<(Vec<u8>, impl BufRead + use<R>), ImportError> {
    let mut start = Vec::new();
    let fail = |source: io::Error| ImportError::Read { name: name.to_owned(), source };
    reader.by_ref().take(BUFFER_BYTES as u64).read_to_end(&mut start).map_err(fail)?;
    let again = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(start.clone()).chain(reader));
    Ok((start, again))
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
        /// Where an error goes that the error of the deserializer cannot carry.
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
