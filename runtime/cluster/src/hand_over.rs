//! Hand-overs between the steps of decode engines, as in Dynamo's replay.
//!
//! Where blocks for prompts are taken between steps ([`Reservations::BetweenSteps`]),
//! an engine does nothing for a hand-over while it is in a step. Of those that wait at
//! it, the oldest is tried once for each of these: a prompt comes while the engine is
//! idle; one of its steps ends; KV that has arrived is taken over. KV that arrives
//! during a step is taken over at its end. All of that precedes the steps that start at
//! the same instant, so a prompt whose KV takes no time is part of one.

use vcr_core::{Reservations, ServingEngine};

use crate::config::{SourceOutput, Topology};
use crate::error::SimError;
use crate::sim::Simulation;

/// Something of a hand-over that is due at this instant, once its events are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A worker has got a prompt.
    Reservation { worker: u32 },
    /// The KV of a request has arrived.
    TakeOver { tag: u64, attempt: u32 },
}

impl Simulation<'_> {
    /// Whether a worker takes blocks for prompts from elsewhere between its steps.
    pub(crate) fn reserves_between_steps(&self, worker: u32) -> bool {
        let pool = &self.pools[self.workers[worker as usize].pool as usize];
        pool.config.engine.reservations() == Reservations::BetweenSteps
    }

    /// Whether prefill engines generate outputs, in steps that may take no time.
    pub(crate) fn sources_go_on(&self) -> bool {
        matches!(&self.config.topology, Topology::Disaggregated { link, .. } if link.source_output == SourceOutput::Whole)
    }

    /// Has the prefill engines take all steps that end at this instant. What they hand
    /// over in them is due after the steps of decode engines that start now.
    pub(crate) fn exhaust_instant_steps(&mut self) -> Result<(), SimError> {
        let first_decode_worker = self.pools[1].first_worker;
        let mut others = Vec::new();
        loop {
            others.extend(self.dirty.extract_if(.., |worker| *worker >= first_decode_worker));
            self.start_dirty()?;
            if self.events.next_step_end(0) != Some(self.now_ns) {
                break;
            }
            while self.events.next_step_end(0) == Some(self.now_ns)
                && let Some(event) = self.events.pop_at(self.now_ns)
            {
                self.handle(event)?;
            }
        }
        self.dirty.append(&mut others);
        Ok(())
    }

    /// Does what is due, and what follows from it at this instant.
    pub(crate) fn drive_hand_overs(&mut self) -> Result<(), SimError> {
        while let Some(due) = self.due.pop_front() {
            match due {
                Due::Reservation { worker } => {
                    if self.is_between_steps(worker) {
                        self.try_reservation(worker)?;
                    }
                }
                Due::TakeOver { tag, attempt } => {
                    let Some(worker) = self.destination_of(tag, attempt) else { continue };
                    if self.is_between_steps(worker) {
                        self.take_over(tag);
                        self.try_reservation(worker)?;
                    } else {
                        self.workers[worker as usize].late_kv.push((tag, attempt));
                    }
                }
            }
        }
        Ok(())
    }

    /// A step of a worker has ended: what waited for that goes on.
    pub(crate) fn go_on_between_steps(&mut self, index: u32) -> Result<(), SimError> {
        if !self.reserves_between_steps(index) || !self.is_between_steps(index) {
            return Ok(());
        }
        // Ranks that wait for each other were all in the step.
        let ranks = if self.has_barrier(index) { self.ranks_of(index) } else { index..index + 1 };
        for rank in ranks {
            self.try_reservation(rank)?;
            let late = std::mem::take(&mut self.workers[rank as usize].late_kv);
            self.due.extend(late.into_iter().map(|(tag, attempt)| Due::TakeOver { tag, attempt }));
        }
        Ok(())
    }

    fn is_between_steps(&self, index: u32) -> bool {
        let worker = &self.workers[index as usize];
        worker.may_work() && !worker.executing && (!self.has_barrier(index) || self.is_at_barrier(index))
    }

    fn try_reservation(&mut self, index: u32) -> Result<(), SimError> {
        match self.workers[index as usize].engine.reserve_remote() {
            Some(load) => self.start_transfer(load),
            None => Ok(()),
        }
    }
}
