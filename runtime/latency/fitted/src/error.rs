//! Errors of models.

use alloc::string::String;
use core::fmt;

/// A model that cannot price steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidModel {
    /// The key in the file.
    pub key: String,
    /// The problem of its value.
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
