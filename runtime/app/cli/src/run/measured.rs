//! The results of an execution that are stored: numbers, without requests and samples.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vcr_cluster::{MetricsReport, Report};
use vcr_scenario::{AssertionResult, Outcome, ScenarioError};

use crate::refusal::Refusal;

#[derive(Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The reason why the execution is infeasible, if so; then there are no runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) infeasible: Option<String>,
    /// The error of `infeasible` with its place in the script. Only the process that ran it has it.
    #[serde(skip)]
    pub(crate) refusal: Option<Box<Refusal>>,
    pub(crate) passed: bool,
    pub(crate) assertions: Vec<AssertionResult>,
    /// Results of the script's searches, by name.
    pub(crate) found: Vec<(String, Option<f64>)>,
    pub(crate) runs: Vec<MeasuredRun>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct MeasuredRun {
    pub(crate) name: String,
    pub(crate) seed: u64,
    /// Number of engines ever started.
    #[serde(default)]
    pub(crate) engines: u64,
    /// Metrics by name. Names of percentiles end with, for example, `_p99`.
    pub(crate) metrics: BTreeMap<String, f64>,
    pub(crate) fingerprint: String,
}

impl Measured {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let found = outcome.searches.iter().map(|search| (search.name.clone(), search.bracket.kept));
        Self {
            infeasible: None,
            refusal: None,
            passed: outcome.passed,
            assertions: outcome.assertions.clone(),
            found: found.collect(),
            runs: outcome.runs.iter().map(|run| MeasuredRun::of(run)).collect(),
        }
    }
}

impl Measured {
    /// Broken assertions on this run, or not about a run.
    pub(crate) fn failed(&self, run: &str) -> impl Iterator<Item = &AssertionResult> {
        self.assertions.iter().filter(move |made| !made.passed && made.run.as_deref().is_none_or(|of| of == run))
    }

    /// The seed of the run that an assertion is about; for one about no run, the seed of the first run.
    pub(crate) fn seed_of(&self, assertion: &AssertionResult) -> Option<u64> {
        let is_of = |run: &&MeasuredRun| assertion.run.as_ref().is_none_or(|name| *name == run.name);
        self.runs.iter().find(is_of).map(|run| run.seed)
    }

    /// An execution that failed with an error of the script or its inputs. `label` names it.
    pub(crate) fn infeasible(error: ScenarioError, label: &str) -> Self {
        Self {
            infeasible: Some(error.to_string().replace('\n', "; ")),
            refusal: Some(Box::new(Refusal::from(error).of(label))),
            passed: false,
            assertions: Vec::new(),
            found: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// The error to return if all executions are infeasible.
    pub(crate) fn whole_refusal<'a>(all: impl IntoIterator<Item = &'a mut Self>) -> Option<Refusal> {
        let mut first = None;
        for one in all {
            let text = one.infeasible.as_ref()?;
            first.get_or_insert_with(|| match one.refusal.take() {
                Some(refusal) => *refusal,
                None => Refusal::input(text.clone()),
            });
        }
        first
    }
}

impl MeasuredRun {
    fn of(run: &Report) -> Self {
        let mut metrics = flat(&run.metrics);
        metrics.insert("duration_ms".to_owned(), run.duration_ms);
        let engines = run.engines.len() as u64;
        Self { name: run.name.clone(), seed: run.seed, engines, metrics, fingerprint: run.fingerprint.clone() }
    }
}

/// All metrics of a run, with one name each, as in reports.
fn flat(metrics: &MetricsReport) -> BTreeMap<String, f64> {
    let mut flat = BTreeMap::new();
    let report = serde_json::to_value(metrics).unwrap_or_default();
    let part = |name: &str| report[name].as_object().cloned().unwrap_or_default();
    let single = part("counters").into_iter().chain(part("gauges"));
    let rates = part("rates_per_s").into_iter().map(|(name, value)| (format!("{name}_per_s"), value));
    for (name, value) in single.chain(rates) {
        flat.extend(value.as_f64().map(|number| (name, number)));
    }
    for (name, statistics) in part("trends") {
        let Value::Object(statistics) = statistics else { continue };
        for (statistic, value) in statistics {
            flat.extend(value.as_f64().map(|number| (format!("{name}_{statistic}"), number)));
        }
    }
    flat
}
