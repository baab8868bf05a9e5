//! Errors of decoding.

use std::borrow::Cow;
use std::fmt;

/// An error of decoding a message, with its place and the bytes found there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}: {problem} (byte {at})", Path(path))]
pub struct DecodeError {
    /// Name of the message in the protocol.
    pub message: &'static str,
    /// The path from the message to the value, innermost step first.
    pub path: Vec<Step>,
    /// The problem of the value.
    pub problem: Problem,
    /// Offset in the frame, in bytes.
    pub at: usize,
}

/// One step from a value into a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A field of a positional array: its index and its name.
    Element(usize, &'static str),
    /// A field of a map.
    Key(Cow<'static, str>),
    /// An item of a list.
    Item(usize),
}

/// A problem of a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum Problem {
    #[error("expected {expected}, but the frame ends here")]
    Truncated { expected: &'static str },
    #[error("expected {expected}, got {found}")]
    Unexpected { expected: &'static str, found: &'static str },
    #[error("expected {expected}, got {found}")]
    OutOfRange {
        /// Range of the field.
        expected: &'static str,
        found: i128,
    },
    #[error("expected one of {expected}, got \"{found}\"")]
    UnknownText {
        /// The known texts.
        expected: &'static str,
        found: String,
    },
    #[error("{0}")]
    Invalid(String),
    #[error("this text is not UTF-8")]
    NotUtf8,
    #[error("it is missing")]
    Missing,
    #[error("values are nested too deeply")]
    TooDeep,
    #[error("{bytes} bytes follow the end of the message")]
    Trailing { bytes: usize },
    #[error("expected {expected}, got {found} frames")]
    Frames { expected: &'static str, found: usize },
    #[error("it refers to frame {index}, but {frames} frames follow the payload")]
    NoSuchFrame {
        /// Index of the frame in the message; the payload has index 0.
        index: u64,
        frames: usize,
    },
    #[error("{bytes} bytes do not fit a tensor of type {dtype} and this shape")]
    Shape {
        /// Data type of the tensor's numbers.
        dtype: String,
        bytes: usize,
    },
}

impl DecodeError {
    /// An error at offset `at`, without the name of the message and the path.
    pub(crate) fn new(problem: Problem, at: usize) -> Self {
        Self { message: "message", path: Vec::new(), problem, at }
    }

    /// Adds a step to the path: `step` leads from an outer value to the value with the error.
    pub(crate) fn within(mut self, step: Step) -> Self {
        self.path.push(step);
        self
    }

    /// Sets the name of the message.
    pub(crate) fn of(mut self, message: &'static str) -> Self {
        self.message = message;
        self
    }
}

struct Path<'a>(&'a [Step]);

impl fmt::Display for Path<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in self.0.iter().rev() {
            match step {
                Step::Element(index, name) => write!(out, ", element {index} `{name}`")?,
                Step::Key(key) => write!(out, ", key `{key}`")?,
                Step::Item(index) => write!(out, ", item {index}")?,
            }
        }
        Ok(())
    }
}
