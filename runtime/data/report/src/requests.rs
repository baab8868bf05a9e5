//! Requests in the form of `requests.jsonl`, and tables of requests.

use std::io::{self, Write};

use vcr_trace::import::table::{self, Cells, Column, TableFormat};
use vcr_trace::{RequestRow, RowCell};

use crate::charts::{Phase, Pieces};

#[must_use]
pub(crate) fn phases(row: &RequestRow<'_>) -> Pieces {
    let starts = [
        (Phase::Arrival, row.queued_ms.map(|_| row.arrival_ms)),
        (Phase::Queue, Some(row.queued_ms.unwrap_or(row.arrival_ms))),
        (Phase::Prefill, row.scheduled_ms),
        (Phase::Transfer, row.transfer_end_ms.and(row.prefill_end_ms)),
        (Phase::Decode, row.transfer_end_ms.or(row.prefill_end_ms)),
    ];
    let known: Vec<(Phase, f64)> = starts.into_iter().filter_map(|(phase, at)| Some((phase, at?))).collect();
    let ends = known.iter().skip(1).map(|(_, at)| *at).chain(row.end_ms);
    known.iter().zip(ends).map(|((phase, start), end)| (*phase, *start, end)).collect()
}

/// A table of requests, column by column.
#[derive(Debug)]
pub struct RequestTable {
    columns: Vec<Column>,
}

impl Default for RequestTable {
    fn default() -> Self {
        let column = |((name, _), cell): (&(&str, &str), RowCell<'_>)| Column {
            name: (*name).to_owned(),
            cells: match cell {
                RowCell::Text(_) => Cells::Texts(Vec::new()),
                RowCell::Count(_) => Cells::Counts(Vec::new()),
                RowCell::Number(_) => Cells::Numbers(Vec::new()),
            },
        };
        Self { columns: RequestRow::FIELDS.iter().zip(RequestRow::default().cells()).map(column).collect() }
    }
}

impl RequestTable {
    /// Adds a row.
    pub fn add(&mut self, row: &RequestRow<'_>) {
        for (column, cell) in self.columns.iter_mut().zip(row.cells()) {
            match (&mut column.cells, cell) {
                (Cells::Texts(texts), RowCell::Text(text)) => texts.push(text.to_owned()),
                (Cells::Counts(counts), RowCell::Count(count)) => counts.push(count),
                (Cells::Numbers(numbers), RowCell::Number(number)) => numbers.push(number),
                _ => unreachable!("a column has the kind of its cells"),
            }
        }
    }

    /// The columns of the table.
    #[must_use]
    pub fn into_columns(self) -> Vec<Column> {
        self.columns
    }

    /// Writes the table.
    ///
    /// # Errors
    /// If the writer fails, or if the format is Parquet and this build does not support it.
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
        assert_eq!(phases(&row), expected);
        assert_eq!(row.total_ms(), Some(8.0));
        let waiting = RequestRow { arrival_ms: 4.0, ..RequestRow::default() };
        assert_eq!(phases(&waiting), []);
        let rejected = RequestRow { arrival_ms: 4.0, end_ms: Some(4.5), ..RequestRow::default() };
        assert_eq!(phases(&rejected), [(Phase::Queue, 4.0, 4.5)]);
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
            serde_json::from_str(include_str!("../../../../docs/schemas/requests.schema.json")).expect("a schema");
        let fields = schema["properties"].as_object().expect("fields");
        assert_eq!(header.split(',').count(), fields.len());
        for (column, (name, doc)) in header.split(',').zip(RequestRow::FIELDS) {
            assert_eq!((column, fields[*name]["description"].as_str()), (*name, Some(*doc)));
        }
        assert_eq!(
            row,
            "a,3,w,0,0,completed,,0,0,0,0,1,2,3.5,5,6,,,9,,,p 0,\"d \"\"1\"\"\",0,0,2,8.5,3,7,gold,4,r-1\n"
        );
    }
}
