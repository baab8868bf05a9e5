//! Fields of a JSON object. Errors name the model and the field.

use serde_json::{Map, Value};

use crate::error::ModelError;

/// An object of a model's configuration.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub(crate) place: &'a str,
    pub(crate) map: &'a Map<String, Value>,
}

/// Maximum value of a number in a model's shape. The product of three such numbers fits into 64 bits.
const MAX_COUNT: u64 = 1 << 27;

/// Maximum number of layers, so that a wrong number cannot exhaust memory.
const MAX_LAYERS: u64 = 4_096;

impl<'a> Fields<'a> {
    /// The first of these fields that is present and not null.
    fn find(self, names: &[&'a str]) -> Option<(&'a str, &'a Value)> {
        names.iter().find_map(|name| Some((*name, self.map.get(*name).filter(|value| !value.is_null())?)))
    }

    pub(crate) fn wrong(self, field: &str, value: &Value, expected: &str) -> ModelError {
        let value = value.to_string().chars().take(80).collect();
        ModelError::Field {
            place: self.place.to_owned(),
            field: field.to_owned(),
            value,
            expected: expected.to_owned(),
        }
    }

    pub(crate) fn missing(self, field: &str) -> ModelError {
        ModelError::Missing { place: self.place.to_owned(), field: field.to_owned() }
    }

    /// The number in the first of these fields that is present. 0 counts as absent.
    pub(crate) fn count(self, names: &[&'a str]) -> Result<Option<u64>, ModelError> {
        let Some((name, value)) = self.find(names) else { return Ok(None) };
        match value.as_u64() {
            Some(count @ 0..=MAX_COUNT) => Ok(Some(count).filter(|count| *count > 0)),
            _ => Err(self.wrong(name, value, &format!("a whole number from 0 to {MAX_COUNT}"))),
        }
    }

    pub(crate) fn required(self, names: &[&'a str]) -> Result<u64, ModelError> {
        self.count(names)?.ok_or_else(|| self.missing(names[0]))
    }

    pub(crate) fn layer_count(self) -> Result<u64, ModelError> {
        let field = "num_hidden_layers";
        let layers = self.required(&[field])?;
        if layers > MAX_LAYERS {
            return Err(self.wrong(field, &layers.into(), &format!("at most {MAX_LAYERS}")));
        }
        Ok(layers)
    }

    pub(crate) fn flag(self, name: &str) -> bool {
        self.map.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    pub(crate) fn text(self, names: &[&'a str]) -> Option<&'a str> {
        self.find(names).and_then(|(_, value)| value.as_str())
    }

    pub(crate) fn object(self, name: &'a str) -> Option<&'a Map<String, Value>> {
        self.map.get(name).and_then(Value::as_object)
    }

    /// A list with one item for each of `layers` layers.
    pub(crate) fn by_layer(self, name: &'a str, layers: u64) -> Result<Option<&'a [Value]>, ModelError> {
        let Some((name, value)) = self.find(&[name]) else { return Ok(None) };
        match value.as_array() {
            Some(items) if items.len() as u64 == layers => Ok(Some(items)),
            Some(items) => {
                let expected = format!("an item for each of {layers} layers");
                Err(self.wrong(name, &Value::from(format!("a list of {}", items.len())), &expected))
            }
            None => Err(self.wrong(name, value, "a list")),
        }
    }
}
