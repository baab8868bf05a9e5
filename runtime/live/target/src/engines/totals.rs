//! Totals of live engines for a report.

use std::collections::BTreeMap;
use std::time::Duration;

use vcr_cluster::metrics::Counter;
use vcr_cluster::{EngineReport, FaultConfig, FaultKind, KvTransfer, PoolConfig};
use vcr_live::{EnginesHandle, Snapshot};

use super::book::Book;
use super::steps::RunSteps;

/// The maximum age of engines' snapshots.
pub(crate) const SNAPSHOT_AGE: Duration = Duration::from_millis(60);

pub(crate) struct Totals {
    pub(crate) engines: Vec<EngineReport>,
    pub(crate) engine_names: Vec<String>,
    pub(crate) counters: BTreeMap<&'static str, u64>,
    pub(crate) kv_peak_usage: f64,
    /// Transfers, which end at times on the system's monotonic clock.
    pub(crate) kv_transfers: Vec<KvTransfer>,
}

impl Totals {
    /// Computes the totals of engines that have been idle for [`SNAPSHOT_AGE`].
    pub(crate) fn of(
        handle: &EnginesHandle,
        pool: &PoolConfig,
        (book, steps): (&Book, &RunSteps),
        faults: &[FaultConfig],
        duration_ns: u64,
    ) -> Self {
        let snapshots = handle.snapshots();
        let report = |snapshot: &Snapshot| {
            let kv_peak_usage = steps.kv_peak(book.first_engine() + u32::from(snapshot.rank));
            EngineReport { kv_peak_usage, ..engine_report(snapshot, pool, faults, duration_ns) }
        };
        let engines: Vec<EngineReport> = snapshots.iter().map(report).collect();
        let steps = snapshots.iter().map(|snapshot| snapshot.counters.steps).sum();
        let preemptions = snapshots.iter().map(|snapshot| snapshot.counters.preemptions).sum();
        Self {
            engine_names: (0..pool.most_ranks())
                .map(|rank| format!("{} {}", pool.name, pool.rank_name(rank)))
                .collect(),
            counters: BTreeMap::from([
                (Counter::Steps.info().name, steps),
                (Counter::Preemptions.info().name, preemptions),
            ]),
            kv_peak_usage: engines.iter().map(|engine| engine.kv_peak_usage).fold(0.0, f64::max),
            kv_transfers: book.take_transfers(),
            engines,
        }
    }
}

impl Totals {
    /// Adds up the totals of several pools. The engines keep their order.
    pub(crate) fn sum(pools: impl IntoIterator<Item = Self>) -> Self {
        let mut sum = Self {
            engines: Vec::new(),
            engine_names: Vec::new(),
            counters: BTreeMap::new(),
            kv_peak_usage: 0.0,
            kv_transfers: Vec::new(),
        };
        for pool in pools {
            sum.engines.extend(pool.engines);
            sum.engine_names.extend(pool.engine_names);
            sum.kv_transfers.extend(pool.kv_transfers);
            for (name, count) in pool.counters {
                *sum.counters.entry(name).or_default() += count;
            }
            sum.kv_peak_usage = sum.kv_peak_usage.max(pool.kv_peak_usage);
        }
        sum
    }
}

fn engine_report(snapshot: &Snapshot, pool: &PoolConfig, faults: &[FaultConfig], duration_ns: u64) -> EngineReport {
    let counters = &snapshot.counters;
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    let ranks = pool.data_parallel.size;
    let is_crash = |fault: &&FaultConfig| {
        fault.engine == u32::from(snapshot.rank) / ranks
            && fault.at_ns <= duration_ns
            && matches!(fault.kind, FaultKind::Crash { .. })
    };
    let prefill_tokens = counters.prompt_tokens.saturating_sub(counters.prefix_hits);
    EngineReport {
        pool: pool.name.clone(),
        engine: u32::from(snapshot.rank) / ranks,
        rank: (ranks > 1).then_some(u32::from(snapshot.rank) % ranks),
        worker: u32::from(snapshot.rank),
        steps: counters.steps,
        utilisation: share(counters.busy_ns, duration_ns).min(1.0),
        waiting: None,
        computed_tokens: prefill_tokens + counters.generation_tokens,
        preemptions: counters.preemptions,
        kv_peak_usage: snapshot.kv_cache_usage,
        prefix_hit_ratio: share(counters.prefix_hits, counters.prefix_queries),
        prefix_queried_tokens: counters.prefix_queries,
        crashes: faults.iter().filter(is_crash).count() as u32,
        prefill_tokens,
        kv_tiers: None,
    }
}
