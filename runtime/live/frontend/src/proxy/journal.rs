//! The latest requests of a server, for tests that inspect them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::http::request::Parts;
use serde_json::{Value, json};

use crate::page::headers;

/// The latest requests, in order of arrival.
#[derive(Debug)]
pub struct Journal {
    entries: Mutex<VecDeque<Noted>>,
    limit: usize,
}

/// The source of a request's answer. Not set if a fault comes first.
pub(crate) type AnsweredBy = Arc<OnceLock<&'static str>>;

#[derive(Debug)]
struct Noted {
    request: Value,
    answered_by: AnsweredBy,
}

impl Journal {
    /// Creates a journal of at most `limit` requests.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { entries: Mutex::default(), limit }
    }

    /// Records a request. Values of secret headers are redacted.
    pub(crate) fn note(&self, parts: &Parts, body: &[u8]) -> AnsweredBy {
        let request = json!({
            "method": parts.method.as_str(),
            "path": parts.uri.path(),
            "query": parts.uri.query(),
            "headers": headers(&parts.headers),
            "body": String::from_utf8_lossy(body),
        });
        let answered_by = AnsweredBy::default();
        let mut entries = self.entries();
        if entries.len() == self.limit {
            entries.pop_front();
        }
        entries.push_back(Noted { request, answered_by: Arc::clone(&answered_by) });
        answered_by
    }

    pub(crate) fn json(&self) -> Value {
        let shown = |noted: &Noted| {
            let mut request = noted.request.clone();
            request["answered_by"] = noted.answered_by.get().copied().unwrap_or("fault").into();
            request
        };
        json!({"requests": self.entries().iter().map(shown).collect::<Vec<_>>()})
    }

    pub(crate) fn clear(&self) {
        self.entries().clear();
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Noted>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
