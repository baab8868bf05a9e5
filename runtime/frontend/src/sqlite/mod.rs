//! Tables of SQLite databases, out of a file's bytes.
//!
//! Rows are read in the order of their ids. There is no SQL, no index and no writing: a
//! table of a data set is read once, from its first row to its last. The format is
//! documented at <https://www.sqlite.org/fileformat2.html>.

mod columns;
mod pages;
mod record;

use pages::Pages;
pub(crate) use record::Field;

/// Whether a file that begins with these bytes is a database.
pub(crate) fn is_database(start: &[u8]) -> bool {
    start.starts_with(pages::MAGIC)
}

/// Calls `each` with these columns of every row of a table.
///
/// # Errors
/// When the bytes are no whole database, there is no such table or column, or `each` fails.
pub(crate) fn rows<const N: usize>(
    bytes: &[u8],
    table: &str,
    columns: [&str; N],
    mut each: impl FnMut([Field<'_>; N]) -> Result<(), String>,
) -> Result<(), String> {
    let pages = Pages::new(bytes)?;
    let (root, declaration) = find(&pages, table)?;
    let names = columns::names(&declaration);
    let mut places = [0; N];
    for (place, column) in places.iter_mut().zip(columns) {
        let found = names.iter().position(|name| name.eq_ignore_ascii_case(column));
        *place = found
            .ok_or_else(|| format!("table `{table}` has no column `{column}`: its columns are {}", names.join(", ")))?;
    }
    pages.cells(root, |payload| {
        let fields = fields(payload)?;
        // A row that is older than a column has no field for it.
        each(places.map(|place| fields.get(place).copied().unwrap_or(Field::Null)))
    })
}

/// The root page of a table, and its declaration.
fn find(pages: &Pages<'_>, table: &str) -> Result<(u32, String), String> {
    let (mut found, mut known) = (None, Vec::new());
    pages.cells(pages::SCHEMA_ROOT, |payload| {
        let fields = fields(payload)?;
        let [kind, name, _, root, declaration] = fields.as_slice() else {
            return Err("invalid database: its schema has no five columns".to_owned());
        };
        if kind.text() != Some("table") {
            return Ok(());
        }
        let name = name.text().unwrap_or_default();
        if name.eq_ignore_ascii_case(table)
            && let (Field::Integer(root), Some(declaration)) = (root, declaration.text())
            && let Ok(root) = u32::try_from(*root)
        {
            found = Some((root, declaration.to_owned()));
        } else {
            known.push(format!("`{name}`"));
        }
        Ok(())
    })?;
    found.ok_or_else(|| {
        let known = if known.is_empty() { "no tables".to_owned() } else { known.join(", ") };
        format!("there is no table `{table}`: the database has {known}")
    })
}

fn fields(payload: &[u8]) -> Result<Vec<Field<'_>>, String> {
    record::fields(payload).ok_or_else(|| "invalid database: a row is cut off".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Written by SQLite 3.40 with pages of 512 bytes, so that there are pages between the root
    /// and the rows, and chains behind long rows.
    const DATABASE: &[u8] = include_bytes!("../../testdata/rows.sqlite3");

    fn text(number: i64) -> String {
        let count = if number % 300 == 7 { number + 1 } else { number % 5 + 1 };
        format!("{number}-").repeat(count as usize)
    }

    #[test]
    fn rows_of_any_length_are_read_in_their_order() {
        let mut read = Vec::new();
        rows(DATABASE, "Rows", ["words", "NUMBER", "late"], |[words, number, late]| {
            assert_eq!(late, Field::Null);
            let Field::Integer(number) = number else { panic!("{number:?} is not a number") };
            read.push((words.text().expect("a text").to_owned(), number));
            Ok(())
        })
        .expect("SQLite wrote it");
        let wanted: Vec<_> = (0..1400).map(|row| (text(row), (row - 400) * row.pow(5))).collect();
        assert_eq!(read, wanted);
    }

    #[test]
    fn other_kinds_of_values_have_their_fields() {
        let mut read = Vec::new();
        rows(DATABASE, "kinds", ["value"], |[value]| {
            read.push(format!("{value:?}"));
            Ok(())
        })
        .expect("SQLite wrote it");
        assert_eq!(read, ["Null", "Other", "Bytes([0, 255])", "Bytes([])", "Integer(0)", "Integer(1)"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |bytes: &[u8], table: &str, column: &str| {
            rows(bytes, table, [column], |_| Ok(())).expect_err("it is wrong")
        };
        assert_eq!(said(b"", "rows", "words"), "expected a SQLite database");
        assert!(said(DATABASE, "none", "words").contains("there is no table `none`: the database has `rows`"));
        assert!(said(DATABASE, "rows", "none").contains("no column `none`: its columns are id, words, number"));
        assert!(said(DATABASE, "keyed", "key").contains("has no row ids"));
        assert!(said(&DATABASE[..DATABASE.len() / 2], "rows", "words").starts_with("invalid database: "));
        let refused = rows(DATABASE, "rows", ["words"], |_| Err("enough".to_owned()));
        assert_eq!(refused, Err("enough".to_owned()));
    }

    proptest! {
        /// Damage is an error or other rows, never a panic and never without end.
        #[test]
        fn damaged_databases_are_read_or_refused(
            changes in prop::collection::vec((0..DATABASE.len(), any::<u8>()), 1..40),
            early in prop::collection::vec((0..2048_usize, any::<u8>()), 0..10),
        ) {
            let mut bytes = DATABASE.to_vec();
            for (place, byte) in changes.into_iter().chain(early) {
                bytes[place] = byte;
            }
            _ = rows(&bytes, "rows", ["words", "number"], |_| Ok(()));
        }
    }
}
