//! The lines of a trace, with the line numbers for errors.

use std::io::{self, BufRead};

use vcr_base::input::MAX_LINE_BYTES;

use crate::{RowProblem, TraceError};

pub(crate) struct Lines<R>(vcr_base::input::Lines<R>);

pub(crate) enum LineError {
    Io(io::Error),
    TooLong { line: u32 },
    TooMany { line: u32 },
}

impl LineError {
    pub(crate) fn of(self, name: &str) -> TraceError {
        let (line, problem) = match self {
            LineError::Io(source) => {
                return TraceError::Io { name: name.to_owned(), source };
            }
            LineError::TooLong { line } => {
                let limit_bytes = MAX_LINE_BYTES;
                (line, RowProblem::RowTooLong { limit_bytes })
            }
            LineError::TooMany { line } => (line, RowProblem::TooMany { what: "lines" }),
        };
        TraceError::Row { name: name.to_owned(), line, field: None, problem }
    }
}

impl From<vcr_base::input::LineError> for LineError {
    fn from(error: vcr_base::input::LineError) -> Self {
        match error {
            vcr_base::input::LineError::Io(error) => Self::Io(error),
            vcr_base::input::LineError::TooLong { line } => {
                Self::TooLong { line: u32::try_from(line).unwrap_or(u32::MAX) }
            }
        }
    }
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self(vcr_base::input::Lines::new(reader))
    }

    /// Returns the next line that is not blank, with its number from 1; `None` at the end. A byte-order mark before
    /// the first line is dropped.
    pub(crate) fn next_row(&mut self) -> Result<Option<(u32, &[u8])>, LineError> {
        match self.0.next_row()? {
            None => Ok(None),
            Some((line, row)) => match u32::try_from(line) {
                Ok(line) => Ok(Some((line, row))),
                Err(_) => Err(LineError::TooMany { line: u32::MAX }),
            },
        }
    }

    pub(crate) fn row(&self) -> &[u8] {
        self.0.row()
    }

    pub(crate) fn line(&self) -> u32 {
        u32::try_from(self.0.line()).unwrap_or(u32::MAX)
    }

    pub(crate) fn row_offset_bytes(&self) -> u64 {
        self.0.row_offset_bytes()
    }

    pub(crate) fn reader(&self) -> &R {
        self.0.reader()
    }
}

/// The decoder's message about a row. It has no line number, because a row is one line.
pub(crate) fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let cause = text.split(" at line ").next().unwrap_or(&text);
    format!("{cause} (column {})", error.column())
}
