//! Formats values as Python does.

use serde_json::Value;
pub(super) use vcr_text::python::{float_text as float, quoted};

/// The maximum number of input characters that an error repeats.
const INPUT_CHARS_MAX: usize = 200;

/// Returns Python's `repr` of a value.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) if number.is_f64() => float(number.as_f64().unwrap_or_default()),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{}: {}", quoted(name), shown(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
    }
}

pub(super) fn written(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => shown(value),
    }
}

/// Formats a value as validation errors show it.
pub(super) fn summary(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("<list of {} items>", items.len()),
        Value::Object(fields) => format!("<dict of {} items>", fields.len()),
        value => {
            let text = written(value);
            match text.char_indices().nth(INPUT_CHARS_MAX) {
                Some((end, _)) => format!("{}...[truncated]", &text[..end]),
                None => text,
            }
        }
    }
}

/// Joins names with commas and "or".
pub(super) fn either(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The name of the value's Python class.
pub(super) fn class(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

/// Whether the value is true in Python.
pub(super) fn is_true(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Bool(value)) => *value,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
    }
}
