//! Writes tables for other tools: CSV, JSON, Parquet.

pub(crate) mod columns;

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};

pub use columns::{Cells, Column};

/// The format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// Comma-separated values under a header.
    Csv,
    /// An array with one object per row.
    Json,
    /// Apache Parquet.
    Parquet,
}

impl TableFormat {
    /// The format for a file name; None if the suffix is unknown.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "json" => Some(Self::Json),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }

    /// Whether this build can write the format.
    #[must_use]
    pub fn is_built(self) -> bool {
        self != Self::Parquet || cfg!(feature = "formats")
    }
}

/// Writes a table.
///
/// # Errors
/// If the writer fails.
pub fn write(out: &mut (dyn Write + Send), columns: &[Column], format: TableFormat) -> io::Result<()> {
    match format {
        TableFormat::Csv => write_csv(out, columns),
        TableFormat::Json => write_json(out, columns),
        TableFormat::Parquet => crate::import::parquet::write(out, columns),
    }
}

fn rows(columns: &[Column]) -> usize {
    columns.first().map_or(0, |column| column.cells.len())
}

fn write_csv(out: &mut (dyn Write + Send), columns: &[Column]) -> io::Result<()> {
    let mut csv = csv::Writer::from_writer(&mut *out);
    csv.write_record(columns.iter().map(|column| &column.name))?;
    for row in 0..rows(columns) {
        csv.write_record(columns.iter().map(|column| match &column.cells {
            Cells::Texts(cells) => csv_text(cells[row].clone()),
            Cells::Counts(cells) => cells[row].to_string(),
            Cells::Numbers(cells) => cells[row].map(|number| number.to_string()).unwrap_or_default(),
        }))?;
    }
    csv.flush()
}

/// Makes a text a cell of CSV. Spreadsheets run a cell as a formula if it starts with certain characters, so an
/// apostrophe is put before such a text. A number is left unchanged.
pub(crate) fn csv_text(text: String) -> String {
    match text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err() {
        true => format!("'{text}"),
        false => text,
    }
}

/// The rows, each as an object. Its keys are in the order of the columns.
struct Rows<'a>(&'a [Column]);

struct Row<'a>(&'a [Column], usize);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(rows(self.0)))?;
        for row in 0..rows(self.0) {
            seq.serialize_element(&Row(self.0, row))?;
        }
        seq.end()
    }
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for column in self.0 {
            match &column.cells {
                Cells::Texts(cells) => map.serialize_entry(&column.name, &cells[self.1])?,
                Cells::Counts(cells) => map.serialize_entry(&column.name, &cells[self.1])?,
                Cells::Numbers(cells) => map.serialize_entry(&column.name, &cells[self.1])?,
            }
        }
        map.end()
    }
}

fn write_json(out: &mut (dyn Write + Send), columns: &[Column]) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &Rows(columns))?;
    writeln!(out)
}

#[cfg(all(test, feature = "formats"))]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};

    fn columns() -> Vec<Column> {
        let column = |name: &str, cells| Column { name: name.to_owned(), cells };
        vec![
            column("router", Cells::Texts(vec!["a,b".to_owned(), "c".to_owned()])),
            column("n", Cells::Counts(vec![1, 20])),
            column("mean", Cells::Numbers(vec![Some(0.5), None])),
        ]
    }

    fn written(format: TableFormat) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, &columns(), format).expect("a vector takes everything");
        out
    }

    #[test]
    fn csv_has_a_header_and_quotes() {
        let text = String::from_utf8(written(TableFormat::Csv)).expect("text");
        assert_eq!(text, "router,n,mean\n\"a,b\",1,0.5\nc,20,\n");
    }

    #[test]
    fn texts_of_csv_are_no_formulas() {
        for (text, cell) in [
            ("=1+1", "'=1+1"),
            ("+a", "'+a"),
            ("-a", "'-a"),
            ("@a", "'@a"),
            ("\ta", "'\ta"),
            ("-1.5", "-1.5"),
            ("a=1", "a=1"),
            ("", ""),
        ] {
            assert_eq!(csv_text(text.to_owned()), cell);
        }
        let column = |name: &str, cells| Column { name: name.to_owned(), cells };
        let columns =
            [column("id", Cells::Texts(vec!["=A1".to_owned()])), column("gap", Cells::Numbers(vec![Some(-0.5)]))];
        let mut out = Vec::new();
        write(&mut out, &columns, TableFormat::Csv).expect("a vector takes everything");
        assert_eq!(String::from_utf8_lossy(&out), "id,gap\n'=A1,-0.5\n");
    }

    #[test]
    fn json_keeps_the_order_of_the_columns() {
        let text = String::from_utf8(written(TableFormat::Json)).expect("text");
        let compact: String = text.split_whitespace().collect();
        assert_eq!(compact, r#"[{"router":"a,b","n":1,"mean":0.5},{"router":"c","n":20,"mean":null}]"#);
    }

    #[test]
    fn parquet_can_be_read_again() {
        let reader = SerializedFileReader::new(bytes::Bytes::from(written(TableFormat::Parquet))).expect("a table");
        let rows: Vec<String> = reader
            .get_row_iter(None)
            .expect("rows")
            .map(|row| row.expect("a row").to_json_value().to_string())
            .collect();
        let expected = [r#"{"mean":0.5,"n":1,"router":"a,b"}"#, r#"{"mean":null,"n":20,"router":"c"}"#];
        assert_eq!(rows, expected);
    }
}
