//! A request that both servers get.

use serde_json::Value;
use vcr_core::seed::mix;

/// A request and its subject.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Name of the case in a report.
    pub(crate) name: String,
    pub(crate) method: &'static str,
    /// Path with its query.
    pub(crate) path: &'static str,
    /// Headers in addition to the common ones.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Body as sent.
    pub(crate) body: String,
    /// The body as JSON; null if it is not JSON.
    pub(crate) json: Value,
}

impl Case {
    /// A POST request with JSON.
    pub(crate) fn post(name: impl Into<String>, path: &'static str, json: Value) -> Self {
        let headers = vec![("Content-Type", "application/json".to_owned())];
        Self { name: name.into(), method: "POST", path, headers, body: json.to_string(), json }
    }

    /// A POST request that declares any text as JSON.
    pub(crate) fn text(name: impl Into<String>, path: &'static str, body: &str) -> Self {
        let json = serde_json::from_str(body).unwrap_or_default();
        Self { body: body.to_owned(), json, ..Self::post(name, path, Value::Null) }
    }

    /// A request without a body.
    pub(crate) fn bare(name: impl Into<String>, method: &'static str, path: &'static str) -> Self {
        Self { method, headers: Vec::new(), ..Self::text(name, path, "") }
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

/// Draws from a seeded generator.
#[derive(Debug)]
pub(crate) struct Draws {
    state: u64,
}

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.state = mix(self.state);
        (self.state >> 33) as usize % limit
    }

    pub(crate) fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
