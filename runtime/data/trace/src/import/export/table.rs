//! Writes a table with one row for each request.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::capture::{CaptureLine, RequestRecord};

use super::{LineTally, flushed};
use crate::import::Note;
use crate::import::table::{Cells, Column, TableFormat, csv_text, write};

/// The columns; `docs/reference/inspect.md` describes them.
const COLUMNS: [&str; 20] = [
    "id",
    "external_id",
    "session",
    "rank",
    "arrival_ns",
    "concurrency",
    "prompt_tokens",
    "cached_tokens",
    "external_cached_tokens",
    "output_tokens",
    "queue_ns",
    "ttft_ns",
    "itl_mean_ns",
    "itl_max_ns",
    "end_ns",
    "finish_reason",
    "preemptions",
    "priority",
    "lora",
    "prompt_hash",
];

pub(super) struct TableExport<W: Write> {
    out: csv::Writer<W>,
    left_out: LeftOut,
}

impl<W: Write> TableExport<W> {
    pub(super) fn new(out: W) -> io::Result<Self> {
        let mut out = csv::Writer::from_writer(out);
        out.write_record(COLUMNS)?;
        Ok(Self { out, left_out: LeftOut::default() })
    }

    pub(super) fn add(&mut self, line: &CaptureLine) -> io::Result<()> {
        self.left_out.count(line);
        if let CaptureLine::Request(request) = line {
            for (name, cell) in COLUMNS.iter().zip(cells(request)) {
                self.out.write_field(if TEXTS.contains(name) { csv_text(cell) } else { cell })?;
            }
            self.out.write_record(None::<&[u8]>)?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> io::Result<Vec<Note>> {
        self.out.flush()?;
        Ok(self.left_out.notes())
    }
}

/// Counts what a table cannot contain.
#[derive(Default)]
struct LeftOut {
    lines: LineTally,
    /// Number of requests that lost a field, by name of the field.
    fields: BTreeMap<&'static str, u64>,
}

impl LeftOut {
    fn count(&mut self, line: &CaptureLine) {
        self.lines.count(line);
        if let CaptureLine::Request(request) = line {
            for (field, _) in fields_left_out(request).into_iter().filter(|(_, is_given)| *is_given) {
                *self.fields.entry(field).or_default() += 1;
            }
        }
    }

    fn notes(&self) -> Vec<Note> {
        let mut notes = self.lines.notes();
        let lost = |(field, count): (&&str, &u64)| Note { what: format!("requests lost their {field}"), count: *count };
        notes.extend(self.fields.iter().map(lost));
        notes
    }
}

/// The fields that a row lacks, and whether the request has each.
fn fields_left_out(request: &RequestRecord) -> [(&'static str, bool); 16] {
    [
        ("`client`", request.client != 0),
        ("`think_ns`", request.think_ns.is_some()),
        ("`block_hashes`", !request.block_hashes.is_empty()),
        ("`prompt_token_ids`", request.prompt_token_ids.is_some()),
        ("`output_token_ids`", request.output_token_ids.is_some()),
        ("`first_tokens`", request.first_tokens.is_some()),
        // A single gap is the mean and the largest one.
        ("`gap_ns`", request.gap_ns.len() > 1),
        ("`gap_tokens`", request.gap_tokens.is_some()),
        ("`steps`", request.steps.is_some()),
        ("`stop_reason`", request.stop_reason.is_some()),
        ("`params`", !request.params.is_empty()),
        ("`mm_hashes`", !request.mm_hashes.is_empty()),
        ("`mm_items`", !request.mm_items.is_empty()),
        ("`kv_role`", request.kv_role.is_some()),
        ("`error`", request.error.is_some()),
        ("unknown fields", !request.other.is_empty()),
    ]
}

/// The columns with texts; all other columns have numbers.
const TEXTS: [&str; 6] = ["id", "external_id", "session", "finish_reason", "lora", "prompt_hash"];

/// The requests of a capture, column by column.
#[derive(Debug)]
pub struct RequestColumns(Vec<Column>);

impl Default for RequestColumns {
    fn default() -> Self {
        let column = |name: &str| Column {
            name: name.to_owned(),
            cells: if TEXTS.contains(&name) { Cells::Texts(Vec::new()) } else { Cells::Numbers(Vec::new()) },
        };
        Self(COLUMNS.map(column).into())
    }
}

impl RequestColumns {
    /// Adds a row if the line is a request.
    pub fn add(&mut self, line: &CaptureLine) {
        if let CaptureLine::Request(request) = line {
            for (column, cell) in self.0.iter_mut().zip(cells(request)) {
                match &mut column.cells {
                    Cells::Texts(texts) => texts.push(cell),
                    // An unknown value is an empty cell, which is not a number.
                    Cells::Numbers(numbers) => numbers.push(cell.parse().ok()),
                    Cells::Counts(_) => {}
                }
            }
        }
    }

    /// The columns.
    #[must_use]
    pub fn into_columns(self) -> Vec<Column> {
        self.0
    }
}

/// Writes the same table as Parquet, column by column.
pub(super) struct ParquetExport<W: Write + Send> {
    out: W,
    columns: RequestColumns,
    left_out: LeftOut,
}

impl<W: Write + Send> ParquetExport<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, columns: RequestColumns::default(), left_out: LeftOut::default() }
    }

    pub(super) fn add(&mut self, line: &CaptureLine) {
        self.left_out.count(line);
        self.columns.add(line);
    }

    pub(super) fn finish(mut self) -> io::Result<Vec<Note>> {
        write(&mut self.out, &self.columns.0, TableFormat::Parquet)?;
        flushed(self.out)?;
        Ok(self.left_out.notes())
    }
}

fn cells(request: &RequestRecord) -> [String; COLUMNS.len()] {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let time = |value: Option<u64>| value.map_or_else(String::new, |ns| ns.to_string());
    let (itl_mean_ns, itl_max_ns) = gaps(request);
    [
        text(&request.id),
        text(&request.external_id),
        text(&request.session),
        request.rank.to_string(),
        time(request.arrival_ns),
        time(request.concurrency.map(u64::from)),
        request.prompt_tokens.to_string(),
        request.cached_tokens.to_string(),
        request.external_cached_tokens.to_string(),
        request.output_tokens.to_string(),
        time(request.queue_ns),
        time(request.ttft_ns),
        time(itl_mean_ns),
        time(itl_max_ns),
        time(request.duration_ns()),
        text(&request.finish_reason),
        request.preemptions.to_string(),
        request.priority.to_string(),
        text(&request.lora),
        request.prompt_hash.map_or_else(String::new, |hash| hash.to_string()),
    ]
}

/// The mean and the largest gap, rounded to whole nanoseconds.
fn gaps(request: &RequestRecord) -> (Option<u64>, Option<u64>) {
    let count = request.gap_ns.len() as u128;
    if count == 0 {
        return (request.gap_summary.map(|gaps| gaps.mean_ns), None);
    }
    let sum: u128 = request.gap_ns.iter().map(|gap| u128::from(*gap)).sum();
    (u64::try_from((sum + count / 2) / count).ok(), request.gap_ns.iter().max().copied())
}
