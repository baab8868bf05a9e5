//! Facts of a run: its configuration, and what follows from it. They never change after its start.

use crate::config::{Overheads, RunConfig, WorkloadConfig};

pub(super) struct RunFacts {
    pub(super) config: RunConfig,
    pub(super) overheads: Overheads,
    /// Whether the end of any step can bring about the arrival of a request
    /// anywhere: because another ends, because the router kept it back, or because
    /// of an injected crash.
    pub(super) is_chained: bool,
    /// Whether all workers are up from the beginning to the end.
    pub(super) is_steady: bool,
    /// Whether any pool has an autoscaler.
    pub(super) scales: bool,
    /// Whether its clients are elsewhere, and decide what follows on their requests.
    pub(super) is_served: bool,
    /// Whether caches know the prompts to come.
    pub(super) foresees: bool,
}

impl RunFacts {
    /// Those of a run whose clients are its own, and whose caches do not know the future.
    pub(super) fn of(config: RunConfig) -> Self {
        let pools = config.topology.pools();
        Self {
            overheads: config.topology.overheads(),
            is_chained: config.workloads.iter().any(WorkloadConfig::is_chained)
                || pools.iter().any(|pool| pool.failures.is_some() || pool.router.has_queue()),
            is_steady: config.faults.is_empty()
                && pools.iter().all(|pool| pool.failures.is_none() && pool.scaling.is_none()),
            scales: pools.iter().any(|pool| pool.scaling.is_some()),
            is_served: false,
            foresees: false,
            config,
        }
    }
}
