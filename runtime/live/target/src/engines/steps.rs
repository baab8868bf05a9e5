//! Steps of a run's live engines: samples for the report, and single steps for files.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use vcr_cluster::StepFacts;
use vcr_cluster::observe::{Incident, RequestName, StepSink};
use vcr_core::{AnyEngine, ServingEngine};
use vcr_live::{Sees, StepObserver, Submitted};

use super::book::tag_of;
use crate::drive::clock::Clock;

/// The steps of all engines of a run. Clones share them.
#[derive(Clone)]
pub(crate) struct RunSteps(Arc<Shared>);

struct Shared {
    /// The run's clock, set when the run begins.
    clock: OnceLock<Clock>,
    counted: Mutex<Counted>,
    sink: Option<Arc<dyn StepSink>>,
}

#[derive(Default)]
struct Counted {
    facts: StepFacts,
    /// The peak KV cache usage of each engine, by its index in the report.
    kv_peaks: BTreeMap<u32, f64>,
}

impl RunSteps {
    /// Creates the record of a run that has not begun. If there is a sink, it gets every step.
    pub(crate) fn new(sink: Option<Arc<dyn StepSink>>) -> Self {
        Self(Arc::new(Shared { clock: OnceLock::new(), counted: Mutex::default(), sink }))
    }

    pub(crate) fn begin(&self, clock: Clock) {
        // A run begins only once.
        _ = self.0.clock.set(clock);
    }

    /// Returns the observer for a pool's engines. The first engine has this index in the report.
    pub(crate) fn of_pool(&self, first_engine: u32) -> Arc<dyn StepObserver> {
        Arc::new(PoolSteps { run: self.clone(), first_engine })
    }

    /// Passes a change of an engine's health to the sink.
    pub(crate) fn incident(&self, engine: u32, at_ns: u64, incident: Incident) {
        if let Some(sink) = &self.0.sink {
            sink.incident(engine, at_ns, incident);
        }
    }

    pub(crate) fn take(&self) -> StepFacts {
        std::mem::take(&mut self.counted().facts)
    }

    /// The peak KV cache usage of an engine so far.
    pub(crate) fn kv_peak(&self, engine: u32) -> f64 {
        self.counted().kv_peaks.get(&engine).copied().unwrap_or(0.0)
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        // A panic under this lock leaves the counts consistent.
        self.0.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at_ns(&self, monotonic_ns: u64) -> u64 {
        self.0.clock.get().map_or(0, |clock| clock.of_monotonic_ns(monotonic_ns))
    }
}

impl fmt::Debug for RunSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunSteps").field("clock", &self.0.clock).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct PoolSteps {
    run: RunSteps,
    first_engine: u32,
}

impl PoolSteps {
    fn sink(&self) -> Option<&dyn StepSink> {
        self.run.0.sink.as_deref()
    }

    fn worker(&self, rank: u16) -> u32 {
        self.first_engine + u32::from(rank)
    }
}

impl StepObserver for PoolSteps {
    fn sees(&self) -> Sees {
        if self.sink().is_some() { Sees::Engines } else { Sees::Steps }
    }

    fn submitted(&self, rank: u16, &Submitted { tag, name, .. }: &Submitted<'_>) {
        let Some(sink) = self.sink() else { return };
        sink.submitted(self.worker(rank), tag, tag_of(name).map_or(RequestName::Text(name), RequestName::Number));
    }

    fn aborted(&self, rank: u16, tag: u64) {
        if let Some(sink) = self.sink() {
            sink.aborted(self.worker(rank), tag);
        }
    }

    fn scheduled(&self, rank: u16, engine: &dyn ServingEngine) {
        if let Some(sink) = self.sink() {
            sink.scheduled(self.worker(rank), engine);
        }
    }

    fn ended(&self, rank: u16, start_ns: u64, end_ns: u64, engine: &AnyEngine) {
        let plan = engine.oldest_plan();
        {
            let mut counted = self.run.counted();
            counted.facts.durations_ns.push(end_ns - start_ns, 1);
            counted.facts.batches.push(plan.shape.batch_requests(), 1);
            let peak = counted.kv_peaks.entry(self.worker(rank)).or_insert(0.0);
            let blocks = engine.load().num_usable_blocks;
            *peak = peak.max(plan.shape.kv_active_blocks as f64 / f64::from(blocks.max(1)));
        }
        if let Some(sink) = self.sink() {
            let times_ns = (self.run.at_ns(start_ns), self.run.at_ns(end_ns));
            sink.started(self.worker(rank), times_ns, plan, engine);
        }
    }

    fn applied(&self, rank: u16, start_ns: u64, end_ns: u64, engine: &dyn ServingEngine) {
        if let Some(sink) = self.sink() {
            sink.applied(self.worker(rank), self.run.at_ns(start_ns), self.run.at_ns(end_ns), engine);
        }
    }

    fn cache_changed(&self, rank: u16, engine: &dyn ServingEngine) {
        if let Some(sink) = self.sink() {
            sink.cache_changed(self.worker(rank), engine);
        }
    }

    fn stalled(&self, rank: u16, at_ns: u64, for_ns: u64) {
        self.run.counted().facts.stalls += 1;
        let at_ns = self.run.at_ns(at_ns);
        self.run.incident(self.worker(rank), at_ns, Incident::Stall);
        self.run.incident(self.worker(rank), at_ns.saturating_add(for_ns), Incident::StallEnd);
    }

    fn closed(&self, rank: u16) {
        if let Some(sink) = self.sink() {
            sink.ended(self.worker(rank));
        }
    }
}
