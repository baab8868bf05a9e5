//! Errors of inputs: always the file, and the place and the field where there is one.

use std::fmt;
use std::io;

use vcr_import::ImportError;
use vcr_input::LineError;

/// An input that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// A file cannot be read.
    #[error("cannot read `{name}`: {source}")]
    Read {
        /// The file, as the caller named it.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// Something in a file cannot be used.
    #[error("`{name}`{}{}: {problem}", at(.place), in_field(.field))]
    Item {
        /// The file, as the caller named it.
        name: String,
        /// The place in it.
        place: Place,
        /// The field; empty if it is none.
        field: String,
        /// The problem, and the next step.
        problem: String,
    },
    /// An input of another tool cannot be read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A file holds no observation.
    #[error("`{name}` holds no observation")]
    Empty {
        /// The file, as the caller named it.
        name: String,
    },
    /// Requests cannot be joined.
    #[error("{0}")]
    Join(String),
    /// A receiver of observations cannot take more.
    #[error("cannot write: {0}")]
    Write(io::Error),
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere in particular.
    File,
    /// A line, from 1.
    Line(u64),
    /// A row of a table, from 1, without its header.
    Row(u64),
    /// A request, from 1.
    Request(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("the file"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Row(row) => write!(f, "row {row}"),
            Self::Request(request) => write!(f, "request {request}"),
        }
    }
}

/// A problem of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) field: String,
    pub(crate) text: String,
}

impl Problem {
    pub(crate) fn new(field: &str, text: impl Into<String>) -> Self {
        Self { field: field.to_owned(), text: text.into() }
    }

    pub(crate) fn at(self, name: &str, place: Place) -> GateError {
        GateError::Item { name: name.to_owned(), place, field: self.field, problem: self.text }
    }
}

/// A line that cannot be read.
pub(crate) fn of_line(name: &str, error: LineError) -> GateError {
    match error {
        LineError::Io(source) => GateError::Read { name: name.to_owned(), source },
        LineError::TooLong { line } => Problem::new("", error.to_string()).at(name, Place::Line(line)),
    }
}

fn at(place: &Place) -> String {
    match place {
        Place::File => String::new(),
        place => format!(", {place}"),
    }
}

fn in_field(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!(", field `{field}`") }
}
