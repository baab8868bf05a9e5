//! JSON values in the engines' protocol, and back.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
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

/// The same of the text of a JSON value, with the keys of objects in their order.
pub(crate) fn wire_of_text(text: &str) -> Value {
    serde_json::from_str::<Ordered>(text).map_or(Value::Nil, |ordered| ordered.0)
}

/// A JSON value in the order of its text.
struct Ordered(Value);

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::F64(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Ordered(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some((key, Ordered(value))) = map.next_entry::<String, Ordered>()? {
            pairs.push((key.as_str().into(), value));
        }
        Ok(Value::Map(pairs))
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

    #[test]
    fn the_order_of_a_text_stays() {
        let text = r#"{"b":[1,-2,0.5,true,null,"x"],"a":{"d":1,"c":2}}"#;
        assert_eq!(serde_json::to_string(&wire_of_text(text)).expect("it is JSON"), text);
    }
}
