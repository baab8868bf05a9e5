//! Reads lines of a stream one by one into a reused buffer.

use std::io::{self, BufRead, Read};

use crate::units::format_bytes;

use crate::input::MAX_LINE_BYTES;

/// Reads a stream line by line and counts the lines.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    line: u64,
    read_bytes: u64,
}

/// The reason why a line cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The stream cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A line is longer than [`MAX_LINE_BYTES`].
    #[error("line {line} is longer than {}; expected one object or record a line", format_bytes(MAX_LINE_BYTES as f64))]
    TooLong {
        /// Line number, from 1.
        line: u64,
    },
}

impl From<LineError> for io::Error {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Io(error) => error,
            LineError::TooLong { .. } => Self::new(io::ErrorKind::FileTooLarge, error),
        }
    }
}

impl<R: BufRead> Lines<R> {
    /// Reads the lines of `reader`.
    pub fn new(reader: R) -> Self {
        Self { reader, buffer: Vec::new(), line: 0, read_bytes: 0 }
    }

    /// The next non-blank line and its number, from 1; `None` at the end. Skips a byte-order mark.
    ///
    /// # Errors
    /// When the stream cannot be read or the line is too long.
    pub fn next_row(&mut self) -> Result<Option<(u64, &[u8])>, LineError> {
        loop {
            self.buffer.clear();
            let mut limited = self.reader.by_ref().take(MAX_LINE_BYTES + 1);
            let bytes = limited.read_until(b'\n', &mut self.buffer)?;
            self.read_bytes += bytes as u64;
            if bytes == 0 {
                return Ok(None);
            }
            self.line += 1;
            if bytes as u64 > MAX_LINE_BYTES {
                // Free the large buffer; its contents are useless.
                self.buffer = Vec::new();
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

    /// The line that was read last.
    pub fn row(&self) -> &[u8] {
        &self.buffer
    }

    /// Number of the line that was read last, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Offset of the line that was read last, in bytes from the start of the stream.
    pub fn row_offset_bytes(&self) -> u64 {
        self.read_bytes - self.buffer.len() as u64
    }

    /// The source of the lines.
    pub fn reader(&self) -> &R {
        &self.reader
    }
}

/// A text stream whose lines may not exceed [`MAX_LINE_BYTES`], for parsers that read and buffer a stream themselves.
#[derive(Debug)]
pub struct LineCap<R> {
    reader: R,
    line: u64,
    line_bytes: u64,
}

impl<R: Read> LineCap<R> {
    /// Limits the lines of `reader`.
    pub fn new(reader: R) -> Self {
        Self { reader, line: 1, line_bytes: 0 }
    }
}

impl<R: Read> Read for LineCap<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let bytes = self.reader.read(out)?;
        match out[..bytes].iter().rposition(|byte| *byte == b'\n') {
            Some(last) => {
                self.line += out[..=last].iter().filter(|byte| **byte == b'\n').count() as u64;
                self.line_bytes = (bytes - last - 1) as u64;
            }
            None => self.line_bytes += bytes as u64,
        }
        if self.line_bytes > MAX_LINE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, LineError::TooLong { line: self.line }));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_are_passed_over_and_counted() {
        let mut lines = Lines::new(&b"\xef\xbb\xbfa\n\n \r\nb"[..]);
        assert_eq!(lines.next_row().unwrap(), Some((1, &b"a\n"[..])));
        assert_eq!(lines.next_row().unwrap(), Some((4, &b"b"[..])));
        assert_eq!((lines.line(), lines.row_offset_bytes(), lines.row()), (4, 9, &b"b"[..]));
        assert_eq!(lines.next_row().unwrap(), None);
    }

    #[test]
    fn a_line_without_an_end_is_refused_before_it_fills_the_memory() {
        let mut lines = Lines::new(io::BufReader::new(b"first\n".chain(io::repeat(0))));
        assert!(lines.next_row().unwrap().is_some());
        let error = lines.next_row().unwrap_err();
        assert_eq!(error.to_string(), "line 2 is longer than 64.00 MiB; expected one object or record a line");
        let mut capped = LineCap::new(b"a\nb\n".chain(io::repeat(0)));
        let error = io::copy(&mut capped, &mut io::sink()).unwrap_err();
        assert!(error.to_string().starts_with("line 3 is longer than"), "{error}");
        let short = LineCap::new(io::repeat(b'\n').take(MAX_LINE_BYTES * 2));
        assert_eq!(io::copy(&mut { short }, &mut io::sink()).unwrap(), MAX_LINE_BYTES * 2);
    }
}
