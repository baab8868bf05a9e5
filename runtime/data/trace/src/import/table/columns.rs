//! The columns of a table.

/// The values of a column, one per row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    /// Texts.
    Texts(Vec<String>),
    /// Whole numbers.
    Counts(Vec<u64>),
    /// Other numbers; None if a row has no value.
    Numbers(Vec<Option<f64>>),
}

impl Cells {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Texts(cells) => cells.len(),
            Self::Counts(cells) => cells.len(),
            Self::Numbers(cells) => cells.len(),
        }
    }
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Name of the column: letters, digits, `_` and `.`.
    pub name: String,
    /// Values of the column. All columns of a table have the same number of values.
    pub cells: Cells,
}
