//! Lines of a file, one at a time, in one reused buffer.

use crate::{RowProblem, TraceError};
use std::io::{self, BufRead, Read};

/// The longest row that is buffered: a prompt of a million blocks is 8 MB, so
/// whatever exceeds this is not a trace, and must not exhaust the memory.
pub(crate) const MAX_ROW_BYTES: u64 = 64 << 20;

/// Reads a stream line by line and counts the lines.
pub(crate) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    line: u32,
    read_bytes: u64,
}

/// Why there is no next line.
pub(crate) enum LineError {
    Io(io::Error),
    TooLong { line: u32 },
    TooMany { line: u32 },
}

impl LineError {
    /// As an error of the trace called `name`.
    pub(crate) fn of(self, name: &str) -> TraceError {
        let (line, problem) = match self {
            LineError::Io(source) => {
                return TraceError::Io { name: name.to_owned(), source };
            }
            LineError::TooLong { line } => {
                let limit_bytes = MAX_ROW_BYTES;
                (line, RowProblem::RowTooLong { limit_bytes })
            }
            LineError::TooMany { line } => (line, RowProblem::TooMany { what: "lines" }),
        };
        TraceError::Row { name: name.to_owned(), line, field: None, problem }
    }
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(reader: R) -> Self {
        Lines { reader, buffer: Vec::new(), line: 0, read_bytes: 0 }
    }

    /// The next line that is not blank, with its 1-based number; `None` at the
    /// end. A byte-order mark before the first line is dropped.
    pub(crate) fn next_row(&mut self) -> Result<Option<(u32, &[u8])>, LineError> {
        loop {
            self.buffer.clear();
            let mut limited = self.reader.by_ref().take(MAX_ROW_BYTES + 1);
            let bytes = limited.read_until(b'\n', &mut self.buffer).map_err(LineError::Io)?;
            self.read_bytes += bytes as u64;
            if bytes == 0 {
                return Ok(None);
            }
            self.line = self.line.checked_add(1).ok_or(LineError::TooMany { line: self.line })?;
            if bytes as u64 > MAX_ROW_BYTES {
                return Err(LineError::TooLong { line: self.line });
            }
            if self.line == 1 && self.buffer.starts_with(b"\xef\xbb\xbf") {
                self.buffer.drain(..3);
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(Some((self.line, &self.buffer)));
            }
        }
    }

    /// The row that was read last.
    pub(crate) fn row(&self) -> &[u8] {
        &self.buffer
    }

    /// The 1-based number of the line that was read last.
    pub(crate) fn line(&self) -> u32 {
        self.line
    }

    /// Where the row that was read last starts, in bytes from the start of the
    /// stream.
    pub(crate) fn row_offset_bytes(&self) -> u64 {
        self.read_bytes - self.buffer.len() as u64
    }

    /// What the lines are read from.
    pub(crate) fn reader(&self) -> &R {
        &self.reader
    }
}

/// What a decoder says of a row; it counts lines inside the row, where there is
/// only one.
pub(crate) fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let cause = text.split(" at line ").next().unwrap_or(&text);
    format!("{cause} (column {})", error.column())
}
