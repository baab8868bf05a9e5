//! Observation of an engine's steps.

use std::fmt;
use std::sync::Arc;

use vcr_core::{AnyEngine, ServingEngine};

/// The events that an observer requests; each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Sees {
    /// Ends of steps, and stalls.
    Steps,
    /// Requests, and engines when they decide and apply steps.
    Requests,
    /// KV events of engines.
    Engines,
}

/// A request that has entered an engine.
#[derive(Clone, Copy, Debug)]
pub struct Submitted<'a> {
    /// The engine's tag of the request.
    pub tag: u64,
    /// The frontend's ID of the request.
    pub name: &'a str,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Maximum number of output tokens.
    pub max_tokens: u32,
}

/// Observes the steps of engines, on the engines' threads. Each engine reports its steps in order and waits until
/// the call returns. Times are nanoseconds of the system's monotonic clock.
pub trait StepObserver: fmt::Debug + Send + Sync {
    /// The events that the observer requests. Called once, before an engine serves.
    fn sees(&self) -> Sees;

    /// A request entered an engine.
    fn submitted(&self, rank: u16, request: &Submitted<'_>);

    /// A request was removed from an engine before its end.
    fn aborted(&self, rank: u16, tag: u64);

    /// An engine decided a step, or only preempted requests.
    fn scheduled(&self, rank: u16, engine: &dyn ServingEngine);

    /// The oldest step in flight has ended and will be applied next.
    fn ended(&self, rank: u16, start_ns: u64, end_ns: u64, engine: &AnyEngine);

    /// This step was applied. The engine still has its KV events.
    fn applied(&self, rank: u16, start_ns: u64, end_ns: u64, engine: &dyn ServingEngine);

    /// An engine is about to forget KV events that no step's result has shown.
    fn cache_changed(&self, rank: u16, engine: &dyn ServingEngine);

    /// A fault stalls an engine.
    fn stalled(&self, rank: u16, at_ns: u64, for_ns: u64);

    /// An engine stops serving, and its steps in flight are lost.
    fn closed(&self, rank: u16);
}

pub(crate) struct StepWatch {
    observer: Option<Arc<dyn StepObserver>>,
    sees: Sees,
    rank: u16,
}

impl StepWatch {
    pub(crate) fn new(observer: Option<&Arc<dyn StepObserver>>, rank: u16) -> Self {
        let sees = observer.map_or(Sees::Steps, |observer| observer.sees());
        Self { observer: observer.cloned(), sees, rank }
    }

    /// Whether the engine must record its KV events for the observer.
    pub(crate) fn sees_engines(&self) -> bool {
        self.sees >= Sees::Engines
    }

    /// Shows something about engines or requests.
    #[inline]
    pub(crate) fn show(&self, show: impl FnOnce(&dyn StepObserver, u16)) {
        if let Some(observer) = self.observer.as_deref().filter(|_| self.sees >= Sees::Requests) {
            show(observer, self.rank);
        }
    }

    /// Shows something about steps.
    #[inline]
    pub(crate) fn show_always(&self, show: impl FnOnce(&dyn StepObserver, u16)) {
        if let Some(observer) = self.observer.as_deref() {
            show(observer, self.rank);
        }
    }
}
