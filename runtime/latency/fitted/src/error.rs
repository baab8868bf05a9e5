//! Errors of models.

use alloc::string::String;
use core::fmt;

/// The model file has a value that cannot price steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidModel {
    /// Key of the value in the file.
    pub key: String,
    /// The reason why the value is invalid.
    pub reason: String,
}

impl InvalidModel {
    pub(crate) fn new(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { key: key.into(), reason: reason.into() }
    }
}

impl fmt::Display for InvalidModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid `{}`: {}", self.key, self.reason)
    }
}

impl core::error::Error for InvalidModel {}
