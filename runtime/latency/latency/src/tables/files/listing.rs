//! Summarizes the contents of a table's file for people.

use crate::tables::error::TablesError;
use crate::tables::files::frame::Values;
use crate::tables::files::package::TableFile;
use crate::tables::files::parquet;

/// Columns that describe the measurement: they have the same value in every row, or say where the row comes from.
const ABOUT: &[&str] = &["framework", "version", "device", "op_name", "beam_width"];

/// A column's values.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnRange {
    /// Numbers: minimum and maximum.
    Numbers(f64, f64),
    /// Distinct texts in order.
    Texts(Vec<String>),
}

/// A table's rows and columns.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSummary {
    pub rows: usize,
    /// Columns in the file's order, without the columns that describe the measurement.
    pub columns: Vec<(String, ColumnRange)>,
}

/// Reads the rows and ranges of a table's file.
///
/// # Errors
/// If it cannot be read.
pub fn summarize(table: &TableFile) -> Result<TableSummary, TablesError> {
    let frame = parquet::read(&table.path)?;
    let columns = frame.columns.into_iter().filter(|(name, _)| !ABOUT.contains(&name.as_str()));
    let columns = columns.map(|(name, values)| {
        let range = match values {
            Values::Numbers(numbers) => {
                let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
                ColumnRange::Numbers(least, numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max))
            }
            Values::Texts { mut names, .. } => {
                names.sort();
                ColumnRange::Texts(names)
            }
        };
        (name, range)
    });
    Ok(TableSummary { rows: frame.rows, columns: columns.collect() })
}
