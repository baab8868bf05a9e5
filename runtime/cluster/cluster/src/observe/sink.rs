//! Steps of engines that have threads of their own.

use vcr_core::plan::StepPlan;
use vcr_core::{Compilation, ServingEngine};

use super::Incident;

/// The name of a request of an engine outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestName<'a> {
    /// Its number in the run.
    Number(u64),
    /// The run does not have it: what else it is called.
    Text(&'a str),
}

/// Sees of steps what [`Observer`](super::Observer) sees, from the threads of the engines. Each
/// engine shows its own in order, and waits meanwhile.
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

    /// An engine is gone with its steps in flight: what it shows next is of another one.
    fn ended(&self, worker: u32);

    /// An engine changed its health.
    fn incident(&self, worker: u32, at_ns: u64, incident: Incident);
}
