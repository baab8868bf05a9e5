//! Types of tool arguments, for call formats that do not write JSON.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;
use vcr_text::tools::Tool;

/// Whether each argument of each tool is written as JSON.
#[derive(Debug, Default)]
pub(crate) struct ArgumentTypes(HashMap<String, HashMap<String, bool>>);

impl ArgumentTypes {
    pub(crate) fn new(tools: &[Tool]) -> Self {
        let of_tool = |tool: &Tool| {
            let schema: Value = tool.parameters.as_deref().and_then(|raw| serde_json::from_str(raw.get()).ok())?;
            let arguments = schema["properties"].as_object()?.iter();
            Some((tool.name.clone(), arguments.map(|(key, schema)| (key.clone(), is_json(schema))).collect()))
        };
        Self(tools.iter().filter_map(of_tool).collect())
    }

    /// Converts a value to JSON. As in vLLM, it is a string unless the schema has another type, or the value is
    /// `null`.
    pub(super) fn json(&self, tool: &str, key: &str, value: &str) -> String {
        let is_json = self.0.get(tool).and_then(|types| types.get(key)).is_some_and(|is_json| *is_json);
        let is_null = value.trim().eq_ignore_ascii_case("null");
        match serde_json::from_str::<&RawValue>(value.trim()) {
            _ if is_null => "null".to_owned(),
            Ok(raw) if is_json => compact(raw.get()),
            _ => Value::from(value).to_string(),
        }
    }
}

/// Removes white space between the parts of a JSON text. Keys keep their order.
fn compact(json: &str) -> String {
    let (mut is_in_string, mut is_escaped) = (false, false);
    let is_part = |character: &char| {
        let was_in_string = is_in_string;
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_in_string = !is_in_string,
            _ => {}
        }
        was_in_string || !character.is_ascii_whitespace()
    };
    json.chars().filter(is_part).collect()
}

/// Whether values of a schema are written as JSON.
fn is_json(schema: &Value) -> bool {
    let is_other = |kind: &Value| kind.as_str().is_some_and(|kind| kind != "string" && kind != "null");
    let of_any =
        |key: &str, is_it: &dyn Fn(&Value) -> bool| schema[key].as_array().is_some_and(|list| list.iter().any(is_it));
    match &schema["type"] {
        Value::Null => {
            of_any("anyOf", &is_json)
                || of_any("oneOf", &is_json)
                || of_any("enum", &|value| !value.is_string())
                || schema.get("const").is_some_and(|value| !value.is_string())
                || schema.get("properties").is_some()
                || schema.get("items").is_some()
        }
        Value::Array(kinds) => kinds.iter().any(is_other),
        kind => is_other(kind),
    }
}
