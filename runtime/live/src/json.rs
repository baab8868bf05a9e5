//! Structured-output requests as guests get them: JSON.

use std::fmt::Write as _;

use vcr_wire::Value;

/// The value as JSON. Bytes and extensions, which JSON has not, become null.
pub(crate) fn of_value(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) => _ = write!(out, "{value}"),
        Value::F32(value) if value.is_finite() => _ = write!(out, "{value}"),
        Value::F64(value) if value.is_finite() => _ = write!(out, "{value}"),
        Value::Str(text) => write_text(text, out),
        Value::Array(values) => write_list('[', ']', values, out, write),
        Value::Map(pairs) => write_list('{', '}', pairs, out, |(key, value), out| {
            match key {
                Value::Str(text) => write_text(text, out),
                other => write_text(&of_value(other), out),
            }
            out.push(':');
            write(value, out);
        }),
        _ => out.push_str("null"),
    }
}

fn write_list<T>(open: char, close: char, values: &[T], out: &mut String, mut item: impl FnMut(&T, &mut String)) {
    out.push(open);
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        item(value, out);
    }
    out.push(close);
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if control < ' ' => _ = write!(out, "\\u{:04x}", control as u32),
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_value_becomes_json() {
        let value = Value::Map(vec![
            ("a\"b".into(), Value::Array(vec![true.into(), Value::Nil, Value::F64(1.5)])),
            (Value::from(7u64), "line\n".into()),
        ]);
        assert_eq!(of_value(&value), r#"{"a\"b":[true,null,1.5],"7":"line\u000a"}"#);
    }
}
