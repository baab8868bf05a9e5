//! Data sets that are tables: CSV with a header, and Parquet.

use std::io::BufRead;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use serde_json::{Map, Value};

use super::Dataset;
use crate::ImportError;
use crate::error::{Place, Problem};

pub(super) fn read_csv(reader: impl BufRead, name: &str, rows: &mut Dataset<'_, '_>) -> Result<(), ImportError> {
    let mut table = csv::Reader::from_reader(reader);
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

/// Reads Parquet from a stream, which must be held whole: its index is at its end.
pub(super) fn read_parquet_stream(
    mut reader: impl BufRead,
    name: &str,
    rows: &mut Dataset<'_, '_>,
) -> Result<(), ImportError> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(|source| ImportError::Read { name: name.to_owned(), source })?;
    read_parquet(Bytes::from(bytes), name, rows)
}

pub(super) fn read_parquet(
    chunks: impl ChunkReader + 'static,
    name: &str,
    rows: &mut Dataset<'_, '_>,
) -> Result<(), ImportError> {
    let unreadable = |error: ParquetError| Problem::new("", error.to_string()).at(name, Place::File);
    let reader = SerializedFileReader::new(chunks).map_err(unreadable)?;
    let table = reader.get_row_iter(None).map_err(unreadable)?;
    for (index, row) in table.enumerate() {
        let place = Place::Row(index as u64 + 1);
        // The reader cannot go on behind a page that it cannot read.
        let row = row.map_err(|error| Problem::new("", error.to_string()).at(name, place.clone()))?;
        let cells = row.get_column_iter().map(|(title, cell)| (title.clone(), cell.to_json_value()));
        rows.add(place, &cells.collect::<Map<String, Value>>())?;
    }
    Ok(())
}
