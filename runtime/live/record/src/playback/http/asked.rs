//! What is asked, in a form that does not depend on how it is written.

use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use crate::http::{JsonPath, REDACTED, is_secret_name};

/// Fields at the top of a body that do not matter unless asked for: they name users and runs.
const IGNORED: &[&str] = &["user", "metadata", "seed", "request_id", "safety_identifier", "prompt_cache_key"];

/// Fields at the top of a body whose absence means this value.
const DEFAULTS: &[(&str, Value)] = &[("stream", Value::Bool(false)), ("echo", Value::Bool(false))];

/// What of a request does not matter.
#[derive(Clone, Debug, Default)]
pub struct MatchRules {
    /// Paths in JSON bodies that do not matter, beside the usual ones.
    pub ignored: Vec<JsonPath>,
    /// Paths whose values the recording replaced.
    pub redacted: Vec<JsonPath>,
}

/// A request in canonical form.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    method: String,
    path: String,
    query: String,
    content: Content,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Json(Value),
    Bytes(Vec<u8>),
}

impl Asked {
    /// The canonical form of a request.
    #[must_use]
    pub fn of(
        method: &str,
        path: &str,
        query: Option<&str>,
        content_type: Option<&str>,
        body: &[u8],
        rules: &MatchRules,
    ) -> Self {
        let content = match serde_json::from_slice::<Value>(body) {
            Ok(mut value) => {
                rules.ignored.iter().for_each(|path| path.remove(&mut value));
                for path in &rules.redacted {
                    path.change(&mut value, &|value| *value = Value::String(REDACTED.to_owned()));
                }
                strip(&mut value);
                Content::Json(value)
            }
            Err(_) => Content::Bytes(without_boundary(content_type, body)),
        };
        let mut pairs: Vec<&str> = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).collect();
        pairs.retain(|pair| !is_secret_name(pair.split('=').next().unwrap_or_default()));
        pairs.sort_unstable();
        Self { method: method.to_owned(), path: path.to_owned(), query: pairs.join("&"), content }
    }

    /// Method and path.
    #[must_use]
    pub fn route(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// Its body, as far as it is JSON.
    pub(super) fn json(&self) -> Option<&Value> {
        match &self.content {
            Content::Json(value) => Some(value),
            Content::Bytes(_) => None,
        }
    }

    pub(super) fn query(&self) -> &str {
        &self.query
    }

    pub(super) fn route_key(&self) -> u64 {
        let mut hash = Xxh3::new();
        text(&self.method, &mut hash);
        text(&self.path, &mut hash);
        hash.digest()
    }

    /// Equal requests have equal keys.
    pub(super) fn key(&self) -> u64 {
        let mut hash = Xxh3::with_seed(self.route_key());
        text(&self.query, &mut hash);
        match &self.content {
            Content::Json(value) => add(value, &mut hash),
            Content::Bytes(bytes) => {
                hash.update(b"b");
                hash.update(bytes);
            }
        }
        hash.digest()
    }

    /// Hashes of its parts, sorted: fields, and items of the lists among them. Requests that share more of them are nearer.
    pub(super) fn sketch(&self) -> Box<[u64]> {
        const PARTS_MAX: usize = 256;
        let Some(Value::Object(fields)) = self.json() else { return Box::default() };
        let mut parts = Vec::new();
        for (name, value) in fields {
            parts.push(part(name, usize::MAX, value));
            let items = value.as_array().into_iter().flatten().enumerate();
            parts.extend(items.map(|(index, item)| part(name, index, item)));
        }
        parts.truncate(PARTS_MAX);
        parts.sort_unstable();
        parts.into()
    }
}

/// Removes what does not matter: fields that are ignored, null, or at their defaults.
fn strip(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|name, value| {
            let is_default = DEFAULTS.iter().any(|(default, of)| default == name && of == value);
            !value.is_null() && !IGNORED.contains(&name.as_str()) && !is_default
        });
    }
}

/// Parts of a form are separated by a line that clients draw by lot.
fn without_boundary(content_type: Option<&str>, body: &[u8]) -> Vec<u8> {
    let boundary = content_type.and_then(|kind| kind.split_once("boundary="));
    let boundary = boundary.map(|(_, rest)| rest.split(';').next().unwrap_or_default().trim_matches('"').as_bytes());
    let Some(boundary) = boundary.filter(|boundary| !boundary.is_empty()) else { return body.to_vec() };
    let mut kept = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some((first, behind)) = rest.split_first() {
        match rest.strip_prefix(boundary) {
            Some(behind) => rest = behind,
            None => {
                kept.push(*first);
                rest = behind;
            }
        }
    }
    kept
}

fn part(name: &str, index: usize, value: &Value) -> u64 {
    let mut hash = Xxh3::with_seed(index as u64);
    text(name, &mut hash);
    add(value, &mut hash);
    hash.digest()
}

fn text(text: &str, hash: &mut Xxh3) {
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

fn add(value: &Value, hash: &mut Xxh3) {
    match value {
        Value::Null => hash.update(b"0"),
        Value::Bool(flag) => hash.update(if *flag { b"t" } else { b"f" }),
        Value::Number(number) => {
            hash.update(b"n");
            // 1 and 1.0 are one number. Whole numbers beyond 53 bits keep all their digits.
            match number.as_f64().filter(|float| number.is_f64() || float.abs() < 9e15) {
                Some(float) => hash.update(&(float + 0.0).to_bits().to_le_bytes()),
                None => text(&number.to_string(), hash),
            }
        }
        Value::String(string) => {
            hash.update(b"s");
            text(string, hash);
        }
        Value::Array(items) => {
            hash.update(b"[");
            hash.update(&(items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| add(item, hash));
        }
        Value::Object(fields) => {
            hash.update(b"{");
            hash.update(&(fields.len() as u64).to_le_bytes());
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in sorted {
                text(name, hash);
                add(value, hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &str) -> Asked {
        let rules = MatchRules { ignored: vec!["x.id".parse().expect("a path")], ..MatchRules::default() };
        Asked::of("POST", "/v1/x", None, None, body.as_bytes(), &rules)
    }

    #[test]
    fn what_does_not_matter_does_not_change_the_key() {
        let key = asked(r#"{"a":1,"b":{"c":[1.5,"x"]},"x":{"id":"1"}}"#).key();
        for same in [
            r#"{ "b": {"c": [1.5, "\u0078"]}, "a": 1.0, "x":{} }"#,
            r#"{"a":1,"b":{"c":[1.5,"x"]},"x":{"id":"2"},"user":"u","seed":7,"metadata":{},"stream":false,"stop":null}"#,
        ] {
            assert_eq!(asked(same).key(), key, "{same}");
        }
        for other in [
            r#"{"a":2,"b":{"c":[1.5,"x"]},"x":{}}"#,
            r#"{"a":1,"b":{"c":["x",1.5]},"x":{}}"#,
            r#"{"a":1,"b":{"c":[1.5,"x"]},"x":{},"stream":true}"#,
            r#"{"a":1,"b":{"c":[1.5,"x"],"user":"u"},"x":{}}"#,
            "not JSON",
        ] {
            assert_ne!(asked(other).key(), key, "{other}");
        }
        let of = |method: &str, path: &str, query: Option<&str>| {
            Asked::of(method, path, query, None, b"{}", &MatchRules::default()).key()
        };
        assert_eq!(of("GET", "/a", Some("b=1&a=2&key=x")), of("GET", "/a", Some("a=2&b=1&key=y")));
        assert_ne!(of("GET", "/a", Some("b=1")), of("GET", "/a", None));
        assert_ne!(of("GET", "/a", None), of("POST", "/a", None));
    }

    #[test]
    fn large_numbers_differ_in_their_last_digit() {
        assert_ne!(asked("[9007199254740993]").key(), asked("[9007199254740992]").key());
        assert_eq!(asked("[-0.0]").key(), asked("[0]").key());
    }

    #[test]
    fn forms_match_whatever_their_boundary() {
        let form = |boundary: &str| {
            let body = format!("--{boundary}\r\nname\r\n--{boundary}--");
            let kind = format!("multipart/form-data; boundary={boundary}");
            Asked::of("POST", "/a", None, Some(&kind), body.as_bytes(), &MatchRules::default()).key()
        };
        assert_eq!(form("abc"), form("xyz123"));
    }

    #[test]
    fn redacted_values_match_any() {
        let rules = MatchRules { redacted: vec!["p".parse().expect("a path")], ..MatchRules::default() };
        let of = |body: &str| Asked::of("POST", "/a", None, None, body.as_bytes(), &rules).key();
        assert_eq!(of(r#"{"p":"[redacted]","a":1}"#), of(r#"{"p":{"any":"thing"},"a":1}"#));
    }
}
