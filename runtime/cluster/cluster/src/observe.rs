//! Observation of a run in progress.

mod series;

use std::sync::Arc;

use vcr_core::plan::StepPlan;
use vcr_core::{AnyEngine, Compilation, ServingEngine};

use crate::ledger::record::RequestRecord;

pub use series::{EngineSample, RunSeries};

/// A step that starts now and has been priced.
#[derive(Clone, Copy, Debug)]
pub struct StepRecord<'a> {
    /// Index of the engine over all engines of the run.
    pub worker: u32,
    /// Start of the step.
    pub start_ns: u64,
    /// End of the step.
    pub end_ns: u64,
    /// Plan of the step.
    pub plan: &'a StepPlan,
    /// The engine, with the step in flight.
    pub engine: &'a AnyEngine,
}

/// A cluster at one instant, after all events until then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Telemetry<'a> {
    /// Virtual time.
    pub at_ns: u64,
    /// Number of requests that arrived.
    pub arrived: u64,
    /// Number of requests that ended, completed or not.
    pub ended: u64,
    /// Number of requests that wait in routers.
    pub waiting_in_routers: u64,
    /// The engines, or their ranks, by their index over all engines of the run.
    pub engines: &'a [EngineSample],
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Virtual time.
    pub now_ns: u64,
    /// Number of requests that arrived.
    pub arrived: u64,
    /// Number of requests that ended, completed or not.
    pub ended: u64,
    /// Number of requests in the engines' running lists.
    pub running: u64,
    /// Number of requests that wait in engines.
    pub waiting: u64,
    /// Number of engine steps.
    pub steps: u64,
    /// The total number of requests, if known.
    pub expected: Option<u64>,
}

/// A notable change of an engine's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// An engine died.
    Crash,
    /// An engine is up again.
    Restart,
    /// An autoscaler starts an engine.
    StartUp,
    /// A started engine accepts requests.
    Up,
    /// An engine accepts no more requests.
    Drain,
    /// An engine has been removed with its cache, after it drained or its start-up was cancelled.
    Off,
    /// An engine became slower.
    SlowDown,
    /// A slow-down has ended.
    SlowDownEnd,
    /// An engine stalls.
    Stall,
    /// A stalled engine continues.
    StallEnd,
}

impl Incident {
    /// Whether the engine has been removed with its requests and its cache.
    #[must_use]
    pub const fn ends_engine(self) -> bool {
        matches!(self, Self::Crash | Self::Off)
    }
}

/// A run in which more requests arrive than are served.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Overload {
    /// The pool with the longest queues.
    pub pool: String,
    /// Virtual time of the detection.
    pub at_ms: f64,
    /// Recent arrivals of requests per second.
    pub arrivals_per_s: f64,
    /// Recent ends of requests per second.
    pub served_per_s: f64,
    /// Number of requests that wait.
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

/// Observes a run. An observer can only influence when the run ends; see [`wants_stop`](Observer::wants_stop).
///
/// Engines are identified by their index among all engines of the run. Each rank of an engine with several ranks
/// counts as an engine.
pub trait Observer {
    /// Whether to report each step. If not, many decode steps are simulated at once, and only incidents and
    /// progress are reported. Called occasionally: the answer may change from true to false, but not back.
    fn wants_steps(&self) -> bool {
        false
    }

    /// The receiver of the steps of engines with their own threads, if the observer wants them. Called once before
    /// the run. The observer itself does not get these steps.
    fn step_sink(&self) -> Option<Arc<dyn StepSink>> {
        None
    }

    /// Whether the report should contain time series of the engines. Called once, at the start.
    fn wants_series(&self) -> bool {
        false
    }

    /// Whether the report should contain a digest of each step in `Report::step_digests`. Called once before the
    /// run. Other results are unaffected.
    fn wants_step_digests(&self) -> bool {
        false
    }

    /// Whether to end the run now, with a report of the results so far. Called occasionally, first before the first
    /// event.
    fn wants_stop(&self) -> bool {
        false
    }

    /// The virtual time between two calls of [`telemetry`](Observer::telemetry); None for no calls. Called once, at
    /// the start.
    fn telemetry_interval_ns(&self) -> Option<u64> {
        None
    }

    /// Called with the state of all engines after all events until an instant.
    fn telemetry(&mut self, _telemetry: &Telemetry<'_>) {}

    /// Whether to report tokens and ends of requests. Called once, at the start.
    fn wants_requests(&self) -> bool {
        false
    }

    /// A request got output tokens. Called only if the observer wants requests and steps.
    fn tokens(&mut self, _tag: u64, _num_tokens: u32, _at_ns: u64) {}

    /// A request ended. Called only if the observer wants requests.
    fn ended(&mut self, _tag: u64, _record: &RequestRecord) {}

    /// A request entered an engine.
    fn submitted(&mut self, _worker: u32, _tag: u64) {}

    /// A request was removed from an engine that keeps running.
    fn aborted(&mut self, _worker: u32, _tag: u64) {}

    /// The compilation of a request's grammar has ended.
    fn compiled(&mut self, _worker: u32, _tag: u64, _compilation: Compilation) {}

    /// A request whose grammar failed ended in an engine that computes nothing.
    fn failed(&mut self, _worker: u32, _tag: u64) {}

    /// An engine decided a step, which may consist of preemptions only.
    fn scheduled(&mut self, _worker: u32, _engine: &AnyEngine) {}

    /// A step starts.
    fn started(&mut self, _step: &StepRecord<'_>) {}

    /// The result of a step was applied. The engine still has the step's KV events.
    fn applied(&mut self, _worker: u32, _start_ns: u64, _end_ns: u64, _engine: &AnyEngine) {}

    /// The health of an engine changed. A crashed engine has lost its steps in progress.
    fn incident(&mut self, _worker: u32, _at_ns: u64, _incident: Incident) {}

    /// Called occasionally.
    fn progress(&mut self, _progress: &Progress) {}

    /// More requests arrive than are served. Called once.
    fn overloaded(&mut self, _overload: &Overload) {}

    /// Checks occasionally whether the process stays within its limits, such as memory. An error names the exceeded
    /// limit and ends the run.
    fn check_limits(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// A reference to an observer is an observer that forwards every call.
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

/// The external name of an engine's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestName<'a> {
    /// The request's number in the run.
    Number(u64),
    /// A name from outside the run.
    Text(&'a str),
}

/// Receives the same steps as [`Observer`], from the threads of the engines. Each engine reports its own steps in
/// order, and waits for the call to return.
pub trait StepSink: Send + Sync {
    /// A request entered an engine, which identifies it by `tag`.
    fn submitted(&self, worker: u32, tag: u64, name: RequestName<'_>);

    /// A request was removed from an engine that keeps running.
    fn aborted(&self, worker: u32, tag: u64);

    /// The compilation of a request's grammar has ended.
    fn compiled(&self, worker: u32, tag: u64, compilation: Compilation);

    /// A request whose grammar failed ended in an engine that computes nothing.
    fn failed(&self, worker: u32, tag: u64);

    /// An engine decided a step, which may consist of preemptions only.
    fn scheduled(&self, worker: u32, engine: &dyn ServingEngine);

    /// A step's start and end are known, but its result has not been applied.
    fn started(&self, worker: u32, times_ns: (u64, u64), plan: &StepPlan, engine: &dyn ServingEngine);

    /// The result of a step was applied. The engine still has the step's KV events.
    fn applied(&self, worker: u32, start_ns: u64, end_ns: u64, engine: &dyn ServingEngine);

    /// An engine is about to clear its KV events between two results of steps.
    fn cache_changed(&self, worker: u32, engine: &dyn ServingEngine);

    /// An engine ended with its steps in flight. Later steps belong to the engine that replaces it.
    fn ended(&self, worker: u32);

    /// The health of an engine changed.
    fn incident(&self, worker: u32, at_ns: u64, incident: Incident);
}
