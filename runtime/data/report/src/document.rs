//! The parts of `report.json` that are shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::deployment::{self, PoolDeployment};
use crate::limit::{Limit, headroom_of};
use crate::page::Tone;

/// A whole report. Unknown keys are ignored; keys that an older report lacks have defaults.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Document {
    /// Version of vcr.
    pub vcr_version: String,
    /// File name of the script.
    pub scenario: String,
    /// SHA-256 of the script.
    #[serde(default)]
    pub scenario_sha256: String,
    /// The claim of the script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Values of the parameters by name.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Files that the script read.
    #[serde(default)]
    pub inputs: Vec<Input>,
    /// Whether every assertion passed.
    pub passed: bool,
    /// The reason why the run was stopped early; None if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<Partial>,
    /// The assertions, in the order of the script.
    #[serde(default)]
    pub assertions: Vec<Assertion>,
    /// Fingerprint of all runs together.
    #[serde(default)]
    pub fingerprint: String,
    /// The runs, in the order of the script.
    pub runs: Vec<Run>,
}

/// A file that a script has read.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Input {
    /// Kind of the file: `trace`, `guest` and so on.
    pub kind: String,
    /// Path of the file in the script.
    pub path: String,
    /// SHA-256 of the file.
    pub sha256: String,
}

/// The reason why a report is partial.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Partial {
    /// The cause of the stop, such as `SIGINT`; `error` for an error of the script, a guest or an engine.
    pub stopped_by: String,
    /// The error, if an error stopped the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An assertion of the script.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Assertion {
    /// The run that the assertion is about; None for free conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Name of the metric or of the free condition.
    pub subject: String,
    /// The condition on the metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The compared value, in milliseconds for times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<f64>,
    /// The compared value, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_text: Option<String>,
    /// Whether the assertion passed.
    pub passed: bool,
}

impl Document {
    pub(crate) fn assertions_of(&self, run: &str) -> impl Iterator<Item = &Assertion> {
        self.assertions.iter().filter(move |assertion| assertion.run.as_deref() == Some(run))
    }
}

impl Partial {
    /// The reason why the scenario was stopped early.
    #[must_use]
    pub fn reason(&self) -> String {
        match &self.error {
            Some(error) => error.clone(),
            None => format!("stopped by {}", self.stopped_by),
        }
    }
}

impl Assertion {
    /// The observed value for people.
    #[must_use]
    pub fn observed_text(&self) -> &str {
        match (&self.observed_text, &self.condition) {
            (Some(text), _) => text,
            (None, Some(_)) => "no samples",
            (None, None) => "",
        }
    }

    /// The limit, if the condition compares a metric with a number.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        Limit::of(&self.subject, self.condition.as_deref()?)
    }

    /// The share of the limit that the observed value leaves.
    #[must_use]
    pub fn headroom(&self) -> Option<f64> {
        headroom_of(&self.subject, self.condition.as_deref()?, self.observed?)
    }

    /// The subject and the condition as one text.
    #[must_use]
    pub fn title(&self) -> String {
        let condition = self.condition.as_deref().unwrap_or_default();
        format!("{} {condition}", self.subject).trim().to_owned()
    }
}

/// A run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Run {
    /// Name of the run.
    pub name: String,
    /// Seed of the run.
    #[serde(default)]
    pub seed: u64,
    /// Duration of the run in virtual time.
    #[serde(default)]
    pub duration_ms: f64,
    /// Whether the run was stopped early.
    #[serde(default)]
    pub partial: bool,
    /// Number of requests in progress at the end of the run.
    #[serde(default)]
    pub unfinished_requests: u64,
    /// Metrics over all workloads.
    #[serde(default)]
    pub metrics: Metrics,
    /// Metrics by workload.
    #[serde(default)]
    pub workloads: BTreeMap<String, Metrics>,
    /// The engines of the run.
    #[serde(default)]
    pub engines: Vec<Engine>,
    /// Changes of the number of engines, in order.
    #[serde(default)]
    pub scaling: Vec<Scaling>,
    /// The links of the run.
    #[serde(default)]
    pub links: Vec<Link>,
    /// Share of the step time that lies outside the range on which latency models were fitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside_fitted_range: Option<f64>,
    /// Shares of the step time, by the way in which operator tables priced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_coverage: Option<TableCoverage>,
    /// Pools whose steps are priced by a GPU's peak performance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peaks: Vec<Peak>,
    /// Workloads whose answers arrive at the recorded times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recorded_workloads: Vec<String>,
    /// The GPUs of the run's pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<PoolDeployment>,
    /// The load above the capacity; None unless queues kept growing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overload: Option<Overload>,
    /// The target of the run, if the engines were real.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Fingerprint of the run.
    #[serde(default)]
    pub fingerprint: String,
}

/// A load above a pool's capacity.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Overload {
    /// The pool with the most waiting requests.
    pub pool: String,
    /// Virtual time at which the overload was detected.
    #[serde(default)]
    pub at_ms: f64,
    /// Arrivals per second in the latest interval.
    pub arrivals_per_s: f64,
    /// Completions per second in the latest interval.
    pub served_per_s: f64,
    /// Number of waiting requests.
    #[serde(default)]
    pub waiting_requests: u64,
}

/// A pool whose steps are priced by a GPU's peak performance.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Peak {
    /// The pool.
    pub pool: String,
    /// Whether coefficients of the latency model were fitted to measurements.
    #[serde(default, rename = "fitted", skip_serializing_if = "std::ops::Not::not")]
    pub is_fitted: bool,
}

/// Shares of the step time, by the way in which operators were priced.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct TableCoverage {
    /// Share priced by rows of the tables.
    pub measured: f64,
    /// Share priced by interpolation between rows.
    pub interpolated: f64,
    /// Share priced by extrapolation beyond the rows.
    pub extrapolated: f64,
    /// Share priced by a formula, without a table.
    pub formula: f64,
}

/// The text that `cut` of `all` runs were stopped early; empty if none was.
#[must_use]
pub fn cut_text(cut: usize, all: usize) -> String {
    match (cut, all) {
        (0, _) => String::new(),
        (_, 1) => ", but the run was stopped early".to_owned(),
        _ => format!(", but {cut} of {all} runs were stopped early"),
    }
}

impl Document {
    /// The text that runs were stopped early; empty if none was.
    #[must_use]
    pub fn cut_text(&self) -> String {
        cut_text(self.runs.iter().filter(|run| run.partial).count(), self.runs.len())
    }
}

/// The source of times in a scenario that nothing else is known of.
const SET_IN_SCENARIO: &str = "set by the scenario or a guest";

impl Run {
    /// GPUs and cost, and a line for each pool. Empty if no pool has a deployment.
    #[must_use]
    pub fn gpus_and_cost(&self) -> Vec<String> {
        deployment::lines(&self.metrics.gauges, &self.deployments)
    }

    /// The source of the step times and its accuracy, with the tone for this text.
    #[must_use]
    pub fn pricing(&self) -> (String, Tone) {
        self.pricing_by(SET_IN_SCENARIO)
    }

    /// Like [`pricing`](Self::pricing), with a name for the source of times that nothing is known of.
    #[must_use]
    pub fn pricing_by(&self, source: &str) -> (String, Tone) {
        let recorded: Vec<&str> = self.recorded_workloads.iter().map(String::as_str).collect();
        match recorded.len() {
            0 => self.pricing_of_steps(source),
            count if count >= self.workloads.len() => ("recorded in the traces".to_owned(), Tone::Neutral),
            _ => {
                let (text, tone) = self.pricing_of_steps(source);
                (format!("{text}; recorded for {}", recorded.join(", ")), tone)
            }
        }
    }

    fn pricing_of_steps(&self, source: &str) -> (String, Tone) {
        /// A larger share of extrapolated step time is shown as a warning.
        const MUCH: f64 = 0.05;
        let percent = |share: f64| share * 100.0;
        if let Some(target) = &self.target {
            let name = if target.name.is_empty() { "of the run" } else { &target.name };
            return (format!("measured on the target {name}"), Tone::Neutral);
        }
        if let Some(coverage) = &self.table_coverage {
            let known = coverage.measured + coverage.interpolated;
            let text = format!(
                "operator tables, {:.1} % of the step time within them: the median error on 720 measured servers was 10 % \
                 in TPOT and 37 % in TTFT; see docs/appendix/measured-servers.md",
                percent(known)
            );
            return (text, if known < 1.0 - MUCH { Tone::Warned } else { Tone::Neutral });
        }
        if let Some(outside) = self.outside_fitted_range {
            let text = format!(
                "measured or fitted prices, {:.1} % of the step time outside their range; docs/appendix/fitted-models.md \
                 has errors of fitted models",
                percent(outside)
            );
            return (text, if outside > MUCH { Tone::Warned } else { Tone::Neutral });
        }
        if !self.peaks.is_empty() && self.peaks.iter().all(|peak| peak.is_fitted) {
            let text =
                "roofline with fitted coefficients, as accurate as their fit; see docs/appendix/fitted-models.md";
            return (text.to_owned(), Tone::Neutral);
        }
        if !self.peaks.is_empty() {
            let text = "roofline, uncalibrated: mean ITL of recorded deployments was 7 to 33 % off, median TTFT 9 to 48 %; see \
                 docs/appendix/fitted-models.md";
            return (text.to_owned(), Tone::Warned);
        }
        (format!("{source}, and not compared with a real engine"), Tone::Neutral)
    }
}

/// Metrics of a run or workload. Times are in milliseconds, and their names end in `_ms`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Metrics {
    /// Totals.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Totals per second.
    #[serde(default, deserialize_with = "known")]
    pub rates_per_s: BTreeMap<String, f64>,
    /// Single values.
    #[serde(default, deserialize_with = "known")]
    pub gauges: BTreeMap<String, f64>,
    /// Distributions.
    #[serde(default)]
    pub trends: BTreeMap<String, Trend>,
    /// Number of rejected requests by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rejections: BTreeMap<String, u64>,
    /// Number of failed requests by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
}

/// Reads numbers and skips nulls. JSON has null instead of a number that is not finite.
fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let all = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
    Ok(all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

impl Metrics {
    /// A total; 0 if the report omits it.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// The statistics of a distribution.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Trend {
    /// Number of samples.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest sample.
    pub min: f64,
    /// 50th percentile.
    pub p50: f64,
    /// 75th percentile.
    pub p75: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest sample.
    pub max: f64,
}

/// The work of an engine during a run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Engine {
    /// Name of the pool.
    pub pool: String,
    /// Index of the engine in the pool.
    #[serde(default)]
    pub engine: u32,
    /// Rank of the engine, if engines have several ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Number of steps.
    #[serde(default)]
    pub steps: u64,
    /// Share of the run that the engine spent in steps.
    #[serde(default)]
    pub utilisation: f64,
    /// Number of computed tokens.
    #[serde(default)]
    pub computed_tokens: u64,
    /// Number of preemptions.
    #[serde(default)]
    pub preemptions: u64,
    /// Maximum share of KV blocks in use.
    #[serde(default)]
    pub kv_peak_usage: f64,
    /// Share of the looked-up prompt tokens that were in the prefix cache.
    #[serde(default)]
    pub prefix_hit_ratio: f64,
    /// Number of crashes.
    #[serde(default)]
    pub crashes: u32,
}

/// A change of the number of engines of a pool.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Scaling {
    /// Virtual time of the change, in milliseconds.
    pub at_ms: f64,
    /// Name of the pool.
    pub pool: String,
    /// Number of engines before the change.
    pub from: u32,
    /// Number of engines after the change.
    pub to: u32,
}

/// The traffic of a link.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Link {
    /// Bytes of all transfers.
    pub bytes: u64,
    /// Share of the run in which a transfer was in progress.
    pub utilisation: f64,
}

/// The target of a run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Target {
    /// Name of the target.
    #[serde(default)]
    pub name: String,
    /// KV transfers between engines that moved real bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kv_transfers: Vec<KvTransfers>,
}

/// All KV transfers between two engines.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct KvTransfers {
    /// The engine that generates the outputs.
    pub engine: String,
    /// The engine that computes the prompts.
    pub from: String,
    /// Number of complete transfers.
    pub transfers: u64,
    /// Bytes of the transferred pages.
    pub bytes: u64,
    /// Number of transferred pages or parts of pages.
    pub pages: u64,
    /// Total time that transfers waited for a connection.
    pub queue_ms: f64,
    /// Total time that connections took to set up.
    pub connect_ms: f64,
    /// Total time that pages took to move.
    pub move_ms: f64,
    /// Number of failed transfers by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
}
