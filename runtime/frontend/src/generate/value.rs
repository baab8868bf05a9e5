//! JSON values in the engines' protocol, and back.

use serde_json::Value as Json;
use vcr_wire::Value;

/// A JSON value as the engine takes it.
pub(crate) fn wire_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => (*value).into(),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => value.into(),
            (None, Some(value)) => Value::Int(value.into()),
            (None, None) => Value::F64(number.as_f64().unwrap_or(0.0)),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(values) => Value::Array(values.iter().map(wire_of).collect()),
        Json::Object(pairs) => {
            Value::Map(pairs.iter().map(|(key, value)| (key.as_str().into(), wire_of(value))).collect())
        }
    }
}

/// An engine's value as JSON.
pub(crate) fn json_of(value: &Value) -> Json {
    serde_json::to_value(value).unwrap_or(Json::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_way_to_the_engine_and_back() {
        let json = serde_json::json!({"a": [1, -2, 0.5, true, null, "x"], "b": {"c": []}});
        assert_eq!(json_of(&wire_of(&json)), json);
    }
}
