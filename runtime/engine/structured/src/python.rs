//! Formats JSON values as Python does.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::node::Node;

pub(crate) fn literal(value: &Node) -> String {
    let joined = |items: Vec<String>| items.join(", ");
    match value {
        Node::Null => "None".to_string(),
        Node::Bool(true) => "True".to_string(),
        Node::Bool(false) => "False".to_string(),
        Node::Number(number) => number.clone(),
        Node::String(text) => quoted(text),
        Node::Array(items) => format!("[{}]", joined(items.iter().map(literal).collect())),
        Node::Object(entries) => {
            let entry = |(key, value): &(String, Node)| format!("{}: {}", quoted(key), literal(value));
            format!("{{{}}}", joined(entries.iter().map(entry).collect()))
        }
    }
}

/// Python's `repr` of a string.
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
