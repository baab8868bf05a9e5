//! Errors while importing. Each names the file, and the place and the field if known.

use std::fmt;
use std::io;

use crate::capture::CaptureError;
use crate::{Format, FormatError, TraceError, VcrOutput};

/// An error while importing or writing a file.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file could not be opened or read.
    #[error("cannot read `{name}`: {source}")]
    Read {
        /// The file, as the caller named it.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// An archive is cut off so early that nothing can be unpacked from it.
    #[error("the archive `{name}` breaks off before its first block ends, so nothing in it can be read")]
    CutAtStart {
        /// The file, as the caller named it.
        name: String,
    },
    /// The format is unclear, or the file has no requests.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The file contains only answers.
    #[error(
        "`{name}` has the format {format}: answers without the lengths of their prompts, which only `vcr gate` and \
         `vcr mirror` read"
    )]
    OnlyAnswers {
        /// The file, as the caller named it.
        name: String,
        /// Format of the file.
        format: Format,
    },
    /// The file has another format than the caller stated.
    #[error("`{name}` is {output}, not of the format {asked}; leave --from out, or pass --from requests")]
    OtherFormat {
        /// The file, as the caller named it.
        name: String,
        /// The stated format.
        asked: Format,
        /// Kind of the output that the file is.
        output: VcrOutput,
    },
    /// An item of the file is invalid.
    #[error("`{name}`{}{}: {problem}", at(.place), in_field(.field))]
    Item {
        /// The file, as the caller named it.
        name: String,
        /// The place in the file.
        place: Place,
        /// The field with the problem; empty if the problem concerns no field.
        field: String,
        /// The problem and the next step.
        problem: String,
    },
    /// A workload trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A capture could not be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A data set contains text, which only a tokenizer can convert to tokens.
    #[error(
        "`{name}` is a data set of prompts and responses, which needs the tokenizer of the model they are for: name \
         its tokenizer.json with `vcr inspect convert --tokenizer`"
    )]
    NoTokenizer {
        /// The file, as the caller named it.
        name: String,
    },
    /// The tokenizer is invalid.
    #[error("cannot use the tokenizer `{name}`: {problem}; give the tokenizer.json of a model")]
    Tokenizer {
        /// File of the tokenizer.
        name: String,
        /// The library's message.
        problem: String,
    },
    /// This build lacks a library.
    #[error("this build of vcr lacks the feature `formats`, which {needed_by} needs; build it with --features full")]
    NotBuilt {
        /// The option or format that needs the library.
        needed_by: &'static str,
    },
    /// The file contains no request.
    #[error("`{name}` holds no request that can be imported{}", and_skipped(*.skipped))]
    Empty {
        /// The file, as the caller named it.
        name: String,
        /// Number of skipped items.
        skipped: u64,
    },
    /// The output could not be written.
    #[error("cannot write: {source}")]
    Write {
        /// The cause.
        source: io::Error,
    },
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole.
    File,
    /// A line, from 1.
    Line(u64),
    /// A row of a table, from 1, without its header.
    Row(u64),
    /// A request by its number, from 1.
    Request(u64),
    /// A path through a document, such as `benchmarks[0].requests`.
    Path(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("the file"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Row(row) => write!(f, "row {row}"),
            Self::Request(request) => write!(f, "request {request}"),
            Self::Path(path) => f.write_str(path),
        }
    }
}

/// A problem of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field with the problem; empty if the problem concerns no field.
    pub field: String,
    /// The problem and the next step.
    pub text: String,
}

impl Problem {
    /// A problem of a field.
    #[must_use]
    pub fn new(field: &str, text: impl Into<String>) -> Self {
        Self { field: field.to_owned(), text: text.into() }
    }

    /// Converts the problem to an error at a place in a file.
    #[must_use]
    pub fn at(self, name: &str, place: impl Into<Place>) -> ImportError {
        ImportError::Item { name: name.to_owned(), place: place.into(), field: self.field, problem: self.text }
    }
}

/// Reads a JSON value. Errors name the field.
pub(crate) fn decode<'de, T, D>(deserializer: D) -> Result<T, Problem>
where
    T: serde::Deserialize<'de>,
    D: serde::Deserializer<'de>,
    D::Error: fmt::Display,
{
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { String::new() } else { path };
        Problem { field, text: error.inner().to_string() }
    })
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

fn and_skipped(skipped: u64) -> String {
    if skipped == 0 { String::new() } else { format!("; {skipped} items were skipped") }
}
