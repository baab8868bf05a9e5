//! Schedules engine steps, and records the resulting admissions, preemptions, refusals and loads.

use vcr_core::plan::ScheduledKind;

use crate::error::{SimError, policy_error};
use crate::event::Event;
use crate::in_flight::Stage;
use crate::observe::Observer;
use crate::simulation::Simulation;

impl<O: Observer> Simulation<'_, O> {
    /// Lets a worker decide its next step. Returns false if there is no step.
    pub(super) fn schedule_step(&mut self, index: u32) -> Result<bool, SimError> {
        let now_ns = self.clock.now_ns();
        let worker = self.fleet.worker_mut(index);
        let plan = match worker.schedule(now_ns) {
            Ok(plan) => plan,
            Err(reason) => {
                let worker = self.fleet.worker(index);
                let (config, steps) = (self.fleet.pool(worker.role()).config(), worker.engine_stats().steps);
                return Err(policy_error(config, worker.index(), steps, now_ns, reason));
            }
        };
        for &tag in &plan.preempted {
            self.ledger.preempt(tag, now_ns);
        }
        // The plan lists newly admitted requests after all running ones.
        for entry in plan.scheduled.iter().rev().take_while(|entry| entry.kind != ScheduledKind::Running) {
            self.ledger.admit(entry.tag, now_ns, entry.num_computed_tokens);
            if self.facts.uses_forecast {
                self.buffers.admitted.push(entry.tag);
            }
        }
        // The plan lists a continued prompt before all other requests.
        let continued = plan.scheduled.first().filter(|entry| entry.is_prefill && entry.kind == ScheduledKind::Running);
        let continued = continued.map(|entry| (entry.tag, entry.num_computed_tokens));
        // A schedule that only preempted requests has made room for another one.
        let any = !plan.is_empty() || !plan.preempted.is_empty() || !plan.refused.is_empty();
        let has_step = !plan.is_empty();
        self.buffers.refused.clear();
        self.buffers.refused.extend_from_slice(&plan.refused);
        self.buffers.remote_loads.clear();
        self.buffers.remote_loads.extend_from_slice(&plan.remote_loads);
        self.buffers.tier_loads.clear();
        self.buffers.tier_loads.extend_from_slice(&plan.tier_loads);
        if let Some((tag, num_computed_tokens)) = continued
            && self.fleet.pool_of(index).config().engine.reports_chunks_as_cached()
        {
            self.ledger.continue_prompt(tag, num_computed_tokens);
        }
        // In a pipeline, the order of decodes also depends on schedules without a step.
        if any || self.fleet.worker(index).has_stages() {
            self.observation.scheduled(index, self.fleet.worker(index).engine());
        }
        self.enter_left_steady_decode(index);
        let worker = self.fleet.worker_mut(index);
        if !self.routing.needs(worker.role()).kv_events_at_step_end {
            self.routing.show_kv_events(now_ns, worker);
        }
        let mut loads = std::mem::take(&mut self.buffers.remote_loads);
        for load in loads.drain(..) {
            self.start_transfer(index, load)?;
        }
        self.buffers.remote_loads = loads;
        if self.facts.uses_forecast {
            let mut admitted = std::mem::take(&mut self.buffers.admitted);
            self.mark_scheduled(&admitted);
            admitted.clear();
            self.buffers.admitted = admitted;
        }
        self.refuse(index, has_step);
        self.end_without_grammars(index);
        self.expect_token(index);
        for load in &self.buffers.tier_loads {
            self.ledger.start_load(load, now_ns);
        }
        if !self.buffers.tier_loads.is_empty() || self.fleet.worker(index).has_deferred_lookups() {
            self.expect_loads(index);
        }
        Ok(self.fleet.worker_mut(index).queue_batch(has_step, any, now_ns))
    }

    /// Ends the requests in `buffers.refused`, which reached the head of a worker's queue: at the end of the step
    /// that was decided with them, or now if there is none.
    fn refuse(&mut self, index: u32, has_step: bool) {
        let role = self.fleet.worker(index).role();
        let mut refused = std::mem::take(&mut self.buffers.refused);
        for tag in refused.drain(..) {
            match has_step {
                true => self.in_flight.get_mut(tag).stage = Stage::Refused,
                false => self.reject_in_queue(tag, role),
            }
        }
        self.buffers.refused = refused;
    }

    /// Schedules the event for the next token of a worker's requests with per-request times.
    fn expect_token(&mut self, index: u32) {
        let worker = self.fleet.worker_mut(index);
        if let Some(at_ns) = worker.expect_token_ns(self.clock.now_ns()) {
            let due = Event::TokenDue { worker: index, incarnation: worker.incarnation() };
            self.events.push(at_ns.max(self.clock.now_ns()), due);
        }
    }

    /// Advances the loads from a worker's tiers.
    pub(in crate::simulation) fn progress_loads(&mut self, index: u32, incarnation: u32) {
        let worker = self.fleet.worker_mut(index);
        if worker.incarnation() != incarnation {
            return;
        }
        self.buffers.loaded.clear();
        let is_awaited = worker.has_deferred_lookups();
        worker.advance_loads(self.clock.now_ns(), &mut self.buffers.loaded);
        for &tag in &self.buffers.loaded {
            self.ledger.end_load(tag, self.clock.now_ns());
        }
        if !self.buffers.loaded.is_empty() || is_awaited || self.fleet.worker(index).has_deferred_lookups() {
            self.fleet.note_change(index);
        }
        self.expect_loads(index);
    }

    /// Schedules progress of other workers that wait for a store of this worker into shared tiers.
    pub(in crate::simulation) fn expect_loads_of_others(&mut self, index: u32) {
        if !self.fleet.shares_tiers() || !self.fleet.worker_mut(index).others_await_stores() {
            return;
        }
        for other in self.fleet.pool_of(index).workers().filter(|&other| other != index as usize) {
            let other = other as u32;
            if self.fleet.worker_mut(other).has_deferred_lookups() {
                self.expect_loads(other);
            }
        }
    }

    /// Schedules the next progress of loads from a worker's tiers.
    fn expect_loads(&mut self, index: u32) {
        let worker = self.fleet.worker_mut(index);
        if let Some(at_ns) = worker.expect_load_ns() {
            let progress = Event::TierProgress { worker: index, incarnation: worker.incarnation() };
            self.events.push(at_ns.max(self.clock.now_ns()), progress);
        }
    }
}
