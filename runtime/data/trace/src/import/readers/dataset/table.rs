//! Reads tables row by row, and CSV with a header.

use std::io::BufRead;

use serde_json::{Map, Value};
use vcr_base::input::LineCap;

use crate::import::ImportError;
use crate::import::error::{Place, Problem};

pub(crate) trait RowSink {
    /// Adds a row. An invalid row is skipped if the import is lenient.
    fn add(&mut self, place: Place, row: &Map<String, Value>) -> Result<(), ImportError>;

    /// Refuses something that is not a row, or skips it if the import is lenient.
    fn refuse(&mut self, place: Place, problem: Problem) -> Result<(), ImportError>;
}

pub(crate) fn read_csv(reader: impl BufRead, name: &str, rows: &mut dyn RowSink) -> Result<(), ImportError> {
    let mut table = csv::Reader::from_reader(LineCap::new(reader));
    let unreadable = |error: csv::Error| Problem::new("", error.to_string()).at(name, Place::File);
    let header = table.headers().map_err(unreadable)?.clone();
    for (index, record) in table.records().enumerate() {
        let place = Place::Row(index as u64 + 1);
        match record {
            Ok(record) => {
                let cells = header.iter().zip(&record);
                let cells = cells.map(|(title, cell)| (title.trim().to_owned(), Value::String(cell.to_owned())));
                rows.add(place, &cells.collect())?;
            }
            Err(error) if matches!(error.kind(), csv::ErrorKind::Io(_)) => return Err(unreadable(error)),
            Err(error) => rows.refuse(place, Problem::new("", error.to_string()))?,
        }
    }
    Ok(())
}
