//! JSON documents of a stream, one after another, whether each takes a line or many.

use std::io::BufRead;

use vcr_input::MAX_LINE_BYTES;

use crate::lines::{LineError, Lines};

/// Reads a stream document by document.
pub(super) struct Documents<R> {
    lines: Lines<R>,
    text: Vec<u8>,
}

impl<R: BufRead> Documents<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { lines: Lines::new(reader), text: Vec::new() }
    }

    /// The next document, with the 1-based line that it starts on; `None` at the end. A document
    /// that is cut off, or is not an object, is returned as far as it goes.
    pub(super) fn next(&mut self) -> Result<Option<(u32, &[u8])>, LineError> {
        self.text.clear();
        let mut nesting = Nesting::default();
        let (mut first_line, mut last_line) = (0, 0);
        while let Some((line, row)) = self.lines.next_row()? {
            if self.text.is_empty() {
                first_line = line;
            } else {
                // Blank lines were skipped, but the decoder is to count them.
                self.text.extend(std::iter::repeat_n(b'\n', (line - last_line - 1) as usize));
            }
            last_line = line;
            if (self.text.len() + row.len()) as u64 > MAX_LINE_BYTES {
                return Err(LineError::TooLong { line: first_line });
            }
            self.text.extend_from_slice(row);
            nesting.follow(row);
            if nesting.depth == 0 {
                break;
            }
        }
        Ok((!self.text.is_empty()).then_some((first_line, &self.text)))
    }
}

/// Depth of objects and lists at a place of a document.
#[derive(Default)]
struct Nesting {
    depth: u64,
    in_string: bool,
    is_escaped: bool,
}

impl Nesting {
    fn follow(&mut self, text: &[u8]) {
        for byte in text {
            if std::mem::take(&mut self.is_escaped) {
                continue;
            }
            match byte {
                b'\\' => self.is_escaped = self.in_string,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }
}
