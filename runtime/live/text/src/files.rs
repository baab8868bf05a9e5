//! Reads files of a model; a file may be missing.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use serde_json::Value as Json;

use crate::TextError;

/// Reads a JSON file, if it exists.
pub(crate) fn read_json(path: &Path) -> Result<Option<Json>, TextError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let invalid = |error: serde_json::Error| TextError::Invalid { path: path.to_owned(), reason: error.to_string() };
    serde_json::from_str(&text).map(Some).map_err(invalid)
}

/// Reads a text file, if it exists.
pub(crate) fn read_text(path: &Path) -> Result<Option<String>, TextError> {
    let unreadable = |source| TextError::Unreadable { path: path.to_owned(), source };
    match read_bytes(path) {
        Ok(bytes) => {
            let text = String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error));
            text.map(Some).map_err(unreadable)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(unreadable(source)),
    }
}

/// Larger files are refused. Files of tokenizers have up to 40 MB.
const BYTES_MAX: u64 = 512 << 20;

pub(crate) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        let problem = format!("expected a file of at most {} MiB", BYTES_MAX >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}
