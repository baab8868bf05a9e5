//! Loaded guests, traces and operator tables. Each is loaded only once, however often a script names it or is
//! executed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use vcr_guest::GuestModule;
use vcr_latency::tables::{Tables, TablesError, TablesInput};
use vcr_trace::Trace;

/// The files of a trace, and the options for reading it.
pub(crate) type TraceKey = (Vec<PathBuf>, String);

/// Loaded files that all executions of a script share. Executions may be parallel.
#[derive(Default)]
pub(crate) struct Loaded {
    guests: Mutex<BTreeMap<PathBuf, GuestModule>>,
    traces: Mutex<BTreeMap<TraceKey, Arc<Trace>>>,
    tables: Mutex<BTreeMap<String, Tables>>,
}

impl Loaded {
    /// The guest at `path`. `load` is called only the first time.
    pub(crate) fn guest<E>(
        &self,
        path: PathBuf,
        load: impl FnOnce() -> Result<GuestModule, E>,
    ) -> Result<GuestModule, E> {
        once(&self.guests, path, load)
    }

    /// The trace of `key`. `read` is called only the first time.
    pub(crate) fn trace<E>(
        &self,
        key: TraceKey,
        read: impl FnOnce() -> Result<Arc<Trace>, E>,
    ) -> Result<Arc<Trace>, E> {
        once(&self.traces, key, read)
    }

    /// The tables of `input`, which are read only the first time.
    pub(crate) fn tables(&self, input: &TablesInput) -> Result<Tables, TablesError> {
        once(&self.tables, format!("{input:?}"), || Tables::new(input))
    }
}

/// Returns or makes the value of `key`. The lock is held meanwhile, so that no two threads make the same value.
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
