//! Converts JSON values to the engines' protocol and back.

use serde::Deserialize;
use serde_json::Value as Json;
use vcr_wire::Value;

pub(crate) fn wire_of(json: &Json) -> Value {
    Value::deserialize(json).unwrap_or(Value::Nil)
}

/// Converts a JSON text. The keys of objects keep their order.
pub(crate) fn wire_of_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Nil)
}

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
