//! Errors of decoding.

use std::borrow::Cow;
use std::fmt;

/// An error of decoding a message, with its place and the bytes found there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}: {problem} (byte {at})", Path(path))]
pub struct DecodeError {
    /// The message, as the protocol calls it.
    pub message: &'static str,
    /// The way from the message to the value, outermost step last.
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
pub enum Problem {
    /// The frame ends within the value.
    #[error("expected {expected}, but the frame ends here")]
    Truncated {
        /// The expected value.
        expected: &'static str,
    },
    /// A value of another type.
    #[error("expected {expected}, got {found}")]
    Unexpected {
        /// The expected value.
        expected: &'static str,
        /// The actual value.
        found: &'static str,
    },
    /// A number that the field cannot hold.
    #[error("expected {expected}, got {found}")]
    OutOfRange {
        /// The range of the field.
        expected: &'static str,
        /// The number.
        found: i128,
    },
    /// A text that the field does not know.
    #[error("expected one of {expected}, got \"{found}\"")]
    UnknownText {
        /// The texts that it knows.
        expected: &'static str,
        /// The text, shortened.
        found: String,
    },
    /// A value that its type refuses, in the words of serde.
    #[error("{0}")]
    Invalid(String),
    /// A text that is not UTF-8.
    #[error("this text is not UTF-8")]
    NotUtf8,
    /// A field that must be there is not.
    #[error("it is missing")]
    Missing,
    /// Values within values beyond [`crate::Value::MAX_DEPTH`].
    #[error("values are nested too deeply")]
    TooDeep,
    /// Bytes after the end of the message.
    #[error("{bytes} bytes follow the end of the message")]
    Trailing {
        /// Their number.
        bytes: usize,
    },
    /// A message of the wrong number of frames.
    #[error("expected {expected}, got {found} frames")]
    Frames {
        /// The expected frames.
        expected: &'static str,
        /// Its number of frames.
        found: usize,
    },
    /// A tensor that points to a frame that the message does not have.
    #[error("it refers to frame {index}, but {frames} frames follow the payload")]
    NoSuchFrame {
        /// Index in the message, the payload being 0.
        index: u64,
        /// Frames after the payload.
        frames: usize,
    },
    /// A tensor whose bytes do not fit its shape.
    #[error("{bytes} bytes do not fit a tensor of type {dtype} and this shape")]
    Shape {
        /// The type of one number.
        dtype: String,
        /// The number of bytes.
        bytes: usize,
    },
}

impl DecodeError {
    /// An error at offset `at`, not yet placed in a message.
    pub(crate) fn new(problem: Problem, at: usize) -> Self {
        Self { message: "message", path: Vec::new(), problem, at }
    }

    /// The same error, seen from the value that holds the faulty one.
    pub(crate) fn within(mut self, step: Step) -> Self {
        self.path.push(step);
        self
    }

    /// The same error, in `message`.
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
