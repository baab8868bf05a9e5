//! Values of plan.yaml: a list or one value, texts or numbers; names with dashes or underscores.

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error};
use serde_json::{Map, Value};

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

/// One text or several; each may hold several words, separated by commas as on the command line.
pub(crate) fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(list(deserializer)?.iter().flat_map(|text| text.split(',')).map(|word| word.trim().to_owned()).collect())
}

/// A nested document, as a map or as its text.
pub(crate) fn document<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Option::<Value>::deserialize(deserializer)? {
        Some(Value::String(text)) => Some(text),
        other => other.map(|value| value.to_string()),
    })
}

/// `NAME=VALUE`, as a map or as a list of such texts.
pub(crate) fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Object(values) => {
            values.into_iter().map(|(name, value)| Ok(format!("{name}={}", scalar::<D::Error>(value)?))).collect()
        }
        other => words(other).map_err(Error::custom),
    }
}

/// One value or several, of any kind.
pub(crate) fn several<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let read = |value| serde_json::from_value(value).map_err(Error::custom);
    match Value::deserialize(deserializer)? {
        Value::Array(values) => values.into_iter().map(read).collect(),
        Value::Null => Ok(Vec::new()),
        value => read(value).map(|one| vec![one]),
    }
}

/// Names with underscores where they have dashes, as options do.
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
