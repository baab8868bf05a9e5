//! Failure injectors: what those of a pool's engines are told, and what their
//! wishes come to in virtual time.
//!
//! An injector is asked at the end of each step of its engine, and keeps its
//! state when the engine restarts. What is about messages means nothing here,
//! because there is no wire: it is counted and not done.

use std::collections::BTreeMap;

use vcr_core::ServingEngine;
use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultError, FaultEvent};
use vcr_core::plan::RequestOutput;

use crate::error::SimError;
use crate::event::Event;
use crate::metrics::Counter;
use crate::observe::Incident;
use crate::record::{FailReason, Outcome};
use crate::sim::Simulation;

/// Something to tell, with its own text.
enum Happened {
    Arrived { slot: u32, name: String, prompt_tokens: u32, max_tokens: u32, priority: i32 },
    Emitted { slot: u32, output_tokens: u32 },
    Ended { slot: u32 },
}

impl Happened {
    fn event(&self) -> FaultEvent<'_> {
        match *self {
            Self::Arrived { slot, ref name, prompt_tokens, max_tokens, priority } => {
                FaultEvent::Arrived { slot, request_id: name, prompt_tokens, max_tokens, priority, lora: None }
            }
            Self::Emitted { slot, output_tokens } => FaultEvent::Emitted { slot, output_tokens },
            Self::Ended { slot } => FaultEvent::Ended { slot },
        }
    }
}

/// The injector of one engine, and its names for the engine's requests.
pub(crate) struct Injector {
    injector: Box<dyn FailureInjector>,
    happened: Vec<Happened>,
    slots: BTreeMap<u64, u32>,
    /// The request of each slot that is taken.
    tags: Vec<Option<u64>>,
    vacant: Vec<u32>,
}

impl Injector {
    pub(crate) fn new(injector: Box<dyn FailureInjector>) -> Self {
        Self { injector, happened: Vec::new(), slots: BTreeMap::new(), tags: Vec::new(), vacant: Vec::new() }
    }

    /// A request came to the engine.
    pub(crate) fn arrived(&mut self, tag: u64, name: String, prompt_tokens: u32, max_tokens: u32, priority: i32) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.tags.push(None);
            self.tags.len() as u32 - 1
        });
        self.tags[slot as usize] = Some(tag);
        self.slots.insert(tag, slot);
        self.happened.push(Happened::Arrived { slot, name, prompt_tokens, max_tokens, priority });
    }

    fn emitted(&mut self, tag: u64, output_tokens: u32) {
        if let Some(&slot) = self.slots.get(&tag) {
            self.happened.push(Happened::Emitted { slot, output_tokens });
        }
    }

    /// A request left the engine, for whatever reason.
    pub(crate) fn ended(&mut self, tag: u64) {
        if let Some(slot) = self.slots.remove(&tag) {
            self.tags[slot as usize] = None;
            self.vacant.push(slot);
            self.happened.push(Happened::Ended { slot });
        }
    }

    /// The engine died, and its requests with it.
    pub(crate) fn ended_all(&mut self) {
        for (_, slot) in std::mem::take(&mut self.slots) {
            self.tags[slot as usize] = None;
            self.vacant.push(slot);
            self.happened.push(Happened::Ended { slot });
        }
    }

    fn request(&self, slot: u32) -> Option<u64> {
        self.tags.get(slot as usize).copied().flatten()
    }

    fn decide(&mut self, now_ns: u64, step: u64) -> Result<Vec<FaultAction>, FaultError> {
        let events: Vec<FaultEvent<'_>> = self.happened.iter().map(Happened::event).collect();
        let mut actions = Vec::new();
        self.injector.decide(&FaultBatch { now_ns, step, events: &events }, &mut actions)?;
        self.happened.clear();
        Ok(actions)
    }
}

impl Simulation<'_> {
    /// Tells the injector of an engine, if it has one, what the step that has
    /// just ended gave, and does what it wants.
    pub(crate) fn inject(&mut self, index: u32, outputs: &[RequestOutput]) -> Result<(), SimError> {
        let worker = &mut self.workers[index as usize];
        let step = worker.engine_stats().steps - worker.engine.steps_in_flight() as u64;
        let Some(injector) = worker.injector.as_deref_mut() else { return Ok(()) };
        // Of a prompt that moves on, the record has no token: none is shown.
        let moves_on = self.pools.len() > 1 && worker.pool == 0;
        for output in outputs {
            if output.num_tokens > 0 {
                let shown = self.records[output.tag as usize].output_tokens;
                injector.emitted(output.tag, if moves_on { output.num_tokens } else { shown });
            }
            if moves_on || output.finish.is_some() {
                injector.ended(output.tag);
            }
        }
        let actions = injector.decide(self.now_ns, step).map_err(|reason| SimError::Failures {
            pool: self.pools[worker.pool as usize].config.name.clone(),
            engine: self.pools[worker.pool as usize].config.rank_name(worker.index),
            at_ms: self.now_ns as f64 / 1e6,
            reason,
        })?;
        for action in actions {
            self.suffer(index, action)?;
        }
        Ok(())
    }

    fn suffer(&mut self, index: u32, action: FaultAction) -> Result<(), SimError> {
        let worker = &self.workers[index as usize];
        let is_serving = worker.is_serving();
        match action {
            FaultAction::FailRequest { slot } => {
                // One that a crash of the same answer took is not there.
                if let Some(tag) = worker.injector.as_deref().and_then(|injector| injector.request(slot)) {
                    self.fail_request(tag);
                }
                Ok(())
            }
            FaultAction::Stall { duration_ns } if is_serving => {
                self.stall(index, duration_ns);
                Ok(())
            }
            FaultAction::Crash { restart_after_ns } if is_serving => self.crash(index, restart_after_ns),
            FaultAction::Stall { .. }
            | FaultAction::Crash { .. }
            | FaultAction::DropMessage
            | FaultAction::DuplicateMessage
            | FaultAction::CorruptMessage
            | FaultAction::DelayMessage { .. }
            | FaultAction::LoseKvEvents
            | FaultAction::FailUtility => {
                self.step_metrics.add(Counter::IgnoredFaults, 1);
                Ok(())
            }
        }
    }

    /// A request ends with an error. Its client has its answer, so it is not
    /// tried again.
    fn fail_request(&mut self, tag: u64) {
        self.cancel_transfer(tag);
        self.withdraw(tag, &(0..0));
        let wasted = u64::from(self.records[tag as usize].output_tokens);
        self.count(tag, Counter::WastedTokens, wasted);
        self.end(tag, Outcome::Failed(FailReason::Injected));
    }

    /// An engine does nothing for a time.
    fn stall(&mut self, index: u32, duration_ns: u64) {
        self.observer.incident(index, self.now_ns, Incident::Stall);
        self.step_metrics.add(Counter::Stalls, 1);
        let until_ns = self.now_ns.saturating_add(duration_ns);
        let worker = &mut self.workers[index as usize];
        worker.stall(until_ns);
        let incarnation = worker.incarnation;
        self.events.push(until_ns, Event::StallEnd { worker: index, incarnation });
    }

    /// A stall may be over, unless a longer one has begun or the engine died.
    pub(crate) fn end_stall(&mut self, index: u32, incarnation: u32) {
        let worker = &mut self.workers[index as usize];
        if worker.incarnation == incarnation && worker.end_stall(self.now_ns) {
            self.observer.incident(index, self.now_ns, Incident::StallEnd);
            self.dirty.push(index);
        }
    }
}
