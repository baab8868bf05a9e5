//! The fields of another tool's file. Tracks which fields were not read.

use serde_json::{Map, Value};

/// A number, or a normal distribution.
pub(super) struct Spread {
    pub(super) mean: f64,
    /// The standard deviation; 0 for a single number.
    pub(super) std: f64,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
}

/// The fields of a map. Fields that are not taken have no effect on the workload.
pub(super) struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The fields of a value. `path` is the value's place in the file; empty for the whole file.
    pub(super) fn of(path: &str, value: &Value) -> Result<Self, String> {
        match value.as_object() {
            Some(map) => Ok(Self { path: path.to_owned(), map: map.clone() }),
            None => {
                Err(format!("{}expected fields", if path.is_empty() { String::new() } else { format!("{path}: ") }))
            }
        }
    }

    pub(super) fn place(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Adds the fields that were not taken to `ignored`.
    pub(super) fn finish(&self, ignored: &mut Vec<String>) {
        let mut left: Vec<String> = self.map.keys().map(|key| self.place(key)).collect();
        left.sort();
        ignored.extend(left);
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key).filter(|value| !value.is_null())
    }

    pub(super) fn set(&mut self, key: &str, value: Value) {
        self.map.insert(key.to_owned(), value);
    }

    pub(super) fn is_map(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_object)
    }

    pub(super) fn spread(&mut self, key: &str) -> Result<Option<Spread>, String> {
        if !self.is_map(key) {
            return Ok(self.number(key)?.map(|mean| Spread { mean, std: 0.0, min: None, max: None }));
        }
        let Some(mut fields) = self.fields(key)? else { return Ok(None) };
        let mean = fields.needed_number("mean")?;
        let std = fields.number("stddev")?.unwrap_or(0.0);
        let (min, max) = (fields.number("min")?, fields.number("max")?);
        let mut left = Vec::new();
        fields.finish(&mut left);
        match left.first() {
            Some(unknown) => Err(format!("{unknown}: is not supported: expected mean, stddev, min and max")),
            None => Ok(Some(Spread { mean, std, min, max })),
        }
    }

    pub(super) fn number(&mut self, key: &str) -> Result<Option<f64>, String> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number >= 0.0);
        number.map(Some).ok_or_else(|| format!("{}: expected a number of at least 0, found {value}", self.place(key)))
    }

    pub(super) fn whole(&mut self, key: &str) -> Result<Option<u64>, String> {
        let number = self.number(key)?;
        match number.filter(|number| number.fract() != 0.0 || *number > 1e15) {
            Some(number) => Err(format!("{}: expected a whole number, found {number}", self.place(key))),
            None => Ok(number.map(|number| number as u64)),
        }
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let text = value.as_str().map(str::to_owned);
        text.map(Some).ok_or_else(|| format!("{}: expected a text, found {value}", self.place(key)))
    }

    /// Takes a field that is a map of fields.
    pub(super) fn fields(&mut self, key: &str) -> Result<Option<Self>, String> {
        let place = self.place(key);
        self.take(key).map(|value| Self::of(&place, &value)).transpose()
    }

    /// Takes a field that is a list of maps.
    pub(super) fn list(&mut self, key: &str) -> Result<Vec<Self>, String> {
        let Some(value) = self.take(key) else { return Ok(Vec::new()) };
        let place = self.place(key);
        let Some(items) = value.as_array() else { return Err(format!("{place}: expected a list")) };
        items.iter().enumerate().map(|(index, item)| Self::of(&format!("{place}[{index}]"), item)).collect()
    }

    /// Fails if the value of a required field is missing.
    pub(super) fn needed<T>(&self, key: &str, value: Option<T>) -> Result<T, String> {
        value.ok_or_else(|| format!("{}: is missing", self.place(key)))
    }

    pub(super) fn needed_number(&mut self, key: &str) -> Result<f64, String> {
        let number = self.number(key)?;
        self.needed(key, number)
    }

    pub(super) fn into_numbers(self) -> Result<Vec<(String, f64)>, String> {
        let number = |(key, value): (&String, &Value)| {
            let number = value.as_f64().ok_or_else(|| format!("{}: expected a number", self.place(key)))?;
            Ok((key.clone(), number))
        };
        self.map.iter().map(number).collect()
    }
}
