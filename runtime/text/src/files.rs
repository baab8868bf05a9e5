//! Files that may be missing.

use std::path::Path;

use serde_json::Value as Json;

use crate::TextError;

/// A JSON file, if there is one.
pub(crate) fn read_json(path: &Path) -> Result<Option<Json>, TextError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let invalid = |error: serde_json::Error| TextError::Invalid { path: path.to_owned(), reason: error.to_string() };
    serde_json::from_str(&text).map(Some).map_err(invalid)
}

/// A text file, if there is one.
pub(crate) fn read_text(path: &Path) -> Result<Option<String>, TextError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Unreadable { path: path.to_owned(), source }),
    }
}
