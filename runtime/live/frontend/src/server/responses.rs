//! Stores responses of the Responses API, so that later requests can refer to them.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory of a stored response in addition to its texts.
const ENTRY_BYTES: usize = 256;

/// The id of a response: 128 random bits, which cannot be guessed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResponseId(String);

impl ResponseId {
    /// Creates an id. None if the system has no randomness.
    pub(crate) fn new() -> Option<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(Self(format!("resp_{:032x}", u128::from_le_bytes(bytes))))
    }

    pub(crate) fn given(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResponseId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The owner of a stored response: the index of its API key. None if the server has no keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyOwner(pub(crate) Option<u32>);

#[derive(Clone, Debug)]
pub(crate) struct StoredResponse {
    pub(crate) response: Bytes,
    /// The messages of the chat, including the answer but not the instructions, as a JSON list.
    pub(crate) messages: Bytes,
}

impl StoredResponse {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.response.len() + self.messages.len()
    }
}

/// The latest responses by id, within a memory budget. The oldest is removed first.
#[derive(Debug)]
pub(crate) struct ResponseStore {
    budget_bytes: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_id: BTreeMap<ResponseId, (KeyOwner, StoredResponse)>,
    /// Ids from oldest to newest.
    order: VecDeque<ResponseId>,
    bytes: usize,
}

impl Kept {
    fn remove(&mut self, id: &ResponseId) {
        if let Some((_, stored)) = self.by_id.remove(id) {
            self.bytes -= stored.bytes();
        }
    }
}

impl ResponseStore {
    /// Creates a store. With a budget of 0 it stores nothing.
    pub(crate) fn new(budget_bytes: usize) -> Self {
        Self { budget_bytes, kept: Mutex::default() }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.budget_bytes > 0
    }

    /// Serializes a value to JSON. None if it is too large for the store.
    pub(crate) fn packed(&self, value: &impl Serialize) -> Option<Bytes> {
        let mut writer = Bounded { bytes: Vec::new(), max_bytes: self.budget_bytes.checked_sub(ENTRY_BYTES)? };
        serde_json::to_writer(&mut writer, value).ok()?;
        writer.bytes.shrink_to_fit();
        Some(writer.bytes.into())
    }

    /// Stores a response for its owner, unless it exceeds the whole budget.
    pub(crate) fn insert(&self, id: ResponseId, owner: KeyOwner, stored: StoredResponse) {
        let bytes = stored.bytes();
        if bytes > self.budget_bytes {
            return;
        }
        let mut kept = self.kept();
        kept.remove(&id);
        while kept.bytes + bytes > self.budget_bytes
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.remove(&oldest);
        }
        kept.bytes += bytes;
        kept.order.push_back(id.clone());
        kept.by_id.insert(id, (owner, stored));
    }

    pub(crate) fn get(&self, id: &ResponseId, owner: KeyOwner) -> Option<StoredResponse> {
        let kept = self.kept();
        kept.by_id.get(id).filter(|(of, _)| *of == owner).map(|(_, stored)| stored.clone())
    }

    /// Removes a response of this owner. Returns false if there is none.
    pub(crate) fn remove(&self, id: &ResponseId, owner: KeyOwner) -> bool {
        let mut kept = self.kept();
        if kept.by_id.get(id).is_none_or(|(of, _)| *of != owner) {
            return false;
        }
        kept.remove(id);
        kept.order.retain(|other| other != id);
        true
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // A panic cannot leave the store inconsistent.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory limit for the request fields, such as metadata, that running responses repeat.
const REPEATED_BYTES_MAX: usize = 256 << 20;
/// Requests below this size are not counted.
const SMALL_BYTES: usize = 64 << 10;
/// Memory is counted in units of this size.
const PART_BYTES: usize = 1 << 10;
/// Memory of a JSON value without its text.
const VALUE_BYTES: usize = 96;

/// Limits the memory of the request fields that responses repeat. A response holds its share while it waits or
/// runs.
#[derive(Debug)]
pub(crate) struct RepeatedMemory(Arc<Semaphore>);

/// The share of one response. It is released on drop.
#[derive(Debug)]
pub(crate) struct Repeated {
    _permit: Option<OwnedSemaphorePermit>,
}

impl RepeatedMemory {
    pub(crate) fn new() -> Self {
        Self::of_bytes(REPEATED_BYTES_MAX)
    }

    fn of_bytes(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / PART_BYTES)))
    }

    /// Reserves memory for a request. None if other responses hold too much.
    pub(crate) fn hold(&self, request: &Value) -> Option<Repeated> {
        // The fields are in the request and again in the response.
        let bytes = 2 * memory(request);
        if bytes < SMALL_BYTES {
            return Some(Repeated { _permit: None });
        }
        let parts = u32::try_from(bytes / PART_BYTES).unwrap_or(u32::MAX);
        Arc::clone(&self.0).try_acquire_many_owned(parts).ok().map(|permit| Repeated { _permit: Some(permit) })
    }
}

/// The approximate memory of a value, in bytes.
fn memory(value: &Value) -> usize {
    let (mut bytes, mut open) = (0, vec![value]);
    while let Some(value) = open.pop() {
        bytes += VALUE_BYTES;
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                bytes += fields.keys().map(String::len).sum::<usize>();
                open.extend(fields.values());
            }
            _ => {}
        }
    }
    bytes
}

/// A writer with a size limit.
struct Bounded {
    bytes: Vec<u8>,
    max_bytes: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.max_bytes - self.bytes.len() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: KeyOwner = KeyOwner(Some(1));

    fn of_bytes(bytes: usize) -> StoredResponse {
        StoredResponse { response: vec![b'1'; bytes - ENTRY_BYTES].into(), messages: Bytes::new() }
    }

    fn id(number: usize) -> ResponseId {
        ResponseId::given(&number.to_string())
    }

    #[test]
    fn the_oldest_responses_make_room() {
        let store = ResponseStore::new(10_000);
        for number in 0..100 {
            store.insert(id(number), ONE, of_bytes(1000));
        }
        assert!(store.get(&id(89), ONE).is_none() && store.get(&id(90), ONE).is_some());
        assert!(store.remove(&id(95), ONE) && !store.remove(&id(95), ONE));
        store.insert(id(100), ONE, of_bytes(1000));
        assert!(store.get(&id(90), ONE).is_some(), "the removed one has made room");
        store.insert(id(101), ONE, of_bytes(9_000));
        assert!(store.get(&id(99), ONE).is_none() && store.get(&id(100), ONE).is_some());
        store.insert(id(102), ONE, of_bytes(10_001));
        assert!(store.get(&id(102), ONE).is_none() && store.get(&id(101), ONE).is_some());
        assert!(store.kept().bytes <= 10_000 && store.kept().order.len() == 2);
    }

    #[test]
    fn what_cannot_be_stored_is_not_written() {
        let store = ResponseStore::new(ENTRY_BYTES + 5);
        assert_eq!(store.packed(&"abc"), Some(Bytes::from_static(b"\"abc\"")));
        assert_eq!(store.packed(&"abcd"), None);
        assert_eq!(ResponseStore::new(0).packed(&1), None);
    }

    #[test]
    fn running_responses_hold_what_they_repeat() {
        let memory = RepeatedMemory::of_bytes(1 << 20);
        let request = |bytes: usize| serde_json::json!({"metadata": {"a": "b".repeat(bytes)}});
        let small: Vec<_> = (0..1000).map(|_| memory.hold(&request(100))).collect();
        assert!(small.iter().all(Option::is_some), "small ones are not counted");
        let first = memory.hold(&request(300 << 10)).expect("there is room");
        assert!(memory.hold(&request(300 << 10)).is_none(), "twice the half is too much");
        assert!(memory.hold(&request(100 << 10)).is_some());
        drop(first);
        assert!(memory.hold(&request(300 << 10)).is_some(), "it has ended");
    }

    #[test]
    fn responses_belong_to_their_keys() {
        let (store, two) = (ResponseStore::new(10_000), KeyOwner(Some(2)));
        store.insert(id(1), ONE, of_bytes(1000));
        assert!(store.get(&id(1), two).is_none() && !store.remove(&id(1), two));
        assert!(store.get(&id(1), KeyOwner(None)).is_none());
        assert!(store.get(&id(1), ONE).is_some());
    }

    #[test]
    fn ids_are_random() {
        let ids = [ResponseId::new(), ResponseId::new()].map(|id| id.expect("there is randomness"));
        assert!(ids[0] != ids[1]);
        for id in ids {
            let digits = id.as_str().strip_prefix("resp_").expect("a prefix");
            assert!(digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
        }
    }
}
