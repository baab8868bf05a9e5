//! Replaces secrets before anything is written, and counts strings that still look like secrets.

use serde_json::Value;

use super::decode::Part;
use super::events::events;
use super::json_path::JsonPath;

/// The text that replaces a secret.
pub const REDACTED: &str = "[redacted]";

/// Shorter secrets are replaced only as values of their names. Elsewhere they may be ordinary words.
const VALUE_BYTES_MIN: usize = 8;

/// Secrets in addition to those that [`is_secret_name`] recognizes.
#[derive(Clone, Debug, Default)]
pub struct RedactRules {
    /// Names of headers.
    pub headers: Vec<String>,
    /// Names of query parameters.
    pub query: Vec<String>,
    /// Paths in JSON bodies.
    pub json: Vec<JsonPath>,
}

/// Whether headers and query parameters of this name contain secrets.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    const PARTS: &[&str] = &["authorization", "cookie", "secret", "password", "credential", "apikey", "signature"];
    const ENDS: &[&str] = &["key", "token", "sig", "auth"];
    let name = name.to_ascii_lowercase().replace('_', "-");
    PARTS.iter().any(|part| name.contains(part))
        || name.contains("api-key")
        || ENDS.iter().any(|end| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('-')))
}

fn is_listed(names: &[String], name: &str) -> bool {
    names.iter().any(|listed| listed.eq_ignore_ascii_case(name))
}

/// The secrets found in one exchange.
#[derive(Debug, Default)]
pub(crate) struct Secrets(Vec<Vec<u8>>);

impl Secrets {
    fn add(&mut self, value: &str) {
        let value = value.trim();
        if value.len() >= VALUE_BYTES_MIN && value != REDACTED && !self.0.iter().any(|known| known == value.as_bytes())
        {
            self.0.push(value.as_bytes().to_vec());
        }
    }

    /// Replaces the values of secret headers and remembers them.
    pub(crate) fn redact_headers(&mut self, headers: &mut [(String, String)], rules: &RedactRules) {
        for (name, value) in headers {
            if !is_secret_name(name) && !is_listed(&rules.headers, name) {
                continue;
            }
            let is_cookie = name.to_ascii_lowercase().contains("cookie");
            for part in value.split([';', ',', ' ']) {
                self.add(if is_cookie { part.split_once('=').map_or(part, |(_, value)| value) } else { part });
            }
            self.add(value);
            REDACTED.clone_into(value);
        }
    }

    /// Replaces the values of secret query parameters and remembers them.
    pub(crate) fn redact_query(&mut self, query: &str, rules: &RedactRules) -> String {
        let pair = |pair: &str| match pair.split_once('=') {
            Some((name, value)) if is_secret_name(name) || is_listed(&rules.query, name) => {
                self.add(value);
                format!("{name}={REDACTED}")
            }
            _ => pair.to_owned(),
        };
        query.split('&').map(pair).collect::<Vec<_>>().join("&")
    }

    /// Replaces the remembered secrets in a text.
    pub(crate) fn redact_text(&self, text: &mut String) {
        for secret in self.0.iter().filter_map(|secret| std::str::from_utf8(secret).ok()) {
            if text.contains(secret) {
                *text = text.replace(secret, REDACTED);
            }
        }
    }

    /// Replaces the remembered secrets in a body, even if one spans several parts.
    pub(crate) fn redact_parts(&self, parts: &mut Vec<Part>) {
        for secret in &self.0 {
            redact_parts(parts, secret);
        }
    }
}

fn redact_parts(parts: &mut Vec<Part>, secret: &[u8]) {
    let whole: Vec<u8> = parts.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(at) = find(&whole[start..], secret) {
        found.push(start + at);
        start += at + secret.len();
    }
    if found.is_empty() {
        return;
    }
    let mut place = 0;
    for (_, bytes) in parts.iter_mut() {
        let range = place..place + bytes.len();
        place = range.end;
        let mut kept = Vec::with_capacity(bytes.len());
        for (offset, byte) in range.zip(bytes.iter()) {
            let before = found.partition_point(|start| *start <= offset);
            match before.checked_sub(1).map(|index| offset - found[index]) {
                Some(0) => kept.extend_from_slice(REDACTED.as_bytes()),
                Some(within) if within < secret.len() => {}
                _ => kept.push(*byte),
            }
        }
        *bytes = kept;
    }
    parts.retain(|(_, bytes)| !bytes.is_empty());
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    let first = *part.first()?;
    let mut start = 0;
    while let Some(at) = text.get(start..)?.iter().position(|byte| *byte == first) {
        if text[start + at..].starts_with(part) {
            return Some(start + at);
        }
        start += at + 1;
    }
    None
}

/// Replaces the values at `paths` in a JSON body, or in each event of a stream. Marks the paths that had a value in
/// `found`.
pub(super) fn redact_json(parts: &mut Vec<Part>, is_stream: bool, paths: &[JsonPath], found: &mut [bool]) {
    if paths.is_empty() || parts.is_empty() {
        return;
    }
    if is_stream {
        let all = events(parts);
        *parts = all
            .into_iter()
            .map(|event| match redacted_json(event.data().as_bytes(), paths, found) {
                Some(data) => (event.at_ns, event.with_data(&data)),
                None => (event.at_ns, event.raw),
            })
            .collect();
        return;
    }
    let whole: Vec<u8> = parts.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
    if let Some(redacted) = redacted_json(&whole, paths, found) {
        let last_ns = parts.last().map_or(0, |(at_ns, _)| *at_ns);
        *parts = vec![(last_ns, redacted.into_bytes())];
    }
}

/// Replaces the values at `paths`. Returns `None` if there are none.
fn redacted_json(text: &[u8], paths: &[JsonPath], found: &mut [bool]) -> Option<String> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    let mut is_changed = false;
    for (path, found) in paths.iter().zip(found) {
        let has_value = path.change(&mut value, &|value| *value = Value::String(REDACTED.to_owned()));
        *found |= has_value;
        is_changed |= has_value;
    }
    is_changed.then(|| value.to_string())
}

/// Counts the strings that look like API keys of known providers, or like JWTs.
pub(super) fn count_keys(text: &[u8]) -> u64 {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let mut count = 0;
    let mut rest = text;
    while let Some(start) = rest.iter().position(is_word) {
        // In an escape such as `\n`, the letter is not part of the word.
        let is_escape = start > 0 && rest[start - 1] == b'\\';
        rest = &rest[start + usize::from(is_escape)..];
        let end = rest.iter().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        count += u64::from(looks_like_key(&rest[..end]));
        rest = &rest[end..];
    }
    count + u64::from(find(text, b"PRIVATE KEY-----").is_some())
}

fn looks_like_key(word: &[u8]) -> bool {
    /// Prefixes of API keys, each with the minimum length of a key in bytes.
    const KEYS: &[(&str, usize)] = &[
        ("sk-", 24),
        ("sk_live_", 24),
        ("rk_live_", 24),
        ("hf_", 30),
        ("ghp_", 36),
        ("gho_", 36),
        ("ghs_", 36),
        ("github_pat_", 40),
        ("glpat-", 20),
        ("xoxb-", 24),
        ("xoxp-", 24),
        ("AIza", 39),
        ("AKIA", 20),
        ("ASIA", 20),
        ("nvapi-", 40),
        ("gsk_", 40),
        ("pplx-", 40),
        ("r8_", 36),
    ];
    let has_digit = word.iter().any(u8::is_ascii_digit);
    let is_known = KEYS.iter().any(|(start, bytes)| word.len() >= *bytes && word.starts_with(start.as_bytes()));
    let is_jwt = word.len() >= 40 && word.starts_with(b"eyJ") && word.iter().filter(|byte| **byte == b'.').count() == 2;
    // Hugging Face's keys often contain no digit.
    (has_digit || word.starts_with(b"hf_")) && (is_known || is_jwt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known() {
        for name in [
            "Authorization",
            "proxy-authorization",
            "X-Api-Key",
            "api_key",
            "cookie",
            "Set-Cookie",
            "key",
            "sig",
            "access_token",
            "x-goog-api-key",
            "X-Amz-Signature",
            "apikey",
            "idempotency-key",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["content-type", "x-ratelimit-remaining-tokens", "monkey", "author", "x-request-id", "design"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn a_secret_is_replaced_wherever_it_lies() {
        let mut secrets = Secrets::default();
        let mut headers = vec![
            ("Authorization".to_owned(), "Bearer my-own-key-1".to_owned()),
            ("Cookie".to_owned(), "a=cookie-value; b=2".to_owned()),
            ("X-Mine".to_owned(), "mine-only".to_owned()),
            ("Accept".to_owned(), "*/*".to_owned()),
        ];
        let rules = RedactRules { headers: vec!["x-mine".to_owned()], ..RedactRules::default() };
        secrets.redact_headers(&mut headers, &rules);
        let values: Vec<&str> = headers.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, [REDACTED, REDACTED, REDACTED, "*/*"]);
        assert_eq!(secrets.redact_query("api_key=query-secret&a=1", &rules), "api_key=[redacted]&a=1");
        let mut parts = vec![
            (1, b"bad key my-o".to_vec()),
            (2, b"wn-k".to_vec()),
            (3, b"ey-1, cookie-value, query-secret, mine-only.".to_vec()),
        ];
        secrets.redact_parts(&mut parts);
        let text = |part: &Part| String::from_utf8(part.1.clone()).expect("text");
        assert_eq!(
            parts.iter().map(text).collect::<Vec<_>>(),
            ["bad key [redacted]", ", [redacted], [redacted], [redacted]."]
        );
        let mut path = "/v1/my-own-key-1/x".to_owned();
        secrets.redact_text(&mut path);
        assert_eq!(path, "/v1/[redacted]/x");
    }

    #[test]
    fn paths_of_bodies_and_events_are_replaced() {
        let paths = ["messages.*.content", "delta", "nowhere"].map(|path| path.parse().expect("a path"));
        let mut found = [false; 3];
        let mut body = vec![(1, br#"{"messages":[{"content":"a"}]}"#.to_vec())];
        redact_json(&mut body, false, &paths, &mut found);
        assert_eq!(found, [true, false, false]);
        assert_eq!(body, [(1, br#"{"messages":[{"content":"[redacted]"}]}"#.to_vec())]);
        let mut stream = vec![(1, b"data: {\"del".to_vec()), (2, b"ta\":1}\n\ndata: {\"x\":1}\n\n".to_vec())];
        redact_json(&mut stream, true, &paths, &mut found);
        assert_eq!(found, [true, true, false]);
        let expected = [(2, b"data: {\"delta\":\"[redacted]\"}\n\n".to_vec()), (2, b"data: {\"x\":1}\n\n".to_vec())];
        assert_eq!(stream, expected);
    }

    #[test]
    fn strings_that_look_like_keys_are_counted() {
        let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJlMTIz";
        for text in [
            "use \"sk-proj-abcdefghij0123456789\"",
            r"\nAKIAIOSFODNN7EXAMPLE",
            jwt,
            "-----BEGIN RSA PRIVATE KEY-----",
            "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
        ] {
            assert_eq!(count_keys(text.as_bytes()), 1, "{text}");
        }
        for text in ["sk-learn", "risk-averse-1234567890-1234567890", "", "AKIA", "a.b.c", "\\"] {
            assert_eq!(count_keys(text.as_bytes()), 0, "{text}");
        }
    }
}
