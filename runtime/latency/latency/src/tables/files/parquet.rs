//! Reads Parquet files by column.

use std::fs::File;
use std::path::Path;

use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::tables::error::TablesError;
use crate::tables::files::frame::{Frame, Values};

/// Maximum number of rows of a file: a hundred times those of the largest known file.
const ROWS_MAX: usize = 10_000_000;

/// Reads a file.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn read(path: &Path) -> Result<Frame, TablesError> {
    let file = File::open(path).map_err(|error| TablesError::file(path, format!("cannot open it: {error}")))?;
    let read = columns(file);
    let (rows, columns) = read.map_err(|error| TablesError::file(path, format!("expected a Parquet file: {error}")))?;
    Ok(Frame { path: path.to_owned(), rows, columns })
}

/// Reads the number of rows and the columns, without nested and binary columns.
fn columns(file: File) -> Result<(usize, Vec<(String, Values)>), ParquetError> {
    let reader = SerializedFileReader::new(file)?;
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let rows = usize::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(usize::MAX);
    if rows > ROWS_MAX {
        return Err(ParquetError::General(format!("it has {rows} rows: expected up to {ROWS_MAX}")));
    }
    let mut columns = Vec::new();
    for (index, column) in schema.columns().iter().enumerate() {
        if column.max_rep_level() > 0 || column.max_def_level() > 1 {
            continue;
        }
        let is_optional = column.max_def_level() == 1;
        let mut numbers = Vec::new();
        let mut texts = Interner::default();
        for group in 0..reader.num_row_groups() {
            let group = reader.get_row_group(group)?;
            let count = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
            match group.get_column_reader(index)? {
                ColumnReader::Int32ColumnReader(r) => numbers.extend(all(r, count, is_optional)?.map(f64::from)),
                ColumnReader::Int64ColumnReader(r) => numbers.extend(all(r, count, is_optional)?.map(|n| n as f64)),
                ColumnReader::FloatColumnReader(r) => numbers.extend(all(r, count, is_optional)?.map(f64::from)),
                ColumnReader::DoubleColumnReader(r) => numbers.extend(all(r, count, is_optional)?),
                ColumnReader::ByteArrayColumnReader(r) => {
                    all(r, count, is_optional)?.for_each(|text| texts.add(&text));
                }
                _ => {}
            }
        }
        let values = match column.physical_type() {
            Physical::BYTE_ARRAY => Values::Texts { codes: texts.codes, names: texts.names },
            Physical::INT32 | Physical::INT64 | Physical::FLOAT | Physical::DOUBLE => Values::Numbers(numbers),
            _ => continue,
        };
        let read = match &values {
            Values::Numbers(numbers) => numbers.len(),
            Values::Texts { codes, .. } => codes.len(),
        };
        if read != rows {
            return Err(ParquetError::General(format!("column `{}` has {read} of {rows} rows", column.name())));
        }
        columns.push((column.name().to_owned(), values));
    }
    Ok((rows, columns))
}

/// All values of one column in a row group. Null values become the type's default.
fn all<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    count: usize,
    is_optional: bool,
) -> Result<impl Iterator<Item = T::T>, ParquetError> {
    let (mut values, mut levels) = (Vec::with_capacity(count), Vec::new());
    let mut left = count;
    while left > 0 {
        let (records, _, _) = reader.read_records(left, is_optional.then_some(&mut levels), None, &mut values)?;
        if records == 0 {
            return Err(ParquetError::General(format!("it breaks off {left} rows before its end")));
        }
        left -= records;
    }
    if !is_optional {
        levels.resize(values.len(), 1);
    }
    let mut values = values.into_iter();
    Ok(levels
        .into_iter()
        .map(move |level| if level == 0 { T::T::default() } else { values.next().unwrap_or_default() }))
}

/// Stores texts as indices, because there are few distinct texts among many rows.
#[derive(Default)]
struct Interner {
    codes: Vec<u32>,
    names: Vec<String>,
}

impl Interner {
    fn add(&mut self, text: &ByteArray) {
        let text = text.as_utf8().unwrap_or_default();
        let last = self.codes.last().map(|&code| code as usize);
        let known = last.filter(|&code| self.names[code] == text);
        let code = known.or_else(|| self.names.iter().position(|name| *name == text)).unwrap_or_else(|| {
            self.names.push(text.to_owned());
            self.names.len() - 1
        });
        self.codes.push(code as u32);
    }
}
