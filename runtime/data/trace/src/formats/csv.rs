//! Reads CSV traces: a header, then a row for each request.
//!
//! Lines are split here instead of in the csv crate's reader, whose line numbers are wrong after blank lines and
//! with Windows line ends. A cell therefore cannot span lines; no cell of these formats does.

use std::collections::HashMap;
use std::io::BufRead;

use csv_core::ReadRecordResult;

use crate::assemble::{Assembler, FieldProblem, Row};
use crate::lines::Lines;
use crate::millis::ns_of_seconds;
use crate::{RowProblem, Trace, TraceError, TraceOptions, WarningKind};

#[derive(Debug)]
pub(crate) struct Columns {
    /// The arrival; the column may be missing if arrivals are ignored.
    pub(crate) time: &'static str,
    pub(crate) prompt_tokens: &'static str,
    pub(crate) output_tokens: &'static str,
    /// Name of the conversation; each row is one of its turns.
    pub(crate) session: Option<&'static str>,
    /// Recorded duration of the request, in seconds.
    pub(crate) elapsed: Option<&'static str>,
    pub(crate) without_effect: &'static [&'static str],
    pub(crate) time_ns: fn(&str) -> Result<i64, RowProblem>,
    /// Whether a row without output tokens is a failed request.
    pub(crate) has_failures: bool,
}

impl Columns {
    /// The columns that identify a header of this format.
    fn needed(&self) -> [&'static str; 3] {
        [self.time, self.prompt_tokens, self.output_tokens]
    }

    /// Number of the identifying columns that a header has.
    pub(crate) fn count_in(&self, titles: &[String]) -> usize {
        self.needed().iter().filter(|column| titles.iter().any(|title| title == *column)).count()
    }

    fn has_no_effect(&self, title: &str) -> bool {
        title.is_empty() || self.without_effect.contains(&title)
    }
}

pub(crate) fn read(
    reader: impl BufRead,
    name: &str,
    options: &TraceOptions,
    columns: &'static Columns,
) -> Result<Trace, TraceError> {
    let at = |line, (field, problem): FieldProblem| TraceError::Row { name: name.to_owned(), line, field, problem };
    let mut lines = Lines::new(reader);
    let mut assembler = Assembler::new(options);
    let mut splitter = Splitter::new();
    let mut table = None;
    while let Some((line, bytes)) = lines.next_row().map_err(|error| error.of(name))? {
        let cells = splitter.split(bytes).map_err(|problem| at(line, (None, problem)))?;
        match &mut table {
            None => {
                let needs_time = options.first_timestamp_required;
                table = Some(Table::new(columns, &cells, needs_time).map_err(|problem| at(line, problem))?);
            }
            Some(table) => table.add(&mut assembler, &cells, line).map_err(|problem| at(line, problem))?,
        }
    }
    assembler.finish(name)
}

/// Splits lines into cells, in buffers that are reused.
///
/// Uses the parser of the `csv` crate directly, because creating a `csv::Reader` for each line would cost more than
/// all other work on the row.
struct Splitter {
    parser: csv_core::Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
}

struct Cells<'a> {
    text: &'a str,
    ends: &'a [usize],
}

impl Splitter {
    fn new() -> Self {
        Splitter {
            // `default()` would leave the parser's table empty.
            parser: csv_core::Reader::new(),
            text: Vec::new(),
            ends: Vec::new(),
        }
    }

    fn split(&mut self, line: &[u8]) -> Result<Cells<'_>, RowProblem> {
        // Checks the whole line instead of the cells: when commas are removed, parts of invalid characters could
        // join into a valid character that spans two cells.
        let not_utf8 = |e| RowProblem::Malformed(format!("the row is not UTF-8 text: {e}"));
        std::str::from_utf8(line).map_err(not_utf8)?;
        // A line of n bytes has at most n bytes of text and n + 1 cells.
        self.text.resize(line.len() + 1, 0);
        self.ends.resize(line.len() + 1, 0);
        self.parser.reset();
        let (result, parsed, mut bytes, mut cells) = self.parser.read_record(line, &mut self.text, &mut self.ends);
        if result == ReadRecordResult::InputEmpty {
            // The record ends here: at the last line of a file, or within an open quote.
            let (_, _, more_bytes, more_cells) =
                self.parser.read_record(&[], &mut self.text[bytes..], &mut self.ends[cells..]);
            bytes += more_bytes;
            cells += more_cells;
        }
        // The parser also ends a row at a single carriage return.
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
        // The parser ends cells at commas, so never within a character.
        self.text[start..self.ends[index]].trim()
    }

    fn iter(&self) -> impl Iterator<Item = &'a str> {
        (0..self.len()).map(|index| self.get(index))
    }
}

/// The cells of a line; empty if the line cannot be split.
pub(crate) fn cells_of(line: &[u8]) -> Vec<String> {
    let mut splitter = Splitter::new();
    let cells = splitter.split(line).map(|cells| cells.iter().map(str::to_owned).collect());
    cells.unwrap_or_default()
}

struct Table {
    columns: &'static Columns,
    width: usize,
    time: Option<usize>,
    prompt_tokens: usize,
    output_tokens: usize,
    session: Option<usize>,
    elapsed: Option<usize>,
    unknown: Vec<Box<str>>,
    /// The end of each session's latest request. Looked up, never iterated.
    ends_ns: HashMap<Box<str>, i64>,
}

impl Table {
    fn new(columns: &'static Columns, titles: &Cells<'_>, needs_time: bool) -> Result<Self, FieldProblem> {
        let find = |column: &str| titles.iter().position(|title| title == column);
        let [time, prompt_tokens, output_tokens] = columns.needed().map(|column| {
            let missing = (Some(column), RowProblem::MissingColumn { needed: columns.needed() });
            find(column).ok_or(missing)
        });
        let time = if needs_time { Some(time?) } else { time.ok() };
        let (prompt_tokens, output_tokens) = (prompt_tokens?, output_tokens?);
        let (session, elapsed) = (columns.session.and_then(find), columns.elapsed.and_then(find));
        let used = [time, Some(prompt_tokens), Some(output_tokens), session, elapsed];
        let unknown = titles.iter().enumerate();
        let unknown = unknown.filter(|(index, title)| !used.contains(&Some(*index)) && !columns.has_no_effect(title));
        Ok(Self {
            columns,
            width: titles.len(),
            time,
            prompt_tokens,
            output_tokens,
            session,
            elapsed,
            unknown: unknown.map(|(_, title)| title.into()).collect(),
            ends_ns: HashMap::new(),
        })
    }

    fn add(&mut self, assembler: &mut Assembler, cells: &Cells<'_>, line: u32) -> Result<(), FieldProblem> {
        if cells.len() != self.width {
            let (given, expected) = (cells.len(), self.width);
            return Err((None, RowProblem::WrongCellCount { given, expected }));
        }
        let Columns { time, prompt_tokens: prompt, output_tokens: output, .. } = *self.columns;
        let timestamp_ns = self.time.map(|index| (self.columns.time_ns)(cells.get(index)));
        let timestamp_ns = timestamp_ns.transpose().map_err(|problem| (Some(time), problem))?;
        let input_tokens = count(cells.get(self.prompt_tokens)).map_err(|problem| (Some(prompt), problem))?;
        let output_tokens = count(cells.get(self.output_tokens)).map_err(|problem| (Some(output), problem))?;
        if self.columns.has_failures && output_tokens == 0 {
            return assembler.warn(WarningKind::FailedRequest, line, || (Some(output), RowProblem::FailedRequest));
        }
        if input_tokens == 0 {
            return Err((Some(prompt), RowProblem::EmptyPrompt));
        }
        for title in &self.unknown {
            assembler.warn_of_field(title, line)?;
        }
        let session_id = self.session.map(|index| cells.get(index)).filter(|id| !id.is_empty());
        let delay_ns = self.delay_ns(session_id, timestamp_ns, cells)?;
        let session_id = session_id.map(Into::into);
        assembler.push(line, Row { session_id, input_tokens, output_tokens, timestamp_ns, delay_ns, ..Row::default() })
    }

    /// The time from the end of the previous turn to this one, if the table has both times.
    fn delay_ns(
        &mut self,
        session: Option<&str>,
        timestamp_ns: Option<i64>,
        cells: &Cells<'_>,
    ) -> Result<Option<u64>, FieldProblem> {
        let (Some(column), Some(index)) = (self.columns.elapsed, self.elapsed) else { return Ok(None) };
        let (Some(session), Some(timestamp_ns)) = (session, timestamp_ns) else { return Ok(None) };
        let text = cells.get(index);
        let elapsed_ns = match text {
            "" => None,
            text => Some(seconds_ns(text).map_err(|problem| (Some(column), problem))?),
        };
        let before = self.ends_ns.get(session).copied();
        match elapsed_ns {
            Some(elapsed_ns) => {
                self.ends_ns.insert(session.into(), timestamp_ns.saturating_add(elapsed_ns.max(0)));
            }
            None => drop(self.ends_ns.remove(session)),
        }
        // A request that arrived before that end follows at once.
        Ok(before.map(|end_ns| u64::try_from(timestamp_ns.saturating_sub(end_ns)).unwrap_or(0)))
    }
}

/// Reads a whole number of tokens. Published files sometimes write it as a decimal number.
fn count(text: &str) -> Result<u32, RowProblem> {
    let whole = text.strip_suffix(".0").unwrap_or(text);
    whole.parse().map_err(|_| RowProblem::NotACount { text: text.to_owned() })
}

pub(crate) fn seconds_ns(text: &str) -> Result<i64, RowProblem> {
    let ns = text.parse().ok().and_then(ns_of_seconds);
    ns.ok_or_else(|| RowProblem::NotSeconds { text: text.to_owned() })
}
