//! What a run lets others see while it goes on.

use vcr_core::Engine;
use vcr_core::plan::StepPlan;

/// A step that has just been scheduled and priced.
#[derive(Clone, Copy, Debug)]
pub struct StepRecord<'a> {
    /// Engine as an index over all engines of the run.
    pub worker: u32,
    /// Number of the step on its engine, from 0.
    pub step: u64,
    /// When it starts.
    pub start_ns: u64,
    /// When it ends.
    pub end_ns: u64,
    /// What it does.
    pub plan: &'a StepPlan,
    /// The engine, with the step in flight.
    pub engine: &'a Engine,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Virtual time.
    pub now_ns: u64,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that ended, in whatever way.
    pub ended: u64,
    /// Requests in running lists.
    pub running: u64,
    /// Requests waiting in engines.
    pub waiting: u64,
    /// Engine steps.
    pub steps: u64,
}

/// Something notable that is not a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// An engine died.
    Crash,
    /// An engine is up again.
    Restart,
    /// An engine became slower.
    SlowDown,
    /// A slow-down is over.
    SlowDownEnd,
}

/// Watches a run. Nothing it does can change the run.
pub trait Observer {
    /// A step was scheduled.
    fn step(&mut self, _step: &StepRecord<'_>) {}

    /// An engine changed its health.
    fn incident(&mut self, _worker: u32, _at_ns: u64, _incident: Incident) {}

    /// Called now and then.
    fn progress(&mut self, _progress: &Progress) {}
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}
