//! Steps of engines: their start, their horizon, their end.

use vcr_core::ServingEngine;
use vcr_core::latency::LatencyError;
use vcr_core::plan::ScheduledKind;

use super::Simulation;
use crate::config::{PoolConfig, PoolRole};
use crate::error::{MakeError, SimError, latency_error, make_error, policy_error};
use crate::event::Event;
use crate::fleet::Worker;
use crate::in_flight::Stage;
use crate::ledger::record::Outcome;
use crate::observe::Observer;

impl<O: Observer> Simulation<'_, O> {
    /// Lets every worker whose situation changed decide and start steps.
    pub(super) fn start_steps(&mut self) -> Result<(), SimError> {
        self.exhaust_instant_steps()?;
        self.start_changed()
    }

    /// Starts steps of the workers whose situation changed.
    pub(super) fn start_changed(&mut self) -> Result<(), SimError> {
        let mut changed = self.fleet.take_changed();
        self.begin_passes(&changed);
        // All of them are scheduled before the first is priced: what a transfer
        // brings may end a fast-forward of steps that could be predicted.
        for &worker in &changed {
            while self.fleet.may_decide(worker) && self.schedule_step(worker)? {}
            self.fleet.worker_mut(worker).drop_empty_batches();
        }
        changed.retain(|&worker| self.fleet.may_start(worker));
        // KV that one of several ranks has reserved blocks for may be there at once.
        let is_settled = self.events.next_but_step_ends() != Some(self.clock.now_ns());
        let mut postponed = Vec::new();
        let mut rest = &changed[..];
        while let Some(&worker) = rest.first() {
            if self.fleet.has_barrier(worker) {
                let ranks = self.fleet.ranks_of(worker);
                let (together, others) = rest.split_at(rest.partition_point(|&rank| rank < ranks.end));
                rest = others;
                if is_settled {
                    self.start_together(ranks, together, rest.is_empty())?;
                } else {
                    postponed.push(worker);
                }
            } else {
                rest = &rest[1..];
                self.start_step(worker, rest.is_empty())?;
            }
        }
        self.fleet.keep_changed(changed, &postponed);
        Ok(())
    }

    /// Passes begin of engines whose ranks count them together.
    fn begin_passes(&mut self, changed: &[u32]) {
        for &worker in changed {
            if self.fleet.counts_passes(worker) {
                self.fleet.begin_pass(worker);
            }
        }
    }

    /// Lets a worker decide its next step. False if that came to nothing.
    fn schedule_step(&mut self, index: u32) -> Result<bool, SimError> {
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
        // Newly admitted requests come after all that were running.
        for entry in plan.scheduled.iter().rev().take_while(|entry| entry.kind != ScheduledKind::Running) {
            self.ledger.admit(entry.tag, now_ns, entry.num_computed_tokens);
            if self.facts.foresees {
                self.scratch.admitted.push(entry.tag);
            }
        }
        // A prompt that continues is before all others.
        let continued = plan.scheduled.first().filter(|entry| entry.is_prefill && entry.kind == ScheduledKind::Running);
        let continued = continued.map(|entry| (entry.tag, entry.num_computed_tokens));
        // A step that did nothing but preempt has made room for another.
        let any = !plan.is_empty() || !plan.preempted.is_empty() || !plan.refused.is_empty();
        let has_step = !plan.is_empty();
        self.scratch.refused.clear();
        self.scratch.refused.extend_from_slice(&plan.refused);
        self.scratch.remote_loads.clear();
        self.scratch.remote_loads.extend_from_slice(&plan.remote_loads);
        self.scratch.tier_loads.clear();
        self.scratch.tier_loads.extend_from_slice(&plan.tier_loads);
        if let Some((tag, num_computed_tokens)) = continued
            && self.fleet.pool_of(index).config().engine.reports_chunks_as_cached()
        {
            self.ledger.continue_prompt(tag, num_computed_tokens);
        }
        // In a pipeline the order of decodes depends on schedules that came to nothing, too.
        if any || self.fleet.worker(index).has_stages() {
            self.observation.scheduled(index, self.fleet.worker(index).engine());
        }
        self.enter_left_steady_decode(index);
        let worker = self.fleet.worker_mut(index);
        if !self.routing.needs(worker.role()).kv_events_at_step_end {
            self.routing.show_kv_events(now_ns, worker);
        }
        let mut loads = std::mem::take(&mut self.scratch.remote_loads);
        for load in loads.drain(..) {
            self.start_transfer(load)?;
        }
        self.scratch.remote_loads = loads;
        if self.facts.foresees {
            let mut admitted = std::mem::take(&mut self.scratch.admitted);
            self.pass(&admitted);
            admitted.clear();
            self.scratch.admitted = admitted;
        }
        self.refuse(index, has_step);
        self.expect_token(index);
        for load in &self.scratch.tier_loads {
            self.ledger.start_load(load, now_ns);
        }
        if !self.scratch.tier_loads.is_empty() || self.fleet.worker(index).has_deferred_lookups() {
            self.expect_loads(index);
        }
        Ok(self.fleet.worker_mut(index).queue_batch(has_step, any, now_ns))
    }

    /// Starts the oldest step that `index` has scheduled, and goes through those
    /// that must follow unless they are watched. `is_last` unless other workers
    /// have yet to start at this instant.
    fn start_step(&mut self, index: u32, is_last: bool) -> Result<(), SimError> {
        let now_ns = self.clock.now_ns();
        let horizon_ns = self.horizon_ns(index, is_last);
        let ahead = !self.must_single_step(index);
        let worker = self.fleet.worker_mut(index);
        let range = match worker.price(now_ns, horizon_ns, ahead) {
            Ok(range) => range,
            Err(reason) => return Err(self.pricing_error(index, reason)),
        };
        let priced_ns = worker.take_durations_ns();
        let durations_ns = &priced_ns[range.clone()];
        self.ledger.start_steps(durations_ns.len() as u64);
        self.show_events_at_step_end(index, now_ns.saturating_add(durations_ns[0]));
        if durations_ns.len() > 1 {
            self.fast_forward(index, durations_ns);
        }
        let worker = self.fleet.worker_mut(index);
        worker.give_back(priced_ns);
        let mut end_ns = worker.book(now_ns, range);
        if ahead && end_ns < horizon_ns {
            end_ns = self.decode_bursts(index, end_ns, horizon_ns)?;
        }
        self.expect_step_end(index, end_ns);
        Ok(())
    }

    /// Whether the step that a worker has scheduled must be taken by itself.
    pub(super) fn must_single_step(&self, index: u32) -> bool {
        let worker = self.fleet.worker(index);
        let role = worker.role();
        self.observation.wants_steps()
            || self.clock.is_real()
            || self.routing.needs(role).single_steps
            || worker.takes_single_steps()
            || !worker.plan().refused.is_empty()
            // A prompt that is computed for another pool ends with its first token.
            || role == PoolRole::Prefill
    }

    /// Goes through all steps but the last, which then is in progress.
    pub(super) fn fast_forward(&mut self, index: u32, durations_ns: &[u64]) {
        let now_ns = self.clock.now_ns();
        let worker = self.fleet.worker_mut(index);
        let batch_requests = worker.plan().shape.batch_requests();
        worker.skip(durations_ns.len() as u32 - 1, self.traffic.output_seeds());
        self.routing.show_fast_forward_events(now_ns, durations_ns, worker);
        let outputs = worker.engine().outputs();
        self.ledger.fast_forward(index, outputs, batch_requests, now_ns, durations_ns);
        let role = worker.role();
        if self.routing.needs(role).outputs {
            for output in &outputs.outputs {
                let output_tokens = self.ledger.record(output.tag).output_tokens;
                self.routing.generated(role, now_ns, output.tag, output_tokens);
            }
        }
        self.enter_left_steady_decode(index);
    }

    /// Shows routers the KV events of a step that has started and ends at `end_ns`, where
    /// that is when they are out.
    pub(super) fn show_events_at_step_end(&mut self, index: u32, end_ns: u64) {
        let worker = self.fleet.worker_mut(index);
        if self.routing.needs(worker.role()).kv_events_at_step_end {
            self.routing.show_kv_events(end_ns, worker);
        }
    }

    /// A step of a worker has started and will end then.
    pub(super) fn expect_step_end(&mut self, index: u32, end_ns: u64) {
        let worker = self.fleet.worker(index);
        let end = Event::StepEnd { worker: index, incarnation: worker.incarnation() };
        self.events.push_step_end(worker.role(), end_ns, end);
        self.observation.started(index, [self.clock.now_ns(), end_ns], worker);
    }

    /// Until when nothing from outside can reach a worker.
    ///
    /// The next instant at which anything outside may reach the engine. What is not in the queue
    /// yet comes out of a step of another engine: the end of a request that another one depends on,
    /// or a prompt that moves on to decode. A prefill engine that waits for blocks may start such a
    /// step as soon as any decode engine takes a prompt from it.
    pub(super) fn horizon_ns(&mut self, index: u32, all_priced: bool) -> u64 {
        if self.clock.is_real() {
            // Steps may end late, and arrivals come earlier among them than planned.
            return self.clock.now_ns();
        }
        let role = self.fleet.worker(index).role();
        let any_pool = self.facts.is_chained || self.fleet.workers_before(role).iter().any(Worker::can_step);
        // What is due of handoffs comes at this instant, too.
        if any_pool && !all_priced || self.handoffs.has_due() {
            return self.clock.now_ns();
        }
        let foreseen = self.foreseen_arrival_ns(index);
        let roles = self.facts.config.topology.roles();
        let feeding = if any_pool { roles } else { &roles[..role.index()] };
        let steps = feeding.iter().filter_map(|&other| self.events.next_step_end(other));
        // Steps that start after the last instant of the run do not happen.
        let end = self.facts.config.max_time_ns.map(|max| max.saturating_add(1));
        let arrival = foreseen.or_else(|| {
            // A request that starts then is on the way to the queue for at least as long.
            self.events.next_arrival().map(|at_ns| at_ns.saturating_add(self.facts.overheads.arrival_ns))
        });
        let others = self.events.next_other().into_iter().chain(self.observation.due_ns());
        others.chain(arrival).chain(self.clock.outside_ns()).chain(steps).chain(end).min().unwrap_or(u64::MAX)
    }

    /// When the next session comes to a worker, where that is known: those of a single
    /// workload start at times of its own and go to the workers in turn, unless they may
    /// overtake each other on the way.
    fn foreseen_arrival_ns(&mut self, index: u32) -> Option<u64> {
        let worker = self.fleet.worker(index);
        let may_overtake = self.facts.overheads.delays_arrivals() || self.clock.outside_ns().is_some();
        if worker.role() != PoolRole::Aggregated || self.facts.is_chained || !self.facts.is_steady || may_overtake {
            return None;
        }
        self.traffic.foreseen_start_ns(self.routing.requests_before(worker.role(), worker.index())?)
    }

    pub(super) fn end_step(&mut self, index: u32) -> Result<(), SimError> {
        let now_ns = self.clock.now_ns();
        let worker = self.fleet.worker(index);
        let role = worker.role();
        let mut refused = std::mem::take(&mut self.scratch.refused);
        refused.clear();
        refused.extend_from_slice(&worker.plan().refused);
        let start_ns = self.apply_step(index)?;
        self.go_on_between_steps(index)?;
        let worker = self.fleet.worker_mut(index);
        self.observation.applied(index, [start_ns, now_ns], worker.engine());
        self.routing.show_kv_events(now_ns, worker);
        worker.clear_kv_events();
        self.enter_left_steady_decode(index);
        let ended = self.fleet.worker(index).engine().outputs();
        self.ledger.end_steady_decode_step(index, ended, now_ns);
        let mut outputs = std::mem::take(&mut self.scratch.outputs);
        outputs.clear();
        outputs.extend_from_slice(&ended.outputs);
        for output in &outputs {
            match (role, output.finish.is_some()) {
                (PoolRole::Prefill, true) => self.end_prefill(index, output)?,
                (PoolRole::Prefill, false) => {}
                (_, has_finished) => {
                    self.emit(output.tag, output.num_tokens, role);
                    if has_finished {
                        self.keep_answer(index, output.tag);
                        self.end(output.tag, Outcome::Completed);
                    }
                }
            }
        }
        for tag in refused.drain(..) {
            // Its client may have given it up since.
            if self.in_flight.find(tag).is_some_and(|live| live.stage == Stage::Refused) {
                self.reject_in_queue(tag, role);
            }
        }
        self.scratch.refused = refused;
        self.inject(index, &outputs)?;
        self.scratch.outputs = outputs;
        self.fleet.note_change(index);
        Ok(())
    }

    /// The queue of a worker has come to the requests in `scratch.refused`: they end with the
    /// step that was decided with them, or at once where there is none.
    fn refuse(&mut self, index: u32, has_step: bool) {
        let role = self.fleet.worker(index).role();
        let mut refused = std::mem::take(&mut self.scratch.refused);
        for tag in refused.drain(..) {
            match has_step {
                true => self.in_flight.get_mut(tag).stage = Stage::Refused,
                false => self.reject_in_queue(tag, role),
            }
        }
        self.scratch.refused = refused;
    }

    /// Applies the result of a worker's step to its engine. Gives when the step started.
    fn apply_step(&mut self, index: u32) -> Result<u64, SimError> {
        let now_ns = self.clock.now_ns();
        let (pools, worker) = self.fleet.split(index);
        let config = pools[worker.role().index()].config();
        let start_ns = worker.step_start_ns();
        self.ledger.end_step(now_ns - start_ns, worker.plan().shape.batch_requests());
        let num_output_tokens = |tag: u64| self.ledger.record(tag).output_tokens;
        worker
            .update(now_ns, self.traffic.output_seeds(), &config.acceptance_rates, num_output_tokens)
            .map_err(|reason| make_error(config, worker.index(), now_ns, MakeError::Tokens(reason)))?;
        Ok(start_ns)
    }

    /// Output tokens become visible to the client.
    fn emit(&mut self, tag: u64, num_tokens: u32, pool: PoolRole) {
        self.observation.tokens(tag, num_tokens, self.clock.now_ns());
        let needs = self.routing.needs(pool);
        if needs.queue {
            self.release_first(pool);
        }
        if self.ledger.emit(tag, num_tokens, self.clock.now_ns()) {
            self.routing.prefilled(pool, self.clock.now_ns(), tag);
        }
        if needs.outputs {
            self.routing.generated(pool, self.clock.now_ns(), tag, self.ledger.record(tag).output_tokens);
        }
    }

    /// Keeps the chosen output of a request that is about to be complete, if the
    /// next turn of its session needs it.
    fn keep_answer(&mut self, index: u32, tag: u64) {
        if let Some(answer) = self.fleet.worker_mut(index).take_chosen(tag)
            && self.in_flight.get(tag).follow_up.needs_answer()
        {
            self.traffic.keep_answer(tag, answer);
        }
    }

    /// Enters the tokens of requests that have left an engine's steady decode.
    fn enter_left_steady_decode(&mut self, index: u32) {
        let ledger = &mut self.ledger;
        let enter = |tag, num_tokens| ledger.leave_steady_decode(index, tag, num_tokens);
        self.fleet.worker_mut(index).take_left_steady_decode(enter);
    }

    /// Has an engine decode nothing steadily, and enters what it gave.
    pub(super) fn dissolve_steady_decode(&mut self, index: u32) {
        self.fleet.worker_mut(index).dissolve_steady_decode();
        self.enter_left_steady_decode(index);
    }

    /// Schedules the instant at which a worker's next token is due, if requests have times
    /// of their own.
    fn expect_token(&mut self, index: u32) {
        let worker = self.fleet.worker_mut(index);
        if let Some(at_ns) = worker.expect_token_ns(self.clock.now_ns()) {
            let due = Event::TokenDue { worker: index, incarnation: worker.incarnation() };
            self.events.push(at_ns.max(self.clock.now_ns()), due);
        }
    }

    /// Something may have arrived for a load from a worker's tiers.
    pub(super) fn progress_loads(&mut self, index: u32, incarnation: u32) {
        let worker = self.fleet.worker_mut(index);
        if worker.incarnation() != incarnation {
            return;
        }
        self.scratch.loaded.clear();
        worker.advance_loads(self.clock.now_ns(), &mut self.scratch.loaded);
        for &tag in &self.scratch.loaded {
            self.ledger.end_load(tag, self.clock.now_ns());
        }
        if !self.scratch.loaded.is_empty() || self.fleet.worker(index).has_deferred_lookups() {
            self.fleet.note_change(index);
        }
        self.expect_loads(index);
    }

    /// Schedules the instant at which loads from a worker's tiers advance.
    fn expect_loads(&mut self, index: u32) {
        let worker = self.fleet.worker_mut(index);
        if let Some(at_ns) = worker.expect_load_ns() {
            let progress = Event::TierProgress { worker: index, incarnation: worker.incarnation() };
            self.events.push(at_ns.max(self.clock.now_ns()), progress);
        }
    }

    /// The failure of a worker's latency model to price the step that starts now.
    pub(super) fn pricing_error(&self, index: u32, reason: LatencyError) -> SimError {
        let worker = self.fleet.worker(index);
        let config: &PoolConfig = self.fleet.pool(worker.role()).config();
        let step = worker.step_number();
        latency_error(config, worker.index(), step..step + worker.num_priced(), self.clock.now_ns(), reason)
    }
}
