//! Samples of live engines over time, for scripts and charts.

use vcr_cluster::PoolRole;
use vcr_cluster::observe::{EngineSample, Incident, RunSeries};
use vcr_live::{EnginesHandle, Snapshot};

/// Samples of all engines of a run, if requested. They come from snapshots, which are some milliseconds old.
pub(crate) struct EngineSeries {
    pools: Vec<(PoolRole, EnginesHandle)>,
    series: Option<RunSeries>,
}

impl EngineSeries {
    pub(crate) fn new(pools: Vec<(PoolRole, EnginesHandle)>, is_wanted: bool) -> Self {
        let engines = pools.iter().map(|(_, handle)| handle.snapshots().len()).sum();
        Self { pools, series: is_wanted.then(|| RunSeries::new(engines)) }
    }

    pub(crate) fn sample(&mut self, now_ns: u64) {
        let Some(series) = self.series.as_mut().filter(|series| series.due_ns() <= now_ns) else { return };
        let of_pool = |(role, handle): &(PoolRole, EnginesHandle)| {
            let role = *role;
            handle.snapshots().into_iter().map(move |snapshot| sample(role, &snapshot))
        };
        let now: Vec<EngineSample> = self.pools.iter().flat_map(of_pool).collect();
        while series.due_ns() <= now_ns {
            series.sample(now.iter().copied());
        }
    }

    /// Records a change of an engine's health. Returns the engine's index in the report.
    pub(crate) fn incident(&mut self, at_ns: u64, pool: PoolRole, engine: u16, incident: Incident) -> u32 {
        let before = self.pools.iter().take_while(|(role, _)| *role != pool);
        let first: usize = before.map(|(_, handle)| handle.snapshots().len()).sum();
        let engine = first as u32 + u32::from(engine);
        if let Some(series) = &mut self.series {
            series.incident(at_ns, engine, incident);
        }
        engine
    }

    pub(crate) fn take(&mut self) -> Option<RunSeries> {
        self.series.take()
    }

    pub(crate) fn pool(&self, role: PoolRole) -> Option<&EnginesHandle> {
        self.pools.iter().find(|(other, _)| *other == role).map(|(_, handle)| handle)
    }
}

fn sample(role: PoolRole, snapshot: &Snapshot) -> EngineSample {
    let counters = &snapshot.counters;
    // Other engines compute the prompts of decode engines.
    let prefill_tokens = match role {
        PoolRole::Aggregated | PoolRole::Prefill => counters.prompt_tokens.saturating_sub(counters.prefix_hits),
        PoolRole::Decode => 0,
    };
    EngineSample {
        running: snapshot.num_running as u32,
        waiting: snapshot.num_waiting as u32,
        kv_usage: snapshot.kv_cache_usage,
        prefill_tokens,
        decode_tokens: counters.generation_tokens,
        preemptions: counters.preemptions,
    }
}
