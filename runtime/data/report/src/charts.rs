//! The contents of `charts.json`: the data that report.html draws in addition to report.json.

use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::timeline::Timeline;

const SCHEMA_VERSION: u32 = 1;

/// The charts of a report.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Charts {
    /// Version of the schema.
    pub schema_version: u32,
    /// The script of the scenario.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The runs that are drawn, in order.
    pub runs: Vec<RunCharts>,
}

impl Charts {
    /// Makes the charts of these runs.
    #[must_use]
    pub fn new(source: Option<Source>, runs: Vec<RunCharts>) -> Self {
        Self { schema_version: SCHEMA_VERSION, source, runs }
    }
}

/// The text of a script.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Source {
    /// File name of the script.
    pub name: String,
    /// Text of the script.
    pub text: String,
}

/// Charts of one run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RunCharts {
    /// Name of the run.
    pub name: String,
    /// Distributions of latencies, for the run and for its workloads.
    pub distributions: Vec<Distribution>,
    /// The engines over time; None if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// Changes of engines' health, in order of time.
    pub incidents: Vec<Incident>,
    /// Arrivals and ends of requests over time; None without requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Percentiles of latencies over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub courses: Vec<Course>,
    /// Mean time that completed requests spent in each phase, for the run and for its workloads.
    pub phases: Vec<Bar>,
    /// The requests that took longest, slowest first.
    pub slowest: Vec<LifeLine>,
}

impl RunCharts {
    /// The start of an engine's slow-downs that are active at a time; None if the engine is not slowed down.
    #[must_use]
    pub fn slow_since_ms(&self, engine: &str, at_ms: f64) -> Option<f64> {
        let (mut active, mut since_ms) = (0_u32, None);
        for incident in self.incidents.iter().filter(|one| one.engine == engine && one.at_ms <= at_ms) {
            match incident.what.as_str() {
                "slow-down" => {
                    active += 1;
                    since_ms = since_ms.or(Some(incident.at_ms));
                }
                "slow-down ends" => {
                    active = active.saturating_sub(1);
                    since_ms = since_ms.filter(|_| active > 0);
                }
                _ => {}
            }
        }
        since_ms
    }
}

/// A change of an engine's health.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Incident {
    /// Virtual time of the change.
    pub at_ms: f64,
    /// Name of the engine.
    pub engine: String,
    /// The change, such as `crash`.
    pub what: String,
}

/// The load of a run over time.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Load {
    /// Length of an interval; the first interval begins at 0.
    pub interval_ms: f64,
    /// Number of requests that arrived, by interval.
    pub arrived: Vec<u64>,
    /// Number of requests that ended in any way, by interval.
    pub ended: Vec<u64>,
}

/// Percentiles over time of a latency of completed requests; None in intervals without samples.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Course {
    /// The latency: `ttft`, `tpot` or `e2e`.
    pub metric: String,
    /// Length of an interval; the first interval begins at 0.
    pub interval_ms: f64,
    /// The 50th percentile, by interval.
    pub p50: Vec<Option<f64>>,
    /// The 95th percentile, by interval.
    pub p95: Vec<Option<f64>>,
    /// The 99th percentile, by interval.
    pub p99: Vec<Option<f64>>,
}

/// A phase in the life of a request, in order of time.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// From the arrival until the request is queued.
    Arrival,
    /// Waiting for the first step.
    Queue,
    /// Computing the prompt.
    Prefill,
    /// Transferring the prompt's KV to the decode engine.
    Transfer,
    /// Generating the output.
    Decode,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; 5] = [Self::Arrival, Self::Queue, Self::Prefill, Self::Transfer, Self::Decode];
}

/// Mean time of a request in each phase.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Bar {
    /// Name of the workload; None for the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Number of completed requests.
    pub requests: u64,
    /// Mean time in each [`Phase`], in milliseconds.
    pub mean_ms: [f64; Phase::ALL.len()],
}

/// Phases of a request: (phase, start, end), in milliseconds.
pub type Pieces = Vec<(Phase, f64, f64)>;

/// The life of one request.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LifeLine {
    /// The request's number in the run.
    pub id: u64,
    /// Name of the request's workload.
    pub workload: String,
    /// The outcome of the request.
    pub status: String,
    /// The engine that computed the prompt, then the engine that generated the output if different.
    pub engines: Vec<String>,
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// Number of output tokens that were emitted.
    pub output_tokens: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Number of retries.
    pub retries: u64,
    /// Time from arrival to first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// Time from arrival to end.
    pub total_ms: f64,
    /// The phases of the request.
    pub phases: Pieces,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_slow_until_its_last_slow_down_ends() {
        let incident = |(at_ms, engine, what): (f64, &str, &str)| Incident {
            at_ms,
            engine: engine.to_owned(),
            what: what.to_owned(),
        };
        let changes = [
            (1.0, "a 0", "slow-down"),
            (2.0, "a 1", "slow-down"),
            (3.0, "a 0", "slow-down"),
            (4.0, "a 0", "slow-down ends"),
            (5.0, "a 0", "crash"),
            (6.0, "a 0", "slow-down ends"),
            (7.0, "a 0", "slow-down"),
        ];
        let charts = RunCharts { incidents: changes.map(incident).into(), ..RunCharts::default() };
        let slow = |at_ms| charts.slow_since_ms("a 0", at_ms);
        assert_eq!([0.5, 1.0, 5.5, 6.0, 8.0].map(slow), [None, Some(1.0), Some(1.0), None, Some(7.0)]);
        assert_eq!((charts.slow_since_ms("a 1", 9.0), charts.slow_since_ms("b 0", 9.0)), (Some(2.0), None));
    }
}
