//! A request in canonical form.

use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::rules::{MatchRules, Order};
use crate::http::{REDACTED, SAMPLING_PARAMETERS, Secrets, is_secret_name};

/// Defaults of top-level body fields. An absent field has this value.
const DEFAULTS: &[(&str, Value)] = &[("stream", Value::Bool(false)), ("echo", Value::Bool(false))];

/// A request as received.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskedParts<'a> {
    pub method: &'a str,
    pub path: &'a str,
    /// The query string, without the `?`.
    pub query: Option<&'a str>,
    pub headers: &'a [(String, String)],
    pub body: &'a [u8],
}

/// A request in canonical form. Equal requests match the same recordings.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    method: String,
    path: String,
    query: String,
    /// Only the headers that are compared.
    headers: Vec<(String, String)>,
    content: Content,
    /// Sampling parameters, if they select a recording.
    parameters: Option<Value>,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Json(Value),
    Bytes(Vec<u8>),
}

impl Asked {
    /// Converts a request to canonical form.
    #[must_use]
    pub fn of(parts: AskedParts<'_>, rules: &MatchRules) -> Self {
        // Redact the request as recordings are, including its body.
        let mut secrets = Secrets::default();
        let mut all: Vec<(String, String)> = parts.headers.to_vec();
        secrets.redact_headers(&mut all, &rules.redact);
        let query = secrets.redact_query(parts.query.unwrap_or_default(), &rules.redact);
        let mut path = parts.path.to_owned();
        secrets.redact_text(&mut path);
        let mut body = vec![(0, parts.body.to_vec())];
        secrets.redact_parts(&mut body);
        let body = body.pop().map(|(_, bytes)| bytes).unwrap_or_default();
        let mut parameters = None;
        let content = match serde_json::from_slice::<Value>(&body) {
            Ok(mut value) => {
                rules.ignore.iter().for_each(|path| path.remove(&mut value));
                for path in &rules.redact.json {
                    path.change(&mut value, &|value| *value = Value::String(REDACTED.to_owned()));
                }
                strip(&mut value, rules);
                if rules.order == Order::Parameters {
                    parameters = take_parameters(&mut value);
                }
                if !rules.ignore_text.is_empty() {
                    remove_texts(&mut value, rules);
                }
                Content::Json(value)
            }
            Err(_) => {
                let kind = all.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
                Content::Bytes(without_boundary(kind.map(|(_, kind)| kind.as_str()), &body))
            }
        };
        let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
        pairs.retain(|pair| {
            let name = pair.split('=').next().unwrap_or_default();
            !is_secret_name(name) && !rules.ignore_query.iter().any(|ignored| ignored == name)
        });
        pairs.sort_unstable();
        let is_compared = |name: &str| rules.headers.iter().any(|compared| compared.eq_ignore_ascii_case(name));
        all.retain(|(name, _)| is_compared(name));
        all.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
        all.sort_unstable();
        Self { method: parts.method.to_owned(), path, query: pairs.join("&"), headers: all, content, parameters }
    }

    /// Method and path.
    #[must_use]
    pub fn route(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    pub(super) fn json(&self) -> Option<&Value> {
        match &self.content {
            Content::Json(value) => Some(value),
            Content::Bytes(_) => None,
        }
    }

    pub(super) fn query(&self) -> &str {
        &self.query
    }

    /// The compared headers, one per line.
    pub(super) fn headers(&self) -> String {
        self.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join("\n")
    }

    /// A key that is equal for equal sampling parameters. It is 0 if they do not select a recording.
    pub(super) fn parameters_key(&self) -> u64 {
        self.parameters.as_ref().map_or(0, |parameters| {
            let mut hash = Xxh3::new();
            add(parameters, &mut hash);
            hash.digest()
        })
    }

    pub(super) fn route_key(&self) -> u64 {
        let mut hash = Xxh3::new();
        text(&self.method, &mut hash);
        text(&self.path, &mut hash);
        hash.digest()
    }

    /// A key that is equal for equal requests.
    pub(super) fn key(&self) -> u64 {
        let mut hash = Xxh3::with_seed(self.route_key());
        text(&self.query, &mut hash);
        for (name, value) in &self.headers {
            text(name, &mut hash);
            text(value, &mut hash);
        }
        match &self.content {
            Content::Json(value) => add(value, &mut hash),
            Content::Bytes(bytes) => {
                hash.update(b"b");
                hash.update(bytes);
            }
        }
        hash.digest()
    }

    /// Sorted hashes of the body's fields and of the items in its lists. Similar requests share more hashes.
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

/// Removes ignored fields, nulls and default values.
fn strip(value: &mut Value, rules: &MatchRules) {
    if let Value::Object(fields) = value {
        fields.retain(|name, value| {
            let is_default = DEFAULTS.iter().any(|(default, of)| default == name && of == value);
            !value.is_null() && !rules.ignores(name) && !is_default
        });
    }
}

fn take_parameters(value: &mut Value) -> Option<Value> {
    let fields = value.as_object_mut()?;
    let taken =
        SAMPLING_PARAMETERS.iter().filter_map(|(given, name)| Some(((*name).to_owned(), fields.remove(*given)?)));
    Some(Value::Object(taken.collect()))
}

/// Removes the ignored parts of all texts.
fn remove_texts(value: &mut Value, rules: &MatchRules) {
    match value {
        Value::String(text) => rules.ignore_text.iter().for_each(|pattern| pattern.remove(text)),
        Value::Array(items) => items.iter_mut().for_each(|item| remove_texts(item, rules)),
        Value::Object(fields) => fields.values_mut().for_each(|item| remove_texts(item, rules)),
        _ => {}
    }
}

/// Removes the boundary of a multipart form, because clients choose it at random.
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
            // 1 and 1.0 are equal. Integers beyond 53 bits keep all digits.
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
    use crate::http::RedactRules;

    fn asked(body: &str) -> Asked {
        let rules = MatchRules { ignore: vec!["x.id".parse().expect("a path")], ..MatchRules::default() };
        posted(body, &[], &rules)
    }

    fn posted(body: &str, headers: &[(&str, &str)], rules: &MatchRules) -> Asked {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers: Vec<_> = headers.iter().map(pair).collect();
        let parts = AskedParts { method: "POST", path: "/v1/x", headers: &headers, body: body.as_bytes(), query: None };
        Asked::of(parts, rules)
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
            let parts = AskedParts { method, path, query, headers: &[], body: b"{}" };
            Asked::of(parts, &MatchRules::default()).key()
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
            posted(&body, &[("Content-Type", &kind)], &MatchRules::default()).key()
        };
        assert_eq!(form("abc"), form("xyz123"));
    }

    #[test]
    fn redacted_values_match_any() {
        let json = vec!["p".parse().expect("a path")];
        let redact = RedactRules { json, headers: vec!["x-mine".to_owned()], ..RedactRules::default() };
        let rules = MatchRules { redact, ..MatchRules::default() };
        let of = |body: &str| posted(body, &[], &rules).key();
        assert_eq!(of(r#"{"p":"[redacted]","a":1}"#), of(r#"{"p":{"any":"thing"},"a":1}"#));
        // The recording has the key redacted in both its headers and its prompt.
        let recorded = posted(r#"{"prompt":"why is [redacted] refused?"}"#, &[("x-mine", REDACTED)], &rules);
        let asked = |body: &str, header: &str| posted(body, &[(header, "my-own-key-1")], &rules);
        for header in ["X-Mine", "x-api-key"] {
            assert_eq!(asked(r#"{"prompt":"why is my-own-key-1 refused?"}"#, header).key(), recorded.key());
        }
        assert_ne!(asked(r#"{"prompt":"why is my-own-key-1 refused?"}"#, "x-other").key(), recorded.key());
    }

    #[test]
    fn rules_of_a_file() {
        let rules = |text: &str| serde_json::from_str::<MatchRules>(text);
        let key = |rules: &MatchRules, body: &str, headers: &[(&str, &str)]| posted(body, headers, rules).key();
        let dates = rules(r#"{"ignore_text":["\\d{4}-\\d\\d-\\d\\d"],"compare":["seed"]}"#).expect("rules");
        let chat = |text: &str| format!(r#"{{"messages":[{{"content":"today is {text}, really"}}]}}"#);
        assert_eq!(key(&dates, &chat("2026-01-02"), &[]), key(&dates, &chat("2031-11-30"), &[]));
        assert_ne!(key(&dates, &chat("2026-01-02"), &[]), key(&dates, &chat("Monday"), &[]));
        assert_ne!(key(&dates, r#"{"seed":1}"#, &[]), key(&dates, r#"{"seed":2}"#, &[]));
        let tenants = rules(r#"{"headers":["X-Tenant"]}"#).expect("rules");
        assert_eq!(key(&tenants, "{}", &[("x-tenant", "a")]), key(&tenants, "{}", &[("X-TENANT", "a"), ("b", "c")]));
        assert_ne!(key(&tenants, "{}", &[("x-tenant", "a")]), key(&tenants, "{}", &[("x-tenant", "b")]));
        let parameters = rules(r#"{"order":"parameters"}"#).expect("rules");
        let [hot, cold] = [1, 0].map(|at| posted(&format!(r#"{{"prompt":"a","temperature":{at}}}"#), &[], &parameters));
        assert!(hot.key() == cold.key() && hot.parameters_key() != cold.parameters_key());
        for (wrong, message) in [
            (r#"{"ignore":["a..b"]}"#, "invalid path `a..b`"),
            (r#"{"compare":["model"]}"#, "`model` is compared anyway: expected one of user, metadata"),
            (r#"{"ignore_text":["("]}"#, "unclosed group"),
            (r#"{"order":"newest"}"#, "expected one of `recorded`, `parameters`, `random`"),
            (r#"{"ignored":[]}"#, "unknown field `ignored`"),
        ] {
            let error = rules(wrong).expect_err(wrong).to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
