//! Errors of inputs. Each names the file, and the place and the field if they are known.

use std::fmt;
use std::io;

use vcr_base::input::LineError;
use vcr_trace::import::ImportError;
pub(crate) use vcr_trace::import::Problem;

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
    /// The content of a file cannot be used, or a file of another tool cannot be read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A file contains no observation.
    #[error("`{name}` holds no observation")]
    Empty {
        /// The file, as the caller named it.
        name: String,
    },
    /// Requests cannot be matched by the chosen key.
    #[error("{0}")]
    Join(String),
    /// The policy divides the requests into too many segments.
    #[error(
        "invalid segments: expected at most {most}, got {count} by {by}; name fewer labels in `by` of `[segments]`"
    )]
    Segments {
        /// Number of segments.
        count: usize,
        /// Maximum number of segments.
        most: usize,
        /// The labels that define the segments.
        by: String,
    },
    /// The receiver of the observations cannot take more.
    #[error("cannot write: {0}")]
    Write(io::Error),
}

/// A place in a file; small, because every observation keeps one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole.
    File,
    /// A line, from 1.
    Line(u64),
    /// A row of a table, from 1, without its header.
    Row(u64),
    /// A request by its number, from 1.
    Request(u64),
}

impl From<Place> for vcr_trace::import::Place {
    fn from(place: Place) -> Self {
        match place {
            Place::File => Self::File,
            Place::Line(line) => Self::Line(line),
            Place::Row(row) => Self::Row(row),
            Place::Request(request) => Self::Request(request),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        vcr_trace::import::Place::from(*self).fmt(f)
    }
}

pub(crate) fn of_line(name: &str, error: LineError) -> GateError {
    match error {
        LineError::Io(source) => GateError::Read { name: name.to_owned(), source },
        LineError::TooLong { line } => Problem::new("", error.to_string()).at(name, Place::Line(line)).into(),
    }
}
