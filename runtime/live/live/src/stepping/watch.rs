//! Steps of an engine for an observer.

use std::fmt;
use std::sync::Arc;

use vcr_core::{AnyEngine, ServingEngine};

/// What an observer looks at, each with those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Sees {
    /// Ends of steps, and stalls.
    Steps,
    /// Requests, and engines when they decide and apply steps.
    Requests,
    /// Their KV events.
    Engines,
}

/// A request that has entered an engine.
#[derive(Clone, Copy, Debug)]
pub struct Submitted<'a> {
    /// The engine's name for it.
    pub tag: u64,
    /// Its frontend's.
    pub name: &'a str,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Limit of its output tokens.
    pub max_tokens: u32,
}

/// Observes the steps of engines on their threads. Each engine reports its steps in order, and waits
/// meanwhile. Times are nanoseconds of the system's monotonic clock.
pub trait StepObserver: fmt::Debug + Send + Sync {
    /// What it looks at. Asked once, before an engine serves.
    fn sees(&self) -> Sees;

    /// A request entered an engine.
    fn submitted(&self, rank: u16, request: &Submitted<'_>);

    /// A request was removed from an engine before its end.
    fn aborted(&self, rank: u16, tag: u64);

    /// An engine decided a step, or only to preempt.
    fn scheduled(&self, rank: u16, engine: &dyn ServingEngine);

    /// The oldest step in flight has ended, and is applied next.
    fn ended(&self, rank: u16, start_ns: u64, end_ns: u64, engine: &AnyEngine);

    /// It was applied. The engine has its KV events.
    fn applied(&self, rank: u16, start_ns: u64, end_ns: u64, engine: &dyn ServingEngine);

    /// An engine forgets its KV events between results of steps. It has them still.
    fn cache_changed(&self, rank: u16, engine: &dyn ServingEngine);

    /// A fault stalls an engine.
    fn stalled(&self, rank: u16, at_ns: u64, for_ns: u64);

    /// An engine stops serving, and its steps in flight are lost.
    fn closed(&self, rank: u16);
}

/// The observer of one engine, if it has one.
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

    /// Whether the engine is to record its KV events for the observer.
    pub(crate) fn sees_engines(&self) -> bool {
        self.sees >= Sees::Engines
    }

    /// Shows something of engines or requests.
    #[inline]
    pub(crate) fn show(&self, show: impl FnOnce(&dyn StepObserver, u16)) {
        if let Some(observer) = self.observer.as_deref().filter(|_| self.sees >= Sees::Requests) {
            show(observer, self.rank);
        }
    }

    /// Shows something of steps.
    #[inline]
    pub(crate) fn show_always(&self, show: impl FnOnce(&dyn StepObserver, u16)) {
        if let Some(observer) = self.observer.as_deref() {
            show(observer, self.rank);
        }
    }
}
