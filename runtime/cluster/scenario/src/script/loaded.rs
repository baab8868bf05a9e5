//! Loaded guests, traces and operator tables: each is loaded once, although a script may name it repeatedly
//! and be executed repeatedly.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use vcr_guest::GuestModule;
use vcr_latency::tables::{Tables, TablesError, TablesInput};
use vcr_trace::Trace;

/// A trace by its files and the options that it was read with.
pub(crate) type TraceKey = (Vec<PathBuf>, String);

/// Shared by all executions of a script, which may be parallel.
#[derive(Default)]
pub(crate) struct Loaded {
    guests: Mutex<BTreeMap<PathBuf, GuestModule>>,
    traces: Mutex<BTreeMap<TraceKey, Arc<Trace>>>,
    tables: Mutex<BTreeMap<String, Tables>>,
}

impl Loaded {
    /// The guest at `path`, which `load` loads the first time.
    pub(crate) fn guest<E>(
        &self,
        path: PathBuf,
        load: impl FnOnce() -> Result<GuestModule, E>,
    ) -> Result<GuestModule, E> {
        once(&self.guests, path, load)
    }

    /// The trace of `key`, which `read` reads the first time.
    pub(crate) fn trace<E>(
        &self,
        key: TraceKey,
        read: impl FnOnce() -> Result<Arc<Trace>, E>,
    ) -> Result<Arc<Trace>, E> {
        once(&self.traces, key, read)
    }

    /// The tables of `input`, read the first time.
    pub(crate) fn tables(&self, input: &TablesInput) -> Result<Tables, TablesError> {
        once(&self.tables, format!("{input:?}"), || Tables::new(input))
    }
}

/// Holds the lock while it makes a value, so that no two threads make the same.
fn once<K: Ord, V: Clone, E>(
    known: &Mutex<BTreeMap<K, V>>,
    key: K,
    make: impl FnOnce() -> Result<V, E>,
) -> Result<V, E> {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(value) = known.get(&key) {
        return Ok(value.clone());
    }
    let value = make()?;
    known.insert(key, value.clone());
    Ok(value)
}
