//! The Azure LLM inference trace reader (2023 and 2024 CSV files).

use crate::assemble::{Assembler, FieldProblem, Row};
use crate::lines::Lines;
use crate::{RowProblem, Trace, TraceError, TraceOptions};
use csv_core::ReadRecordResult;
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};
use std::io::BufRead;

/// The columns, in the order of the published files.
const COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

/// Reads Azure rows to the end of the stream.
///
/// The lines are split here, not by the csv reader, whose line numbers are off
/// after blank lines and in files with Windows line ends. A cell therefore
/// cannot span lines, which no cell of this format does.
pub(crate) fn read(reader: impl BufRead, name: &str, options: &TraceOptions) -> Result<Trace, TraceError> {
    let at = |line, (field, problem): FieldProblem| TraceError::Row { name: name.to_owned(), line, field, problem };
    let mut lines = Lines::new(reader);
    let mut assembler = Assembler::new(options);
    let mut splitter = Splitter::new();
    let mut header = None;
    while let Some((line, bytes)) = lines.next_row().map_err(|error| error.of(name))? {
        let cells = splitter.split(bytes).map_err(|problem| at(line, (None, problem)))?;
        match &header {
            None => header = Some(Header::new(&cells).map_err(|problem| at(line, problem))?),
            Some(header) => header.add(&mut assembler, &cells, line).map_err(|problem| at(line, problem))?,
        }
    }
    assembler.finish(name)
}

/// Splits lines into cells, in buffers that are reused.
///
/// This drives the parser inside the `csv` crate directly: a `csv::Reader` per
/// line costs more than the rest of the row.
struct Splitter {
    parser: csv_core::Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
}

/// The trimmed cells of one line.
struct Cells<'a> {
    text: &'a str,
    ends: &'a [usize],
}

impl Splitter {
    fn new() -> Self {
        Splitter {
            // Not `default()`, which leaves the parser's table empty.
            parser: csv_core::Reader::new(),
            text: Vec::new(),
            ends: Vec::new(),
        }
    }

    fn split(&mut self, line: &[u8]) -> Result<Cells<'_>, RowProblem> {
        // The whole line, not the cells: without its commas, halves of broken
        // characters could join into a whole one that a cell then cuts.
        let not_utf8 = |e| RowProblem::Malformed(format!("the row is not UTF-8 text: {e}"));
        std::str::from_utf8(line).map_err(not_utf8)?;
        // A line of n bytes has no more than n bytes of text and n + 1 cells.
        self.text.resize(line.len() + 1, 0);
        self.ends.resize(line.len() + 1, 0);
        self.parser.reset();
        let (result, parsed, mut bytes, mut cells) = self.parser.read_record(line, &mut self.text, &mut self.ends);
        if result == ReadRecordResult::InputEmpty {
            // The last line of a file, or an open quote: end the record here.
            let (_, _, more_bytes, more_cells) =
                self.parser.read_record(&[], &mut self.text[bytes..], &mut self.ends[cells..]);
            bytes += more_bytes;
            cells += more_cells;
        }
        // The parser also ends rows at a lone carriage return.
        if !line[parsed..].trim_ascii().is_empty() {
            let text = "there is a carriage return inside the row; end rows with a line feed";
            return Err(RowProblem::Malformed(text.to_owned()));
        }
        Ok(Cells { text: std::str::from_utf8(&self.text[..bytes]).map_err(not_utf8)?, ends: &self.ends[..cells] })
    }
}

impl<'a> Cells<'a> {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, index: usize) -> &'a str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        // The parser ends cells at commas, so never inside a character.
        self.text[start..self.ends[index]].trim()
    }

    fn iter(&self) -> impl Iterator<Item = &'a str> {
        (0..self.len()).map(|index| self.get(index))
    }
}

/// The indices of the columns.
struct Header {
    width: usize,
    positions: [usize; COLUMNS.len()],
    unknown: Vec<Box<str>>,
}

impl Header {
    fn new(titles: &Cells<'_>) -> Result<Self, FieldProblem> {
        let mut positions = [0; COLUMNS.len()];
        for (position, column) in positions.iter_mut().zip(COLUMNS) {
            *position =
                titles.iter().position(|title| title == column).ok_or((Some(column), RowProblem::MissingColumn))?;
        }
        Ok(Header {
            width: titles.len(),
            positions,
            unknown: titles
                .iter()
                .enumerate()
                .filter(|(index, _)| !positions.contains(index))
                .map(|(_, title)| title.into())
                .collect(),
        })
    }

    /// Adds one row of cells.
    fn add(&self, assembler: &mut Assembler, cells: &Cells<'_>, line: u32) -> Result<(), FieldProblem> {
        if cells.len() != self.width {
            let (given, expected) = (cells.len(), self.width);
            return Err((None, RowProblem::WrongCellCount { given, expected }));
        }
        let [time, context, generated] = COLUMNS;
        let cell = |column: usize| cells.get(self.positions[column]);
        let timestamp_ns = time_ns(cell(0)).map_err(|problem| (Some(time), problem))?;
        let input_tokens = count(cell(1)).map_err(|problem| (Some(context), problem))?;
        let output_tokens = count(cell(2)).map_err(|problem| (Some(generated), problem))?;
        if input_tokens == 0 {
            return Err((Some(context), RowProblem::EmptyPrompt));
        }
        for title in &self.unknown {
            assembler.warn_of_field(title, line)?;
        }
        assembler.push(line, Row { input_tokens, output_tokens, timestamp_ns: Some(timestamp_ns), ..Row::default() })
    }
}

fn count(text: &str) -> Result<u32, RowProblem> {
    text.parse().map_err(|_| RowProblem::NotACount { text: text.to_owned() })
}

/// Nanoseconds since 1970. The 2023 files have no offset and are taken as UTC;
/// the 2024 files end in `+00:00`.
fn time_ns(text: &str) -> Result<i64, RowProblem> {
    // A civil time would swallow an offset and ignore it, so look for one first:
    // after the date, a sign or a Z can be nothing else.
    let has_offset = text.bytes().skip("2023-11-16".len()).any(|byte| matches!(byte, b'+' | b'-' | b'Z' | b'z'));
    let absolute = if has_offset {
        text.parse::<Timestamp>()
    } else {
        text.parse::<civil::DateTime>().and_then(|local| local.to_zoned(TimeZone::UTC)).map(|zoned| zoned.timestamp())
    };
    let not_a_time = |cause: String| RowProblem::NotATime { text: text.to_owned(), cause };
    let ns = absolute.map_err(|error| not_a_time(error.to_string()))?.as_nanosecond();
    i64::try_from(ns).map_err(|_| not_a_time("beyond 292 years from 1970".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(csv: &str) -> Result<Trace, String> {
        read(csv.as_bytes(), "t.csv", &TraceOptions::default()).map_err(|e| e.to_string())
    }

    #[test]
    fn times_keep_their_last_digit_and_start_at_the_earliest() {
        let trace = check(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n\
             2023-11-16 18:15:46.6805901,374,44\n\
             2023-11-16 18:15:46.6805900,396,0\n\
             2023-11-17 00:00:00,5,1",
        )
        .unwrap();
        let arrivals: Vec<_> = trace.requests.iter().map(|r| r.arrival_ns).collect();
        assert_eq!(arrivals, [Some(100), Some(0), Some(20_653_319_410_000)]);
        assert_eq!(trace.requests[1].output_tokens, 0);
        assert_eq!(trace.requests[2].line, 4);
        assert_eq!(trace.sessions, 3);
        assert!(trace.hash_ids(&trace.requests[0]).is_empty());
    }

    #[test]
    fn offsets_column_order_and_extra_columns_are_understood() {
        let trace = check(
            "GeneratedTokens,Region,ContextTokens,TIMESTAMP\r\n\
             1,x,2,2024-05-10 00:00:00.009930+00:00\r\n\
             1,x,2,2024-05-10 02:00:00.009931+02:00\r\n",
        )
        .unwrap();
        assert_eq!(trace.requests[1].arrival_ns, Some(1_000));
        assert_eq!(trace.warnings[0].to_string(), "unknown field `Region` was ignored on 2 row(s), first on line 2");
    }

    #[test]
    fn broken_characters_around_a_comma_are_an_error() {
        // Found by fuzzing: without the comma these bytes are one character.
        let options = TraceOptions::default();
        let error = read(&b"\xd2,\xbb"[..], "t.csv", &options).expect_err("not UTF-8");
        assert!(error.to_string().contains("line 1: the row is not UTF-8 text"));
    }

    #[test]
    fn errors_name_line_and_column() {
        let with = |row: &str| check(&format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{row}\n")).unwrap_err();
        assert!(with("yesterday,1,1").starts_with("trace `t.csv`, line 2, field `TIMESTAMP`: "));
        assert!(with("2023-02-30 00:00:00,1,1").contains("line 2, field `TIMESTAMP`"));
        assert!(with("2023-11-16 18:15:46,-1,1").contains("`-1` is not a whole number"));
        assert!(with("2023-11-16 18:15:46,1,1.5").contains("field `GeneratedTokens`"));
        assert!(with("2023-11-16 18:15:46,0,1").contains("the prompt has no tokens"));
        assert!(with("2023-11-16 18:15:46,1").contains("line 2: 2 cells, but the header has 3"));
        assert!(with("\n\r\n2023-11-16 18:15:46,x,1").contains("line 4, field `ContextTokens`"));
        assert!(with("2023-11-16 18:15:46,1,1\r2023-11-16 18:15:46,1,1").contains("line 2: there is"));
        assert!(with("").contains("holds no request"));
        assert!(check("").unwrap_err().contains("holds no request"));
        assert!(
            check("TIMESTAMP,ContextTokens\n")
                .unwrap_err()
                .contains("line 1, field `GeneratedTokens`: the header has no such column")
        );
    }
}
