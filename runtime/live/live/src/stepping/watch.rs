//! Steps of an engine for an observer.

use std::fmt;
use std::sync::Arc;

use vcr_core::{AnyEngine, ServingEngine};

/// Observes the steps of engines on their threads. Each engine reports its steps in order, and waits
/// meanwhile. Times are nanoseconds of the system's monotonic clock.
pub trait StepObserver: fmt::Debug + Send + Sync {
    /// Whether it looks at requests and engines; otherwise it sees ends of steps, stalls and
    /// nothing else. Asked once, before an engine serves.
    fn sees_engines(&self) -> bool;

    /// A request entered an engine, which knows it by a tag, and its frontend by this name.
    fn submitted(&self, rank: u16, tag: u64, name: &str);

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

    /// An engine serves no more, and its steps in flight are lost.
    fn closed(&self, rank: u16);
}

/// The observer of one engine, if it has one.
pub(crate) struct StepWatch {
    observer: Option<Arc<dyn StepObserver>>,
    sees_engines: bool,
    rank: u16,
}

impl StepWatch {
    pub(crate) fn new(observer: Option<&Arc<dyn StepObserver>>, rank: u16) -> Self {
        let sees_engines = observer.is_some_and(|observer| observer.sees_engines());
        Self { observer: observer.cloned(), sees_engines, rank }
    }

    /// Whether the engine is to record its KV events for the observer.
    pub(crate) fn sees_engines(&self) -> bool {
        self.sees_engines
    }

    /// Shows something of engines or requests.
    #[inline]
    pub(crate) fn show(&self, show: impl FnOnce(&dyn StepObserver, u16)) {
        if let Some(observer) = self.observer.as_deref().filter(|_| self.sees_engines) {
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
