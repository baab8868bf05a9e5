//! A guest that injects failures, and the events that it receives.

use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultError, FaultEvent};

/// A [`FaultEvent`] that owns its strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InjectorEvent {
    Arrived { slot: u32, request_id: String, prompt_tokens: u32, max_tokens: u32, priority: i32, adapter: Option<u32> },
    Emitted { slot: u32, output_tokens: u32 },
    Ended { slot: u32 },
    Utility { method: String },
}

impl InjectorEvent {
    fn event(&self) -> FaultEvent<'_> {
        match *self {
            Self::Arrived { slot, ref request_id, prompt_tokens, max_tokens, priority, adapter } => {
                FaultEvent::Arrived { slot, request_id, prompt_tokens, max_tokens, priority, adapter }
            }
            Self::Emitted { slot, output_tokens } => FaultEvent::Emitted { slot, output_tokens },
            Self::Ended { slot } => FaultEvent::Ended { slot },
            Self::Utility { ref method } => FaultEvent::Utility { method },
        }
    }
}

#[derive(Default)]
pub(crate) struct Injector {
    guest: Option<Box<dyn FailureInjector>>,
    /// Events since the last decision.
    events: Vec<InjectorEvent>,
}

impl Injector {
    /// Without a guest, no event is kept.
    pub(crate) fn new(guest: Option<Box<dyn FailureInjector>>) -> Self {
        Self { guest, events: Vec::new() }
    }

    #[inline]
    pub(crate) fn record(&mut self, event: impl FnOnce() -> InjectorEvent) {
        if self.guest.is_some() {
            self.events.push(event());
        }
    }

    /// The guest's response to the events since the last decision; empty without events.
    pub(crate) fn decide(&mut self, since_start_ns: u64, step: u64) -> Result<Vec<FaultAction>, FaultError> {
        let mut actions = Vec::new();
        let Some(guest) = self.guest.as_mut().filter(|_| !self.events.is_empty()) else { return Ok(actions) };
        let recorded = std::mem::take(&mut self.events);
        let events: Vec<_> = recorded.iter().map(InjectorEvent::event).collect();
        guest.decide(&FaultBatch { now_ns: since_start_ns, step, events: &events }, &mut actions)?;
        Ok(actions)
    }
}
