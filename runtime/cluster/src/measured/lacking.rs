//! What targets lack that virtual time has.

use crate::config::{Answers, RunConfig, TracePacing, WorkloadConfig, WorkloadSource};

/// The parts of a run that no target but virtual time has: each as an error names it.
#[must_use]
pub fn virtual_only(config: &RunConfig) -> Vec<String> {
    let mut parts = Vec::new();
    for workload in &config.workloads {
        let WorkloadConfig { name, source, .. } = workload;
        if let WorkloadSource::Trace { answers: Answers::Recorded, .. } = source {
            parts.push(format!("answers as recorded (workload `{name}`)"));
        }
        let is_faster = |pacing: &TracePacing| {
            let (TracePacing::Recorded { speedup } | TracePacing::ClosedLoop { speedup, .. }) = pacing;
            !speedup.is_finite()
        };
        if let WorkloadSource::Trace { pacing, .. } = source
            && is_faster(pacing)
        {
            parts.push(format!("an infinite speed-up (workload `{name}`)"));
        }
    }
    parts
}
