//! Reads and writes Parquet tables.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{ConvertedType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use crate::import::ImportError;
use crate::import::error::{Place, Problem};
use crate::import::readers::dataset::table::RowSink;
use crate::import::table::columns::{Cells, Column};

/// Maximum number of rows of a table. Equal rows take little space in a file, but not in memory.
const ROWS_MAX: u64 = 5_000_000;

fn open(path: &Path, name: &str) -> Result<File, ImportError> {
    File::open(path).map_err(|source| ImportError::Read { name: name.to_owned(), source })
}

pub(crate) fn columns(path: &Path, name: &str) -> Result<Vec<String>, ImportError> {
    let unreadable = |error: ParquetError| Problem::new("", error.to_string()).at(name, Place::File);
    let reader = SerializedFileReader::new(open(path, name)?).map_err(unreadable)?;
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    Ok(schema.root_schema().get_fields().iter().map(|field| field.name().to_owned()).collect())
}

pub(crate) fn read_file(path: &Path, name: &str, rows: &mut dyn RowSink) -> Result<(), ImportError> {
    read(open(path, name)?, name, rows)
}

/// Reads a stream. It is read into memory completely, because a Parquet file has its index at the end.
pub(crate) fn read_stream(mut reader: impl BufRead, name: &str, rows: &mut dyn RowSink) -> Result<(), ImportError> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(|source| ImportError::Read { name: name.to_owned(), source })?;
    read(Bytes::from(bytes), name, rows)
}

fn read(chunks: impl ChunkReader + 'static, name: &str, rows: &mut dyn RowSink) -> Result<(), ImportError> {
    let unreadable = |error: ParquetError| Problem::new("", error.to_string()).at(name, Place::File);
    let reader = SerializedFileReader::new(chunks).map_err(unreadable)?;
    let too_many = || {
        let problem = format!("invalid table: expected at most {ROWS_MAX} rows; split it");
        Problem::new("", problem).at(name, Place::File)
    };
    if reader.metadata().file_metadata().num_rows() > ROWS_MAX as i64 {
        return Err(too_many());
    }
    let table = reader.get_row_iter(None).map_err(unreadable)?;
    for (index, row) in table.enumerate() {
        // The number of rows in the file's index may be wrong.
        if index as u64 >= ROWS_MAX {
            return Err(too_many());
        }
        let place = Place::Row(index as u64 + 1);
        // The reader cannot continue after an unreadable page.
        let row = row.map_err(|error| Problem::new("", error.to_string()).at(name, place.clone()))?;
        let cells = row.get_column_iter().map(|(title, cell)| (title.clone(), cell.to_json_value()));
        rows.add(place, &cells.collect::<Map<String, Value>>())?;
    }
    Ok(())
}

pub(crate) fn write(out: &mut (dyn Write + Send), columns: &[Column]) -> io::Result<()> {
    write_columns(out, columns).map_err(io::Error::other)
}

fn write_columns(out: &mut (dyn Write + Send), columns: &[Column]) -> Result<(), ParquetError> {
    let fields = columns.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    let schema = Type::group_type_builder("rows").with_fields(fields).build()?;
    let mut writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::default())?;
    let mut group = writer.next_row_group()?;
    for column in columns {
        write_column(&mut group, &column.cells)?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}

/// The type of a column. The column's name may be any text.
fn field(column: &Column) -> Result<Arc<Type>, ParquetError> {
    let (kind, repetition) = match &column.cells {
        Cells::Texts(_) => (PhysicalType::BYTE_ARRAY, Repetition::REQUIRED),
        Cells::Counts(_) => (PhysicalType::INT64, Repetition::REQUIRED),
        Cells::Numbers(_) => (PhysicalType::DOUBLE, Repetition::OPTIONAL),
    };
    let text = if matches!(column.cells, Cells::Texts(_)) { ConvertedType::UTF8 } else { ConvertedType::NONE };
    let field = Type::primitive_type_builder(&column.name, kind);
    field.with_repetition(repetition).with_converted_type(text).build().map(Arc::new)
}

fn write_column<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    cells: &Cells,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("the schema has fewer columns than the table".to_owned()));
    };
    match cells {
        Cells::Texts(cells) => {
            let values: Vec<ByteArray> = cells.iter().map(|text| ByteArray::from(text.as_str())).collect();
            column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
        }
        Cells::Counts(cells) => {
            let values: Vec<i64> = cells.iter().map(|&count| i64::try_from(count).unwrap_or(i64::MAX)).collect();
            column.typed::<Int64Type>().write_batch(&values, None, None)?;
        }
        Cells::Numbers(cells) => {
            let values: Vec<f64> = cells.iter().copied().flatten().collect();
            let levels: Vec<i16> = cells.iter().map(|number| i16::from(number.is_some())).collect();
            column.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
        }
    }
    column.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(u64);

    impl RowSink for Count {
        fn add(&mut self, _: Place, _: &Map<String, Value>) -> Result<(), ImportError> {
            self.0 += 1;
            Ok(())
        }

        fn refuse(&mut self, place: Place, problem: Problem) -> Result<(), ImportError> {
            Err(problem.at("rows", place))
        }
    }

    fn counted(rows: u64) -> Result<u64, String> {
        let mut table = Vec::new();
        let cells = Cells::Counts(vec![1; usize::try_from(rows).expect("it fits")]);
        write(&mut table, &[Column { name: "n".to_owned(), cells }]).expect("memory takes it");
        let mut count = Count(0);
        let read = read_stream(&table[..], "rows", &mut count);
        read.map(|()| count.0).map_err(|error| error.to_string())
    }

    #[test]
    fn rows_are_limited_however_small_their_file_is() {
        assert_eq!(counted(1000), Ok(1000));
        let error = counted(ROWS_MAX + 1).expect_err("too many");
        assert!(error.contains("expected at most 5000000 rows; split it"), "{error}");
    }
}
