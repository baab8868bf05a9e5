//! Errors of assertions.

use std::fmt;

use crate::script::error::Thrown;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Malformed {
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), hint: None }
    }
}

impl From<Malformed> for Thrown {
    fn from(malformed: Malformed) -> Self {
        Self { hint: malformed.hint, ..Self::input(malformed.message) }
    }
}
