//! Values as Python writes them.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::Value;

/// A value of JSON as a literal of Python.
pub(crate) fn literal(value: &Value) -> String {
    let joined = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".to_string(),
        Value::Bool(true) => "True".to_string(),
        Value::Bool(false) => "False".to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(literal).collect())),
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| format!("{}: {}", quoted(key), literal(value));
            format!("{{{}}}", joined(entries.iter().map(entry).collect()))
        }
    }
}

/// `repr` of a text.
#[must_use]
pub fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for char in text.chars() {
        match char {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            char if char == quote => out.extend(['\\', char]),
            char if u32::from(char) < 0x20 || u32::from(char) == 0x7f => out += &format!("\\x{:02x}", u32::from(char)),
            char => out.push(char),
        }
    }
    out.push(quote);
    out
}
