//! Reasons and durations of stopped admission in a folder's `steps.jsonl`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use vcr_input::Lines;

use super::bound::Bound;
use crate::folder::{FolderError, open};

/// The part of a line that is read here.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(default, borrow)]
    of: Cow<'a, str>,
    #[serde(default, borrow)]
    pool: Cow<'a, str>,
    #[serde(default)]
    engine: u64,
    settings: Option<Map<String, Value>>,
    s: Option<u64>,
    u: Option<u64>,
    duration_ms: Option<f64>,
    #[serde(default)]
    wait: u64,
    #[serde(default)]
    run: Vec<IgnoredAny>,
    #[serde(default, borrow)]
    why: Option<Cow<'a, str>>,
}

/// A schedule whose result is not applied yet.
#[derive(Clone, Copy)]
struct Decided {
    queued: u64,
    active: u64,
    bound: Option<Bound>,
}

/// Sums over the steps of a pool, in milliseconds over all of its engines.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolSteps {
    /// Settings of its engines.
    pub(super) settings: Map<String, Value>,
    /// Time in steps for which requests had to wait.
    pub(super) queued_ms: f64,
    /// Time in steps with as many running requests as there may be.
    pub(super) full_ms: f64,
    pub(super) peak_queued: u64,
    pub(super) peak_active: u64,
    /// Time in steps for which requests had to wait, by the limit that the log names.
    pub(super) bound_ms: BTreeMap<Bound, f64>,
}

impl PoolSteps {
    fn add(&mut self, step: Decided, duration_ms: f64) {
        if step.queued > 0 {
            self.queued_ms += duration_ms;
        }
        let cap = Bound::Sequences.setting(&self.settings);
        if cap.is_some_and(|(_, cap)| step.active >= cap) {
            self.full_ms += duration_ms;
        }
        if let Some(bound) = step.bound {
            *self.bound_ms.entry(bound).or_default() += duration_ms;
        }
    }
}

/// The steps of each pool, by run and pool.
pub(super) type Steps = BTreeMap<(String, String), PoolSteps>;

/// Reads the steps of a folder; none if it has no `steps.jsonl`.
pub(super) fn read(folder: &Path) -> Result<Option<Steps>, FolderError> {
    let path = folder.join("steps.jsonl");
    let Some(file) = open(&path)? else { return Ok(None) };
    let mut lines = Lines::new(BufReader::with_capacity(1 << 18, file));
    let mut steps = Steps::new();
    let mut decided: BTreeMap<(String, String, u64), BTreeMap<u64, Decided>> = BTreeMap::new();
    loop {
        let row = lines.next_row().map_err(|error| FolderError::Read {
            path: path.clone(),
            source: std::io::Error::other(error.to_string()),
        })?;
        let Some((number, row)) = row else { return Ok(Some(steps)) };
        let invalid =
            |reason: String| FolderError::Invalid { path: path.clone(), reason: format!("line {number}: {reason}") };
        let line: Line<'_> = serde_json::from_slice(row).map_err(|error| invalid(error.to_string()))?;
        let pool = steps.entry((line.of.to_string(), line.pool.to_string())).or_default();
        let open = decided.entry((line.of.into_owned(), line.pool.into_owned(), line.engine)).or_default();
        if let Some(settings) = line.settings {
            pool.settings = settings;
        }
        if let Some(schedule) = line.s {
            let bound = line.why.as_deref().map(Bound::of_reason);
            let active = line.run.len() as u64;
            pool.peak_queued = pool.peak_queued.max(line.wait);
            pool.peak_active = pool.peak_active.max(active);
            open.insert(schedule, Decided { queued: line.wait, active, bound });
        }
        let Some((applied, duration_ms)) = line.u.zip(line.duration_ms) else { continue };
        if !(duration_ms.is_finite() && duration_ms >= 0.0) {
            return Err(invalid(format!("`duration_ms` is {duration_ms}: expected a number of at least 0")));
        }
        // Earlier ones were lost in a crash, or did nothing but preempt.
        if let Some(step) = open.remove(&applied) {
            pool.add(step, duration_ms);
        }
        *open = open.split_off(&applied);
    }
}
