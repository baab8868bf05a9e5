//! Features of virtual time that targets lack.

use crate::config::{Answers, RunConfig, WorkloadConfig, WorkloadSource};

/// Workloads that are answered as recorded, whatever the engines do: each as an error names it.
#[must_use]
pub fn recorded_answers(config: &RunConfig) -> Vec<String> {
    let is_recorded =
        |source: &WorkloadSource| matches!(source, WorkloadSource::Trace { answers: Answers::Recorded, .. });
    named(config, "answers as recorded", |workload| is_recorded(&workload.source))
}

/// Workloads whose requests wait for grammars of a known time: each as an error names it.
#[must_use]
pub fn structured_outputs(config: &RunConfig) -> Vec<String> {
    named(config, "structured outputs", |workload| workload.structured.is_some())
}

fn named(config: &RunConfig, what: &str, has_it: impl Fn(&WorkloadConfig) -> bool) -> Vec<String> {
    let with_it = config.workloads.iter().filter(|workload| has_it(workload));
    with_it.map(|workload| format!("{what} (workload `{}`)", workload.name)).collect()
}
