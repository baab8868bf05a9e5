//! Formats values as Python does, because chat templates expect it.

use std::borrow::Cow;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

pub use vcr_structured::python::quoted;

/// Returns `str(value)`. Strings are not copied.
pub(crate) fn text(value: &Value) -> Cow<'_, str> {
    match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None => Cow::Owned(repr(value)),
    }
}

/// Returns `repr(value)`, or an empty string for an undefined value.
fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number => number(value),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq if value.as_object().is_some() => {
            let items = value.try_iter().into_iter().flatten().map(|item| repr(&item));
            let items: Vec<String> = items.collect();
            match (value.is_tuple(), &items[..]) {
                (true, [only]) => format!("({only},)"),
                (true, _) => format!("({})", items.join(", ")),
                (false, _) => format!("[{}]", items.join(", ")),
            }
        }
        ValueKind::Map => {
            let pair = |key: Value| format!("{}: {}", repr(&key), repr(&value.get_item(&key).unwrap_or_default()));
            format!("{{{}}}", value.try_iter().into_iter().flatten().map(pair).collect::<Vec<_>>().join(", "))
        }
        _ => value.to_string(),
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) => float_text(float),
        Err(_) => value.to_string(),
    }
}

/// `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16.
#[must_use]
pub fn float_text(float: f64) -> String {
    if float.is_nan() {
        return "nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let size = float.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{float:?}")
}

/// The format that `json.dumps` writes.
struct Style {
    item: String,
    key: String,
    indent: Option<String>,
    is_ascii: bool,
    is_sorted: bool,
}

/// Transformers' `tojson`: `json.dumps` without escapes for HTML.
pub(crate) fn tojson(value: &Value, arguments: &[Value], options: &Kwargs) -> Result<Value, Error> {
    let given = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let by_name: Option<Value> = options.get(name)?;
        let found = by_name.or_else(|| arguments.get(index).cloned());
        Ok(found.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let is_ascii = given(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match given(1, "indent")? {
        None => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(value)?.min(64)),
        }),
    };
    let separators = given(2, "separators")?;
    let is_sorted = given(3, "sort_keys")?.is_some_and(|value| value.is_true());
    options.assert_all_used()?;
    let (item, key) = match separators {
        Some(pair) => {
            let (item, key) = (pair.get_item_by_index(0)?, pair.get_item_by_index(1)?);
            (text(&item).into_owned(), text(&key).into_owned())
        }
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut out = String::new();
    Style { item, key, indent, is_ascii, is_sorted }.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

/// Deeper values are refused, as in Python.
const DEPTH_MAX: usize = 200;

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let refused = |what: String| Err(Error::new(ErrorKind::InvalidOperation, what));
        if depth > DEPTH_MAX {
            return refused(format!("tojson: the value is nested more than {DEPTH_MAX} deep"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&match &number(value)[..] {
                "nan" => "NaN".to_owned(),
                "inf" => "Infinity".to_owned(),
                "-inf" => "-Infinity".to_owned(),
                number => number.to_owned(),
            }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.all(&items, ['[', ']'], depth, out, |item, out| self.write(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.is_sorted {
                    keys.sort();
                }
                self.all(&keys, ['{', '}'], depth, out, |key, out| {
                    match key.as_str() {
                        Some(text) => self.string(text, out),
                        None => {
                            let mut text = String::new();
                            self.write(key, depth + 1, &mut text)?;
                            self.string(&text, out);
                        }
                    }
                    out.push_str(&self.key);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            ValueKind::Undefined => return refused("tojson: the value is undefined".to_owned()),
            other => return refused(format!("tojson: a value of type {other} is not JSON")),
        }
        Ok(())
    }

    fn all(
        &self,
        items: &[Value],
        [open, close]: [char; 2],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item);
            }
            line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for char in text.chars() {
            match char {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                char if u32::from(char) < 0x20 || (self.is_ascii && !(' '..='~').contains(&char)) => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        *out += &format!("\\u{unit:04x}");
                    }
                }
                char => out.push(char),
            }
        }
        out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected texts come from Python 3.11's `repr`.
    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (0.0001, "0.0001"),
            (-2.5e300, "-2.5e+300"),
        ];
        for (float, text) in cases {
            assert_eq!(float_text(float), text);
        }
    }

    #[test]
    fn values_have_pythons_repr() {
        let value: Value = serde_json::from_str(r#"{"b": [1, 2.0, null, true], "a": "it's"}"#).expect("it is JSON");
        assert_eq!(text(&value), r#"{'b': [1, 2.0, None, True], 'a': "it's"}"#);
    }
}
