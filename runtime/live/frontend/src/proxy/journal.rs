//! The latest requests of a server, for tests that ask what it was asked.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use vcr_record::http::{REDACTED, is_secret_name};

/// The latest requests, in order of arrival.
#[derive(Debug)]
pub struct Journal {
    entries: Mutex<VecDeque<Value>>,
    limit: usize,
}

impl Journal {
    /// A journal of this many requests.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { entries: Mutex::default(), limit }
    }

    /// Notes a request, and who answers it. Values of secret headers are left out.
    pub(crate) fn note(
        &self,
        (method, path, query): (&str, &str, Option<&str>),
        headers: &[(String, String)],
        body: &[u8],
        answered_by: &str,
    ) {
        let value = |name: &str, value: &str| if is_secret_name(name) { json!(REDACTED) } else { json!(value) };
        let headers: serde_json::Map<String, Value> =
            headers.iter().map(|(name, its)| (name.clone(), value(name, its))).collect();
        let entry = json!({
            "method": method,
            "path": path,
            "query": query,
            "headers": headers,
            "body": String::from_utf8_lossy(body),
            "answered_by": answered_by,
        });
        let mut entries = self.entries();
        if entries.len() == self.limit {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    /// The requests.
    pub(crate) fn json(&self) -> Value {
        json!({"requests": &*self.entries()})
    }

    /// Forgets them.
    pub(crate) fn clear(&self) {
        self.entries().clear();
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Value>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
