//! Requests, as `requests.jsonl` has them, and tables of them.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use vcr_import::table::{self, Cells, Column, TableFormat};

use crate::charts::{Phase, Pieces};

/// A line of `requests.jsonl`. Its documentation has the meaning of each field.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct RequestRow<'a> {
    /// Name of the run.
    #[serde(borrow)]
    pub of: Cow<'a, str>,
    /// Number in the run.
    pub id: u64,
    /// Name of the workload.
    #[serde(borrow)]
    pub workload: Cow<'a, str>,
    /// Number of the session.
    #[serde(default)]
    pub session: u64,
    /// Number of the turn.
    #[serde(default)]
    pub turn: u32,
    /// How it ended.
    #[serde(borrow)]
    pub status: Cow<'a, str>,
    /// Cause of a refusal, a loss or a give-up.
    #[serde(default, borrow)]
    pub reason: Option<Cow<'a, str>>,
    /// Length of the prompt.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Output tokens asked for.
    #[serde(default)]
    pub max_tokens: u64,
    /// Output tokens emitted.
    #[serde(default)]
    pub output_tokens: u64,
    /// Prompt tokens found cached.
    #[serde(default)]
    pub cached_tokens: u64,
    /// Times of its phases.
    pub arrival_ms: f64,
    /// See `arrival_ms`.
    #[serde(default)]
    pub queued_ms: Option<f64>,
    /// See `arrival_ms`.
    #[serde(default)]
    pub scheduled_ms: Option<f64>,
    /// See `arrival_ms`.
    #[serde(default)]
    pub prefill_end_ms: Option<f64>,
    /// See `arrival_ms`.
    #[serde(default)]
    pub transfer_end_ms: Option<f64>,
    /// See `arrival_ms`.
    #[serde(default)]
    pub first_token_ms: Option<f64>,
    /// See `arrival_ms`.
    #[serde(default)]
    pub last_token_ms: Option<f64>,
    /// See `arrival_ms`.
    #[serde(default)]
    pub end_ms: Option<f64>,
    /// Since arrival.
    #[serde(default)]
    pub ttft_ms: Option<f64>,
    /// Since arrival.
    #[serde(default)]
    pub e2e_ms: Option<f64>,
    /// Engine of the prompt.
    #[serde(default, borrow)]
    pub engine: Option<Cow<'a, str>>,
    /// Engine of the output, if another.
    #[serde(default, borrow)]
    pub decode_engine: Option<Cow<'a, str>>,
    /// Number of preemptions.
    #[serde(default)]
    pub preemptions: u64,
    /// Number of retries.
    #[serde(default)]
    pub retries: u64,
    /// Attempts of its client before this one.
    #[serde(default)]
    pub attempt: u64,
    /// When its client gives up for good.
    #[serde(default)]
    pub deadline_ms: Option<f64>,
    /// Output tokens that it got in vain.
    #[serde(default)]
    pub wasted_tokens: u64,
    /// Prompt tokens that were computed in vain.
    #[serde(default)]
    pub wasted_prompt_tokens: u64,
    /// Its SLO class.
    #[serde(default, borrow)]
    pub slo_class: Option<Cow<'a, str>>,
    /// Number of its LoRA adapter.
    #[serde(default)]
    pub adapter: Option<f64>,
    /// Its name in its trace.
    #[serde(default, borrow)]
    pub name: Option<Cow<'a, str>>,
}

impl RequestRow<'_> {
    /// Whether it has its whole output.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.status == "completed"
    }

    /// Arrival to end; none while it has not ended.
    #[must_use]
    pub fn total_ms(&self) -> Option<f64> {
        self.end_ms.map(|end_ms| end_ms - self.arrival_ms)
    }

    /// The phases of its life that have both ends.
    #[must_use]
    pub fn phases(&self) -> Pieces {
        let starts = [
            (Phase::Arrival, self.queued_ms.map(|_| self.arrival_ms)),
            (Phase::Queue, Some(self.queued_ms.unwrap_or(self.arrival_ms))),
            (Phase::Prefill, self.scheduled_ms),
            (Phase::Transfer, self.transfer_end_ms.and(self.prefill_end_ms)),
            (Phase::Decode, self.transfer_end_ms.or(self.prefill_end_ms)),
        ];
        let known: Vec<(Phase, f64)> = starts.into_iter().filter_map(|(phase, at)| Some((phase, at?))).collect();
        let ends = known.iter().skip(1).map(|(_, at)| *at).chain(self.end_ms);
        known.iter().zip(ends).map(|((phase, start), end)| (*phase, *start, end)).collect()
    }
}

/// A table of requests, column by column.
#[derive(Debug)]
pub struct RequestTable {
    columns: Vec<Column>,
}

/// A cell of the table.
enum Cell<'a> {
    Text(&'a str),
    Count(u64),
    Number(Option<f64>),
}

/// The columns, which are the fields of `requests.jsonl`.
fn cells<'a>(row: &'a RequestRow<'_>) -> [(&'static str, Cell<'a>); 32] {
    let text = |text: &'a Option<Cow<'_, str>>| Cell::Text(text.as_deref().unwrap_or_default());
    [
        ("of", Cell::Text(&row.of)),
        ("id", Cell::Count(row.id)),
        ("workload", Cell::Text(&row.workload)),
        ("session", Cell::Count(row.session)),
        ("turn", Cell::Count(u64::from(row.turn))),
        ("status", Cell::Text(&row.status)),
        ("reason", text(&row.reason)),
        ("prompt_tokens", Cell::Count(row.prompt_tokens)),
        ("max_tokens", Cell::Count(row.max_tokens)),
        ("output_tokens", Cell::Count(row.output_tokens)),
        ("cached_tokens", Cell::Count(row.cached_tokens)),
        ("arrival_ms", Cell::Number(Some(row.arrival_ms))),
        ("queued_ms", Cell::Number(row.queued_ms)),
        ("scheduled_ms", Cell::Number(row.scheduled_ms)),
        ("prefill_end_ms", Cell::Number(row.prefill_end_ms)),
        ("transfer_end_ms", Cell::Number(row.transfer_end_ms)),
        ("first_token_ms", Cell::Number(row.first_token_ms)),
        ("last_token_ms", Cell::Number(row.last_token_ms)),
        ("end_ms", Cell::Number(row.end_ms)),
        ("ttft_ms", Cell::Number(row.ttft_ms)),
        ("e2e_ms", Cell::Number(row.e2e_ms)),
        ("engine", text(&row.engine)),
        ("decode_engine", text(&row.decode_engine)),
        ("preemptions", Cell::Count(row.preemptions)),
        ("retries", Cell::Count(row.retries)),
        ("attempt", Cell::Count(row.attempt)),
        ("deadline_ms", Cell::Number(row.deadline_ms)),
        ("wasted_tokens", Cell::Count(row.wasted_tokens)),
        ("wasted_prompt_tokens", Cell::Count(row.wasted_prompt_tokens)),
        ("slo_class", text(&row.slo_class)),
        ("adapter", Cell::Number(row.adapter)),
        ("name", text(&row.name)),
    ]
}

impl Default for RequestTable {
    fn default() -> Self {
        let column = |(name, cell): (&str, Cell<'_>)| Column {
            name: name.to_owned(),
            cells: match cell {
                Cell::Text(_) => Cells::Texts(Vec::new()),
                Cell::Count(_) => Cells::Counts(Vec::new()),
                Cell::Number(_) => Cells::Numbers(Vec::new()),
            },
        };
        Self { columns: cells(&RequestRow::default()).map(column).into() }
    }
}

impl RequestTable {
    /// Adds a row.
    pub fn add(&mut self, row: &RequestRow<'_>) {
        for (column, (_, cell)) in self.columns.iter_mut().zip(cells(row)) {
            match (&mut column.cells, cell) {
                (Cells::Texts(texts), Cell::Text(text)) => texts.push(text.to_owned()),
                (Cells::Counts(counts), Cell::Count(count)) => counts.push(count),
                (Cells::Numbers(numbers), Cell::Number(number)) => numbers.push(number),
                _ => unreachable!("a column has the kind of its cells"),
            }
        }
    }

    /// Its columns.
    #[must_use]
    pub fn into_columns(self) -> Vec<Column> {
        self.columns
    }

    /// Writes the table.
    ///
    /// # Errors
    /// Those of the writer; Parquet in a build without it.
    pub fn write(&self, out: &mut (dyn Write + Send), format: TableFormat) -> io::Result<()> {
        table::write(out, &self.columns, format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"of":"a","id":3,"workload":"w","status":"completed","arrival_ms":1,"queued_ms":2,
        "scheduled_ms":3.5,"prefill_end_ms":5,"transfer_end_ms":6,"end_ms":9,"engine":"p 0","decode_engine":"d \"1\"",
        "attempt":2,"deadline_ms":8.5,"wasted_tokens":3,"wasted_prompt_tokens":7,"slo_class":"gold","adapter":4,"name":"r-1"}"#;

    #[test]
    fn a_life_has_no_gaps() {
        let row: RequestRow<'_> = serde_json::from_str(LINE).expect("a line");
        let expected = [
            (Phase::Arrival, 1.0, 2.0),
            (Phase::Queue, 2.0, 3.5),
            (Phase::Prefill, 3.5, 5.0),
            (Phase::Transfer, 5.0, 6.0),
            (Phase::Decode, 6.0, 9.0),
        ];
        assert_eq!(row.phases(), expected);
        assert_eq!(row.total_ms(), Some(8.0));
        let waiting = RequestRow { arrival_ms: 4.0, ..RequestRow::default() };
        assert_eq!(waiting.phases(), []);
        let rejected = RequestRow { arrival_ms: 4.0, end_ms: Some(4.5), ..RequestRow::default() };
        assert_eq!(rejected.phases(), [(Phase::Queue, 4.0, 4.5)]);
    }

    #[test]
    fn tables_have_the_columns_of_the_lines() {
        let row: RequestRow<'_> = serde_json::from_str(LINE).expect("a line");
        let mut table = RequestTable::default();
        table.add(&row);
        let mut out = Vec::new();
        table.write(&mut out, TableFormat::Csv).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("text");
        let (header, row) = text.split_once('\n').expect("two lines");
        let schema: serde_json::Value =
            serde_json::from_str(include_str!("../../../docs/schemas/requests.schema.json")).expect("a schema");
        let fields = schema["properties"].as_object().expect("fields");
        let columns: std::collections::BTreeSet<&str> = header.split(',').collect();
        assert!(
            columns.iter().copied().eq(fields.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>())
        );
        assert_eq!(
            row,
            "a,3,w,0,0,completed,,0,0,0,0,1,2,3.5,5,6,,,9,,,p 0,\"d \"\"1\"\"\",0,0,2,8.5,3,7,gold,4,r-1\n"
        );
    }
}
