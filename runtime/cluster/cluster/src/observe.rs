//! Observation of a run while it executes.

mod series;

use std::sync::Arc;

use vcr_core::plan::StepPlan;
use vcr_core::{AnyEngine, Compilation, ServingEngine};

use crate::ledger::record::RequestRecord;

pub use series::{EngineSample, RunSeries};

/// A step that starts and has just been priced.
#[derive(Clone, Copy, Debug)]
pub struct StepRecord<'a> {
    /// Engine as an index over all engines of the run.
    pub worker: u32,
    /// When it starts.
    pub start_ns: u64,
    /// When it ends.
    pub end_ns: u64,
    /// Plan of the step.
    pub plan: &'a StepPlan,
    /// The engine, with the step in flight.
    pub engine: &'a AnyEngine,
}

/// A cluster at one instant, after all that happened until then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Telemetry<'a> {
    /// Virtual time.
    pub at_ns: u64,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that ended, completed or not.
    pub ended: u64,
    /// Requests that wait in front of the engines.
    pub waiting_in_routers: u64,
    /// The engines, or their ranks, by their index over all of the run.
    pub engines: &'a [EngineSample],
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Virtual time.
    pub now_ns: u64,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that ended, completed or not.
    pub ended: u64,
    /// Requests in running lists.
    pub running: u64,
    /// Requests waiting in engines.
    pub waiting: u64,
    /// Engine steps.
    pub steps: u64,
    /// The total number of requests, if known.
    pub expected: Option<u64>,
}

/// Something notable that is not a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// An engine died.
    Crash,
    /// An engine is up again.
    Restart,
    /// An engine begins to start, for an autoscaler wants it.
    StartUp,
    /// An engine that was started takes requests.
    Up,
    /// An engine accepts no more requests.
    Drain,
    /// An engine has been removed with its cache: it was drained, or its start-up was cancelled.
    Off,
    /// An engine became slower.
    SlowDown,
    /// A slow-down has ended.
    SlowDownEnd,
    /// An engine does nothing for a while.
    Stall,
    /// It continues.
    StallEnd,
}

impl Incident {
    /// Whether the engine has been removed, with its requests and its cache.
    #[must_use]
    pub const fn ends_engine(self) -> bool {
        matches!(self, Self::Crash | Self::Off)
    }
}

/// More requests arrive than are served.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Overload {
    /// The pool with the longest queues.
    pub pool: String,
    /// When it was noticed, in the run's time.
    pub at_ms: f64,
    /// Requests that arrived each second, lately.
    pub arrivals_per_s: f64,
    /// Requests that ended each second, lately.
    pub served_per_s: f64,
    /// Requests that wait.
    pub waiting_requests: u64,
}

impl std::fmt::Display for Overload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pool, at_ms, arrivals_per_s, served_per_s, waiting_requests } = self;
        write!(
            f,
            "the load is above the capacity of pool `{pool}`: at {:.1} s of the run {arrivals_per_s:.1} requests/s \
             arrive and {served_per_s:.1} requests/s are served, {waiting_requests} requests wait, and the queue keeps growing; \
             lower the rate or add engines",
            at_ms / 1e3
        )
    }
}

/// Observes a run. An observer can only influence when the run ends: see [`wants_stop`](Observer::wants_stop).
///
/// Engines are identified by their index among all engines of the run. Each rank of an engine with several
/// ranks counts as an engine.
pub trait Observer {
    /// Whether it wants to see each step. If not, runs of decode steps are applied at once, and
    /// only incidents and progress are shown. Called occasionally: an observer may stop wanting
    /// steps, which changes nothing else, but may not start.
    fn wants_steps(&self) -> bool {
        false
    }

    /// The receiver of the steps of engines with their own threads, if the observer wants them. Called once
    /// before the run; these steps are not reported here.
    fn step_sink(&self) -> Option<Arc<dyn StepSink>> {
        None
    }

    /// Whether the report is to have the engines over time. Asked once, at the start.
    fn wants_series(&self) -> bool {
        false
    }

    /// Whether the report should contain a digest of each step, `Report::step_digests`. Called once
    /// before the run; it changes nothing else.
    fn wants_step_digests(&self) -> bool {
        false
    }

    /// Whether to end the run now, with a report of the results so far. Called occasionally, also
    /// before the first event.
    fn wants_stop(&self) -> bool {
        false
    }

    /// The virtual time between two checks of all engines, if the observer wants them. Called once, at the
    /// start. Instants in between are still grouped, so this costs little.
    fn telemetry_interval_ns(&self) -> Option<u64> {
        None
    }

    /// The state of all engines after all events until an instant.
    fn telemetry(&mut self, _telemetry: &Telemetry<'_>) {}

    /// Whether it wants to see tokens and ends of requests. Asked once, at the start.
    fn wants_requests(&self) -> bool {
        false
    }

    /// A request has got output tokens. Only if the observer wants requests and steps.
    fn tokens(&mut self, _tag: u64, _num_tokens: u32, _at_ns: u64) {}

    /// A request has ended. Called only if the observer wants requests.
    fn ended(&mut self, _tag: u64, _record: &RequestRecord) {}

    /// A request entered an engine.
    fn submitted(&mut self, _worker: u32, _tag: u64) {}

    /// A request was removed from an engine that keeps running.
    fn aborted(&mut self, _worker: u32, _tag: u64) {}

    /// The compilation of the grammar of a request in an engine has ended.
    fn compiled(&mut self, _worker: u32, _tag: u64, _compilation: Compilation) {}

    /// A request without a grammar has ended in an engine that computes nothing.
    fn failed(&mut self, _worker: u32, _tag: u64) {}

    /// An engine decided a step, or only to preempt.
    fn scheduled(&mut self, _worker: u32, _engine: &AnyEngine) {}

    /// A step starts.
    fn started(&mut self, _step: &StepRecord<'_>) {}

    /// The result of a step was applied. The engine has its KV events.
    fn applied(&mut self, _worker: u32, _start_ns: u64, _end_ns: u64, _engine: &AnyEngine) {}

    /// The health of an engine changed. A crashed engine has lost its steps in progress.
    fn incident(&mut self, _worker: u32, _at_ns: u64, _incident: Incident) {}

    /// Called now and then.
    fn progress(&mut self, _progress: &Progress) {}

    /// More requests arrive than are served; called once.
    fn overloaded(&mut self, _overload: &Overload) {}

    /// Checks occasionally whether the run stays within the limits of the process, such as its
    /// memory. An error names the exceeded limit and ends the run.
    fn check_limits(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// A lent observer observes: each of its methods is the observer's own.
impl<T: Observer + ?Sized> Observer for &mut T {
    fn wants_steps(&self) -> bool {
        (**self).wants_steps()
    }

    fn step_sink(&self) -> Option<Arc<dyn StepSink>> {
        (**self).step_sink()
    }

    fn wants_series(&self) -> bool {
        (**self).wants_series()
    }

    fn wants_step_digests(&self) -> bool {
        (**self).wants_step_digests()
    }

    fn wants_stop(&self) -> bool {
        (**self).wants_stop()
    }

    fn wants_requests(&self) -> bool {
        (**self).wants_requests()
    }

    fn telemetry_interval_ns(&self) -> Option<u64> {
        (**self).telemetry_interval_ns()
    }

    fn telemetry(&mut self, telemetry: &Telemetry<'_>) {
        (**self).telemetry(telemetry);
    }

    fn tokens(&mut self, tag: u64, num_tokens: u32, at_ns: u64) {
        (**self).tokens(tag, num_tokens, at_ns);
    }

    fn ended(&mut self, tag: u64, record: &RequestRecord) {
        (**self).ended(tag, record);
    }

    fn submitted(&mut self, worker: u32, tag: u64) {
        (**self).submitted(worker, tag);
    }

    fn aborted(&mut self, worker: u32, tag: u64) {
        (**self).aborted(worker, tag);
    }

    fn compiled(&mut self, worker: u32, tag: u64, compilation: Compilation) {
        (**self).compiled(worker, tag, compilation);
    }

    fn failed(&mut self, worker: u32, tag: u64) {
        (**self).failed(worker, tag);
    }

    fn scheduled(&mut self, worker: u32, engine: &AnyEngine) {
        (**self).scheduled(worker, engine);
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        (**self).started(step);
    }

    fn applied(&mut self, worker: u32, start_ns: u64, end_ns: u64, engine: &AnyEngine) {
        (**self).applied(worker, start_ns, end_ns, engine);
    }

    fn incident(&mut self, worker: u32, at_ns: u64, incident: Incident) {
        (**self).incident(worker, at_ns, incident);
    }

    fn progress(&mut self, progress: &Progress) {
        (**self).progress(progress);
    }

    fn overloaded(&mut self, overload: &Overload) {
        (**self).overloaded(overload);
    }

    fn check_limits(&mut self) -> Result<(), String> {
        (**self).check_limits()
    }
}

/// The name of a request of an engine outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestName<'a> {
    /// Its number in the run.
    Number(u64),
    /// An external name: the run itself has no such request.
    Text(&'a str),
}

/// Sees the same steps as [`Observer`], from the threads of the engines. Each engine reports its
/// own in order, and waits meanwhile.
pub trait StepSink: Send + Sync {
    /// A request entered an engine, which knows it by this tag.
    fn submitted(&self, worker: u32, tag: u64, name: RequestName<'_>);

    /// A request was removed from an engine that keeps running.
    fn aborted(&self, worker: u32, tag: u64);

    /// The compilation of the grammar of a request in an engine has ended.
    fn compiled(&self, worker: u32, tag: u64, compilation: Compilation);

    /// A request without a grammar has ended in an engine that computes nothing.
    fn failed(&self, worker: u32, tag: u64);

    /// An engine decided a step, or only to preempt.
    fn scheduled(&self, worker: u32, engine: &dyn ServingEngine);

    /// The start and the end of a step are known, which has not been applied.
    fn started(&self, worker: u32, times_ns: (u64, u64), plan: &StepPlan, engine: &dyn ServingEngine);

    /// The result of a step was applied. The engine has its KV events.
    fn applied(&self, worker: u32, start_ns: u64, end_ns: u64, engine: &dyn ServingEngine);

    /// An engine forgets its KV events between results of steps. It has them still.
    fn cache_changed(&self, worker: u32, engine: &dyn ServingEngine);

    /// An engine has ended with its steps in flight: later steps belong to its successor.
    fn ended(&self, worker: u32);

    /// An engine changed its health.
    fn incident(&self, worker: u32, at_ns: u64, incident: Incident);
}
