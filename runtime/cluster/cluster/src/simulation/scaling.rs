//! Autoscaler ticks and their effects.

use super::Simulation;
use crate::config::PoolRole;
use crate::error::SimError;
use crate::event::Event;
use crate::in_flight::Stage;
use crate::observe::{Incident, Observer};

impl<O: Observer> Simulation<'_, O> {
    pub(super) fn scale_tick(&mut self, pool: PoolRole) -> Result<(), SimError> {
        self.turn_off_drained();
        let waiting = self.waiting_in_front(pool);
        let change = self.fleet.decide_scale(pool, self.clock.now_ns(), self.ledger.tally(), waiting)?;
        // The next tick is scheduled before any step starts, because steps must not run ahead of it.
        let interval_ns = self.fleet.pool(pool).scale_interval_ns();
        if let Some(at_ns) = interval_ns.and_then(|interval_ns| self.clock.now_ns().checked_add(interval_ns)) {
            self.events.push(at_ns, Event::ScaleTick { pool });
        }
        if !change.start.is_empty() || !change.leave.is_empty() {
            self.routing.may_release(pool);
        }
        for index in change.start {
            self.start_up(index);
        }
        for (index, is_coming) in change.leave {
            if is_coming {
                self.turn_off(index);
            } else {
                self.drain(index);
            }
        }
        Ok(())
    }

    /// Number of requests that wait in front of the engines of a pool, and the number of their prompt tokens that
    /// this pool computes.
    pub(super) fn waiting_in_front(&self, pool: PoolRole) -> (u64, u64) {
        let (mut requests, mut tokens) = self.routing.queued(pool);
        for &tag in self.routing.parked(pool) {
            // Requests that ended while parked are no longer in flight.
            let Some(live) = self.in_flight.find(tag) else { continue };
            if live.stage == (Stage::Waiting { pool }) {
                requests += 1;
                if pool != PoolRole::Decode || live.stays_with_decode {
                    tokens += u64::from(self.ledger.record(tag).prompt_tokens);
                }
            }
        }
        (requests, tokens)
    }

    fn start_up(&mut self, index: u32) {
        let incarnation = self.fleet.worker(index).incarnation();
        let up_ns = self.fleet.start_up(index, self.clock.now_ns());
        for rank in self.fleet.ranks_of(index) {
            self.note_incident(rank, Incident::StartUp);
        }
        self.events.push(up_ns, Event::WorkerUp { worker: index, incarnation });
    }

    fn drain(&mut self, index: u32) {
        for rank in self.fleet.ranks_of(index) {
            self.fleet.worker_mut(rank).lifecycle_mut().drain();
            self.note_incident(rank, Incident::Drain);
        }
        // The worker may already have finished.
        self.fleet.note_change(index);
    }

    fn turn_off(&mut self, index: u32) {
        for rank in self.fleet.ranks_of(index) {
            self.fleet.worker_mut(rank).turn_off(self.clock.now_ns());
            self.ledger.forget_steady_decode(rank);
            self.routing.crashed(self.fleet.worker(rank));
            self.note_incident(rank, Incident::Off);
        }
    }

    /// Turns off workers that have finished draining, among the workers that changed at this instant.
    pub(super) fn turn_off_drained(&mut self) {
        for position in 0..self.fleet.changed().len() {
            let index = self.fleet.changed()[position];
            if self.fleet.ranks_of(index).all(|rank| self.fleet.worker(rank).is_drained()) {
                self.turn_off(index);
            }
        }
    }

    /// Whether only autoscaler ticks remain, and each autoscaler has seen the final state for long enough that no
    /// tick will change it.
    pub(super) fn only_ticks_are_left(&mut self) -> bool {
        if self.events.has_more_than_ticks() {
            self.clock.expect_more_than_ticks();
            return false;
        }
        let for_ns = self.clock.expect_only_ticks();
        let patience = self.fleet.pools().iter().filter_map(crate::fleet::Pool::scale_patience_ns);
        let all_are_over = self.ledger.ended() == self.ledger.arrived();
        all_are_over || for_ns > patience.max().unwrap_or(0)
    }
}
