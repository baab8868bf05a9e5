//! Reads values of plan.yaml: a list may be a single value, a text a number; names may have dashes or underscores.

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error};
use serde_json::{Map, Value};

fn scalar<E: Error>(value: Value) -> Result<String, E> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(E::custom(format!("expected a text or a number, found {other}"))),
    }
}

/// Reads a text or a number.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::<Value>::deserialize(deserializer)?.map(scalar).transpose()
}

/// Reads one value or a list.
pub(crate) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Array(values) => values.into_iter().map(scalar).collect(),
        Value::Null => Ok(Vec::new()),
        value => scalar(value).map(|text| vec![text]),
    }
}

/// Reads one text or a list. As on the command line, a text may have several words separated by commas.
pub(crate) fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(list(deserializer)?.iter().flat_map(|text| text.split(',')).map(|word| word.trim().to_owned()).collect())
}

/// Reads a nested document: a map, or a text in JSON or YAML.
pub(crate) fn document<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Option::<Value>::deserialize(deserializer)? {
        Some(Value::String(text)) => Some(text),
        other => other.map(|value| value.to_string()),
    })
}

/// Reads `NAME=VALUE` texts: a map, or a list of such texts.
pub(crate) fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Object(values) => {
            values.into_iter().map(|(name, value)| Ok(format!("{name}={}", scalar::<D::Error>(value)?))).collect()
        }
        other => words(other).map_err(Error::custom),
    }
}

/// Reads one value or a list, of any type.
pub(crate) fn several<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let read = |value| serde_json::from_value(value).map_err(Error::custom);
    match Value::deserialize(deserializer)? {
        Value::Array(values) => values.into_iter().map(read).collect(),
        Value::Null => Ok(Vec::new()),
        value => read(value).map(|one| vec![one]),
    }
}

/// Replaces dashes in names by underscores.
pub(crate) fn underscored(map: Map<String, Value>) -> Result<Map<String, Value>, String> {
    let mut renamed = Map::new();
    for (name, value) in map {
        let own = name.replace('-', "_");
        if renamed.insert(own.clone(), value).is_some() {
            return Err(format!("`{own}` occurs twice"));
        }
    }
    Ok(renamed)
}
