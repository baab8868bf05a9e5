//! Responses of the Responses API, kept so that requests can refer to them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use serde_json::Value;

/// Responses kept at most; the oldest is forgotten first.
const KEPT_MAX: usize = 1000;

/// A response that is kept.
#[derive(Clone, Debug)]
pub(crate) struct StoredResponse {
    /// The response object.
    pub(crate) response: Value,
    /// The chat so far, the answer included, but for instructions.
    pub(crate) messages: Vec<Value>,
}

/// The last responses by their ids.
#[derive(Debug, Default)]
pub(crate) struct ResponseStore(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    by_id: BTreeMap<String, StoredResponse>,
    /// From the oldest on; ids of deleted ones too.
    order: VecDeque<String>,
}

impl ResponseStore {
    pub(crate) fn insert(&self, id: &str, stored: StoredResponse) {
        let mut kept = self.kept();
        kept.order.push_back(id.to_owned());
        kept.by_id.insert(id.to_owned(), stored);
        while kept.order.len() > KEPT_MAX {
            if let Some(oldest) = kept.order.pop_front() {
                kept.by_id.remove(&oldest);
            }
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<StoredResponse> {
        self.kept().by_id.get(id).cloned()
    }

    /// Forgets a response; false where there is none.
    pub(crate) fn remove(&self, id: &str) -> bool {
        self.kept().by_id.remove(id).is_some()
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        // Nothing that holds the lock can leave a half-made change behind.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_response_is_forgotten_first() {
        let store = ResponseStore::default();
        let stored = StoredResponse { response: Value::Null, messages: Vec::new() };
        for number in 0..KEPT_MAX + 2 {
            store.insert(&number.to_string(), stored.clone());
        }
        assert!(store.get("1").is_none() && store.get("2").is_some());
        assert!(store.remove("2") && !store.remove("2") && store.get("2").is_none());
    }
}
