//! The contents of `charts.json`: what report.html draws beyond report.json.

use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::timeline::Timeline;

/// Version of the schema of `charts.json`.
const SCHEMA_VERSION: u32 = 1;

/// Charts of a report.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Charts {
    /// Version of this schema.
    pub schema_version: u32,
    /// The scenario's script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The runs that are drawn, in order.
    pub runs: Vec<RunCharts>,
}

impl Charts {
    /// The charts of these runs.
    #[must_use]
    pub fn new(source: Option<Source>, runs: Vec<RunCharts>) -> Self {
        Self { schema_version: SCHEMA_VERSION, source, runs }
    }
}

/// The text of a script.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Source {
    /// Its file name.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Charts of one run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RunCharts {
    /// Name of the run.
    pub name: String,
    /// Distributions of latencies, for the run and its workloads.
    pub distributions: Vec<Distribution>,
    /// The engines over time; None if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// Changes of engines' health, in order of time.
    pub incidents: Vec<Incident>,
    /// Arrivals and ends of requests over time; none without requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Percentiles of latencies over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub courses: Vec<Course>,
    /// Mean time of completed requests in each phase, for the run and its workloads.
    pub phases: Vec<Bar>,
    /// The requests that took longest, the slowest first.
    pub slowest: Vec<LifeLine>,
}

/// A change of an engine's health.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Incident {
    /// Virtual time.
    pub at_ms: f64,
    /// Name of the engine.
    pub engine: String,
    /// The change, such as `crash`.
    pub what: String,
}

/// The load of a run over time.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Load {
    /// Length of an interval; the first begins at 0.
    pub interval_ms: f64,
    /// Requests that arrived, by interval.
    pub arrived: Vec<u64>,
    /// Requests that ended in any way, by interval.
    pub ended: Vec<u64>,
}

/// Percentiles of a latency of completed requests over time; none in intervals without samples.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Course {
    /// `ttft`, `tpot` or `e2e`.
    pub metric: String,
    /// Length of an interval; the first begins at 0.
    pub interval_ms: f64,
    /// The 50th percentile, by interval.
    pub p50: Vec<Option<f64>>,
    /// The 95th percentile.
    pub p95: Vec<Option<f64>>,
    /// The 99th percentile.
    pub p99: Vec<Option<f64>>,
}

/// A phase of a request's life, in order of time.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// On the way to the queue.
    Arrival,
    /// Waiting for the first step.
    Queue,
    /// Computing the prompt.
    Prefill,
    /// Moving its KV to the decode engine.
    Transfer,
    /// Generating the output.
    Decode,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; 5] = [Self::Arrival, Self::Queue, Self::Prefill, Self::Transfer, Self::Decode];
}

/// Mean time of each phase.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Bar {
    /// Name of the workload; none for the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Completed requests.
    pub requests: u64,
    /// Mean milliseconds of a request in each [`Phase`].
    pub mean_ms: [f64; Phase::ALL.len()],
}

/// Phases of a request, each with its start and its end in milliseconds.
pub type Pieces = Vec<(Phase, f64, f64)>;

/// The life of one request.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LifeLine {
    /// Its number in the run.
    pub id: u64,
    /// Its workload.
    pub workload: String,
    /// How it ended.
    pub status: String,
    /// The engine that computed its prompt, then the engine that generated its output if different.
    pub engines: Vec<String>,
    /// Length of its prompt.
    pub prompt_tokens: u64,
    /// Output tokens emitted.
    pub output_tokens: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Number of retries.
    pub retries: u64,
    /// Arrival to first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// Arrival to end.
    pub total_ms: f64,
    /// Its phases.
    pub phases: Pieces,
}
