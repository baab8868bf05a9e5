//! Keywords of schemas, and that values fit them.

use super::*;

/// Texts for many seeds, with as much room as there is.
fn values(schema: &Value) -> Vec<Value> {
    documents(schema)
}

#[test]
fn keywords_of_objects_are_followed() {
    let record = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
    let all = values(&record);
    assert!(all.iter().all(|value| value.as_object().expect("a record").values().all(Value::is_i64)));
    assert!(all.iter().any(|value| value.as_object().is_some_and(|record| record.len() > 1)));
    let keyed = json!({ "type": "object", "propertyNames": { "enum": ["a", "b"] }, "additionalProperties": { "type": "null" } });
    for value in values(&keyed) {
        assert!(value.as_object().expect("a record").keys().all(|key| ["a", "b"].contains(&key.as_str())), "{value}");
    }
    let counted = json!({ "type": "object", "minProperties": 5, "maxProperties": 6, "patternProperties": { "^x-[0-9]{3}$": { "type": "boolean" } }, "additionalProperties": false });
    for value in values(&counted) {
        let object = value.as_object().expect("an object");
        assert!((5..=6).contains(&object.len()), "{value}");
        assert!(
            object.iter().all(|(key, value)| key.starts_with("x-") && key.len() == 5 && value.is_boolean()),
            "{value}"
        );
    }
    let undescribed = json!({ "type": "object", "properties": { "a": { "type": "null" } }, "required": ["a", "b"] });
    assert!(values(&undescribed).iter().all(|value| value.get("b").is_some()));
    let dependent = json!({ "properties": { "a": { "const": 1 }, "b": { "const": 2 } }, "required": ["a"], "dependentRequired": { "a": ["b"] } });
    assert!(values(&dependent).iter().all(|value| value["b"] == 2));
    let parts = json!({ "allOf": [
        { "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] },
        { "$ref": "#/$defs/B" }
    ], "properties": { "a": { "maxLength": 3, "minLength": 3 } }, "$defs": { "B": { "properties": { "b": { "type": "integer" } }, "required": ["b"] } } });
    assert!(
        values(&parts).iter().all(|value| value["a"].as_str().is_some_and(|a| a.len() == 3) && value["b"].is_i64())
    );
}

#[test]
fn keywords_of_arrays_are_followed() {
    let tuple = json!({ "type": "array", "prefixItems": [{ "type": "string" }, { "type": "number" }] });
    for value in values(&tuple) {
        let items = value.as_array().expect("a list");
        assert!(items.len() == 2 && items[0].is_string() && items[1].is_number(), "{value}");
    }
    let older = json!({ "type": "array", "items": [{ "type": "null" }], "additionalItems": { "type": "boolean" }, "minItems": 3 });
    for value in values(&older) {
        let items = value.as_array().expect("a list");
        assert!(items.len() >= 3 && items[0].is_null() && items[1..].iter().all(Value::is_boolean), "{value}");
    }
    let unique = json!({ "type": "array", "items": { "enum": ["a", "b", "c"] }, "uniqueItems": true, "minItems": 3 });
    for value in values(&unique) {
        let mut items: Vec<&str> = value.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        items.sort_unstable();
        assert_eq!(items, ["a", "b", "c"]);
    }
    let contains = json!({ "type": "array", "items": { "type": "integer" }, "contains": { "const": 3 } });
    assert!(values(&contains).iter().all(|value| value.as_array().is_some_and(|items| items.contains(&json!(3)))));
}

#[test]
fn values_that_must_not_be_are_not() {
    let not = json!({ "type": "string", "enum": ["a", "b", "c"], "not": { "const": "b" } });
    assert!(values(&not).iter().all(|value| value != "b"));
    let one = json!({ "properties": { "a": { "type": "null" }, "b": { "type": "null" } }, "oneOf": [{ "required": ["a"] }, { "required": ["b"] }] });
    assert!(values(&one).iter().all(|value| value.get("a").is_some() != value.get("b").is_some()));
    let given = json!({ "type": "object", "properties": { "kind": { "enum": ["x", "y"] }, "size": { "type": "integer" } },
        "required": ["kind"], "if": { "properties": { "kind": { "const": "x" } } }, "then": { "required": ["size"] } });
    let all = values(&given);
    assert!(all.iter().all(|value| value["kind"] != "x" || value["size"].is_i64()));
    assert!(all.iter().any(|value| value["kind"] == "y"));
}

#[test]
fn references_lead_anywhere_in_the_document() {
    let schema = json!({ "type": "object", "properties": {
        "a": { "type": "null" }, "b": { "$ref": "#/properties/a" }, "c": { "$ref": "#/$defs/a~1b%20c/items" },
        "d": { "$ref": "#here" }, "e": { "$ref": "https://example.com/e" }, "f": { "$ref": "#/$defs/list/anyOf/1" }
    }, "required": ["a", "b", "c", "d", "e", "f"], "$defs": {
        "a/b c": { "items": { "type": "null" } }, "anchor": { "$anchor": "here", "type": "null" },
        "id": { "$id": "https://example.com/e", "type": "null" }, "list": { "anyOf": [{}, { "type": "null" }] }
    } });
    for value in values(&schema) {
        assert!(value.as_object().expect("an object").values().all(Value::is_null), "{value}");
    }
}
