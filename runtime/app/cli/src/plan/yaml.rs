//! Values of plan.yaml: a list or one value, texts or numbers.

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;

fn scalar<E: Error>(value: Value) -> Result<String, E> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(E::custom(format!("expected a text or a number, found {other}"))),
    }
}

/// A text or a number.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::<Value>::deserialize(deserializer)?.map(scalar).transpose()
}

/// One value or several.
pub(crate) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Array(values) => values.into_iter().map(scalar).collect(),
        Value::Null => Ok(Vec::new()),
        value => scalar(value).map(|text| vec![text]),
    }
}

/// `NAME=VALUE`, as a map or as a list of such texts.
pub(crate) fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Object(values) => {
            values.into_iter().map(|(name, value)| Ok(format!("{name}={}", scalar::<D::Error>(value)?))).collect()
        }
        Value::Array(values) => values.into_iter().map(scalar).collect(),
        value => scalar(value).map(|text| vec![text]),
    }
}
