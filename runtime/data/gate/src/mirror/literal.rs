//! Reads Python literals as logs print them: texts, numbers, lists, tuples and dicts.

use serde_json::{Map, Number, Value};

const MAX_DEPTH: usize = 64;

/// Reads the literal at the start of a text, and returns the literal with the rest of the text. None if there is no
/// literal.
pub(super) fn parse(text: &str) -> Option<(Value, &str)> {
    let mut parser = Parser { rest: text };
    let value = parser.value(0)?;
    Some((value, parser.rest))
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn skip(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        let after = self.rest.strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            quote @ ('\'' | '"') => self.text(quote).map(Value::String),
            '[' => self.items("[", "]", depth),
            '(' => self.items("(", ")", depth),
            '{' => self.dict(depth),
            _ => self.word(),
        }
    }

    fn items(&mut self, open: &str, close: &str, depth: usize) -> Option<Value> {
        self.skip(open);
        let mut items = Vec::new();
        while !self.skip(close) {
            items.push(self.value(depth + 1)?);
            if !self.skip(",") {
                return self.skip(close).then_some(Value::Array(items));
            }
        }
        Some(Value::Array(items))
    }

    fn dict(&mut self, depth: usize) -> Option<Value> {
        self.skip("{");
        let mut map = Map::new();
        while !self.skip("}") {
            let key = match self.value(depth + 1)? {
                Value::String(key) => key,
                other => other.to_string(),
            };
            if !self.skip(":") {
                return None;
            }
            map.insert(key, self.value(depth + 1)?);
            if !self.skip(",") {
                return self.skip("}").then_some(Value::Object(map));
            }
        }
        Some(Value::Object(map))
    }

    /// Reads `None`, `True`, `False` or a finite number.
    fn word(&mut self) -> Option<Value> {
        let is_end = |character: char| character.is_whitespace() || ",)]}:".contains(character);
        let (word, rest) = self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        self.rest = rest;
        match word {
            "None" => Some(Value::Null),
            "True" => Some(Value::Bool(true)),
            "False" => Some(Value::Bool(false)),
            word => {
                let whole = word.parse::<u64>().map(Number::from).or_else(|_| word.parse::<i64>().map(Number::from));
                whole.ok().or_else(|| Number::from_f64(word.parse().ok()?)).map(Value::Number)
            }
        }
    }

    fn text(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut characters = self.rest[1..].char_indices();
        while let Some((at, character)) = characters.next() {
            if character == quote {
                self.rest = &self.rest[1 + at + 1..];
                return Some(text);
            }
            if character != '\\' {
                text.push(character);
                continue;
            }
            let (_, escape) = characters.next()?;
            let digits = match escape {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            text.push(match escape {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                _ if digits > 0 => {
                    let hex: String = characters.by_ref().take(digits).map(|(_, digit)| digit).collect();
                    // A single surrogate is not a character.
                    char::from_u32(u32::from_str_radix(&hex, 16).ok()?).unwrap_or(char::REPLACEMENT_CHARACTER)
                }
                other => other,
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_are_read_as_python_prints_them() {
        for (text, value, rest) in [
            (r"'it\'s\n\x41é\u4e2d\U0001f600', x", json!("it's\nAé中😀"), ", x"),
            (r#""it's" "#, json!("it's"), " "),
            ("[1, -2, 0.5, 1e-05, None, True]", json!([1, -2, 0.5, 1e-5, null, true]), ""),
            ("{'a': {'b': (1, 'x'), }, 'c': []}, rest", json!({"a": {"b": [1, "x"]}, "c": []}), ", rest"),
        ] {
            assert_eq!(parse(text), Some((value, rest)), "{text}");
        }
        for text in ["", "'open", "[1", "[1 2]", "{'a'}", "{'a': }", "nan", "tensor([1])", r"'\x4", &"[".repeat(100)] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
