//! The envelope as it is shown and written.

use serde::Serialize;

use super::bound::BoundShare;
use super::curve::Bucket;
use super::share::Share;

/// Version of the JSON of [`Pressure`].
const SCHEMA_VERSION: u32 = 1;

/// The envelopes of several reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pressure {
    /// Version of this schema.
    pub schema_version: u32,
    /// The runs of all reports, in order.
    pub runs: Vec<RunPressure>,
}

impl Pressure {
    /// Those of these runs.
    #[must_use]
    pub fn new(runs: Vec<RunPressure>) -> Self {
        Self { schema_version: SCHEMA_VERSION, runs }
    }
}

/// The envelope of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunPressure {
    /// The report's path.
    pub report: String,
    /// Name of the run.
    pub run: String,
    /// Duration, in `unit`.
    pub duration: f64,
    /// Unit of times: `ms` or `ticks`.
    pub unit: &'static str,
    /// Its pools.
    pub pools: Vec<PoolPressure>,
    /// Limits between and before pools.
    pub bounds: Vec<BoundShare>,
}

/// The envelope of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolPressure {
    /// Its name.
    pub pool: String,
    /// Number of engines, or of ranks.
    pub engines: u64,
    /// Time of an engine in which requests wait for admission.
    pub queue_pressure: Share,
    /// Time of an engine with as many running requests as there may be.
    pub active_capacity: Share,
    /// Maximum of waiting requests of an engine.
    pub peak_queued: Option<u64>,
    /// Maximum of running requests of an engine.
    pub peak_active: Option<u64>,
    /// Mean share of KV blocks in use.
    pub kv_usage_mean: Share,
    /// Maximum share of KV blocks in use, of an engine.
    pub kv_usage_peak: Share,
    /// Its limits.
    pub bounds: Vec<BoundShare>,
    /// The pool over time; empty where that is not known.
    pub curve: Vec<Bucket>,
}
