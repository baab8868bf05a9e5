//! Features of virtual time that targets lack.

use crate::config::{Answers, RunConfig, WorkloadSource};

/// Workloads that are answered as recorded, whatever the engines do: each as an error names it.
#[must_use]
pub fn recorded_answers(config: &RunConfig) -> Vec<String> {
    let is_recorded =
        |source: &WorkloadSource| matches!(source, WorkloadSource::Trace { answers: Answers::Recorded, .. });
    let recorded = config.workloads.iter().filter(|workload| is_recorded(&workload.source));
    recorded.map(|workload| format!("answers as recorded (workload `{}`)", workload.name)).collect()
}
