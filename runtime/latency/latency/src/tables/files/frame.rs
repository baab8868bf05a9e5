//! The columns of a table's file.

use std::path::PathBuf;

use crate::tables::error::TablesError;

#[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "only the reader makes them"))]
#[derive(Clone, Debug)]
pub(crate) enum Values {
    /// Numbers. Whole numbers are exact up to 2^53.
    Numbers(Vec<f64>),
    /// Texts. Each is stored as an index into the distinct texts.
    Texts {
        /// For each row, the index of its text.
        codes: Vec<u32>,
        /// Distinct texts in order of appearance.
        names: Vec<String>,
    },
}

/// The rows of a file, by column.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) path: PathBuf,
    pub(crate) rows: usize,
    pub(crate) columns: Vec<(String, Values)>,
}

#[derive(Clone, Copy)]
pub(crate) struct Texts<'a> {
    codes: &'a [u32],
    names: &'a [String],
}

impl<'a> Texts<'a> {
    pub(crate) fn at(&self, row: usize) -> &'a str {
        &self.names[self.codes[row] as usize]
    }

    /// Returns a test whether a row has the text `wanted`.
    pub(crate) fn is(&self, wanted: &str) -> impl Fn(usize) -> bool + use<'a> {
        let code = self.names.iter().position(|name| name == wanted).map(|code| code as u32);
        let codes = self.codes;
        move |row| Some(codes[row]) == code
    }
}

impl Frame {
    fn column(&self, name: &str) -> Option<&Values> {
        self.columns.iter().find(|(column, _)| column == name).map(|(_, values)| values)
    }

    fn missing(&self, name: &str, kind: &str) -> TablesError {
        let known: Vec<&str> = self.columns.iter().map(|(column, _)| column.as_str()).collect();
        TablesError::file(&self.path, format!("expected a column `{name}` of {kind}; it has {}", known.join(", ")))
    }

    /// A column of numbers.
    ///
    /// # Errors
    /// If there is no column with that name.
    pub(crate) fn numbers(&self, name: &str) -> Result<&[f64], TablesError> {
        match self.column(name) {
            Some(Values::Numbers(numbers)) => Ok(numbers),
            _ => Err(self.missing(name, "numbers")),
        }
    }

    /// A column of whole numbers. Zeros if the column is absent.
    ///
    /// # Errors
    /// If a value is not a whole number of 32 bits.
    pub(crate) fn keys_or_zero(&self, name: &str) -> Result<Vec<u32>, TablesError> {
        if self.column(name).is_none() { Ok(vec![0; self.rows]) } else { self.keys(name) }
    }

    /// A column of whole numbers.
    ///
    /// # Errors
    /// If there is no column with that name, or a value is not a whole number of 32 bits.
    pub(crate) fn keys(&self, name: &str) -> Result<Vec<u32>, TablesError> {
        let wrong = |row: usize, value: f64| {
            let reason = format!("row {}: `{name}` is {value}: expected a whole number of 32 bits", row + 1);
            TablesError::file(&self.path, reason)
        };
        let numbers = self.numbers(name)?.iter().enumerate();
        numbers
            .map(|(row, &value)| {
                let is_key = (0.0..=f64::from(u32::MAX)).contains(&value) && value.fract() == 0.0;
                if is_key { Ok(value as u32) } else { Err(wrong(row, value)) }
            })
            .collect()
    }

    /// A column of texts.
    ///
    /// # Errors
    /// If there is no column with that name.
    pub(crate) fn texts(&self, name: &str) -> Result<Texts<'_>, TablesError> {
        self.texts_if_any(name).ok_or_else(|| self.missing(name, "texts"))
    }

    /// A column of texts. None if the column is absent.
    pub(crate) fn texts_if_any(&self, name: &str) -> Option<Texts<'_>> {
        match self.column(name) {
            Some(Values::Texts { codes, names }) => Some(Texts { codes, names }),
            _ => None,
        }
    }

    /// The column `latency`, in nanoseconds.
    ///
    /// # Errors
    /// If it is absent, or a value is not a time of up to an hour.
    pub(crate) fn latencies_ns(&self) -> Result<Vec<f64>, TablesError> {
        const HOUR_MS: f64 = 3_600_000.0;
        let numbers = self.numbers("latency")?.iter().enumerate();
        numbers
            .map(|(row, &ms)| {
                if (0.0..=HOUR_MS).contains(&ms) {
                    return Ok(ms * 1e6);
                }
                let reason = format!("row {}: `latency` is {ms}: expected milliseconds from 0 to an hour", row + 1);
                Err(TablesError::file(&self.path, reason))
            })
            .collect()
    }
}
