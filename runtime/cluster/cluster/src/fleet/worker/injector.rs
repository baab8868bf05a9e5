//! Failure injectors of a pool's engines.
//!
//! An injector is asked at the end of each step of its engine, and keeps its state when the engine restarts.
//! Message faults are counted but have no effect, because simulated engines exchange no messages.

use std::collections::BTreeMap;

use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultError, FaultEvent};

/// An event for the injector that owns its text.
enum Happened {
    Arrived { slot: u32, name: String, prompt_tokens: u32, max_tokens: u32, priority: i32 },
    Emitted { slot: u32, output_tokens: u32 },
    Ended { slot: u32 },
}

impl Happened {
    fn event(&self) -> FaultEvent<'_> {
        match *self {
            Self::Arrived { slot, ref name, prompt_tokens, max_tokens, priority } => {
                FaultEvent::Arrived { slot, request_id: name, prompt_tokens, max_tokens, priority, adapter: None }
            }
            Self::Emitted { slot, output_tokens } => FaultEvent::Emitted { slot, output_tokens },
            Self::Ended { slot } => FaultEvent::Ended { slot },
        }
    }
}

/// The injector of one engine, and the slots by which it knows the engine's requests.
pub(crate) struct Injector {
    injector: Box<dyn FailureInjector>,
    happened: Vec<Happened>,
    slots: BTreeMap<u64, u32>,
    /// The request in each occupied slot.
    tags: Vec<Option<u64>>,
    vacant: Vec<u32>,
}

impl Injector {
    pub(crate) fn new(injector: Box<dyn FailureInjector>) -> Self {
        Self { injector, happened: Vec::new(), slots: BTreeMap::new(), tags: Vec::new(), vacant: Vec::new() }
    }

    pub(crate) fn arrived(&mut self, tag: u64, name: String, prompt_tokens: u32, max_tokens: u32, priority: i32) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.tags.push(None);
            self.tags.len() as u32 - 1
        });
        self.tags[slot as usize] = Some(tag);
        self.slots.insert(tag, slot);
        self.happened.push(Happened::Arrived { slot, name, prompt_tokens, max_tokens, priority });
    }

    pub(crate) fn emitted(&mut self, tag: u64, output_tokens: u32) {
        if let Some(&slot) = self.slots.get(&tag) {
            self.happened.push(Happened::Emitted { slot, output_tokens });
        }
    }

    /// Records that a request left the engine, completed or not.
    pub(crate) fn ended(&mut self, tag: u64) {
        if let Some(slot) = self.slots.remove(&tag) {
            self.tags[slot as usize] = None;
            self.vacant.push(slot);
            self.happened.push(Happened::Ended { slot });
        }
    }

    /// Records that the engine died with its requests.
    pub(crate) fn ended_all(&mut self) {
        for (_, slot) in std::mem::take(&mut self.slots) {
            self.tags[slot as usize] = None;
            self.vacant.push(slot);
            self.happened.push(Happened::Ended { slot });
        }
    }

    pub(crate) fn request(&self, slot: u32) -> Option<u64> {
        self.tags.get(slot as usize).copied().flatten()
    }

    pub(crate) fn decide(&mut self, now_ns: u64, step: u64) -> Result<Vec<FaultAction>, FaultError> {
        let events: Vec<FaultEvent<'_>> = self.happened.iter().map(Happened::event).collect();
        let mut actions = Vec::new();
        self.injector.decide(&FaultBatch { now_ns, step, events: &events }, &mut actions)?;
        self.happened.clear();
        Ok(actions)
    }
}
