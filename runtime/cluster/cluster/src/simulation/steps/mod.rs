//! Steps of engines: their start, how far engines run ahead, and their end.
//!
//! First, workers whose situation changed at an instant decide their steps ([`schedule`]). Then the steps that may
//! start are priced and simulated, as far ahead as nothing from outside can reach the engine. Steps in a steady
//! decode are predicted. Steps with several tokens per request are simulated one by one. Ranks with a barrier run
//! together ([`barrier`]). The outputs become visible at the end of the last step.

mod barrier;
mod schedule;

use vcr_core::latency::LatencyError;
use vcr_core::plan::{RemoteLoad, RequestOutput, TierLoad};
use vcr_core::{Engine, FinishReason, ServingEngine};

use super::Simulation;
use crate::config::{PoolConfig, PoolRole};
use crate::error::{MakeError, SimError, latency_error, make_error};
use crate::event::Event;
use crate::fleet::Worker;
use crate::in_flight::Stage;
use crate::ledger::record::Outcome;
use crate::observe::Observer;

/// Lists whose allocations are reused.
#[derive(Default)]
pub(super) struct StepBuffers {
    outputs: Vec<RequestOutput>,
    remote_loads: Vec<RemoteLoad>,
    tier_loads: Vec<TierLoad>,
    loaded: Vec<u64>,
    refused: Vec<u64>,
    admitted: Vec<u64>,
    durations_ns: Vec<u64>,
}

impl<O: Observer> Simulation<'_, O> {
    /// Lets every changed worker decide and start steps.
    pub(super) fn start_steps(&mut self) -> Result<(), SimError> {
        self.exhaust_instant_steps()?;
        self.start_changed()
    }

    /// Lets changed workers decide and start steps.
    pub(super) fn start_changed(&mut self) -> Result<(), SimError> {
        let mut changed = self.fleet.take_changed();
        self.begin_passes(&changed);
        // All workers are scheduled before the first step is priced, because a transfer may end a fast-forward.
        for &worker in &changed {
            while self.fleet.may_decide(worker) {
                // Blocks are also reserved after an empty pass.
                if !self.schedule_step(worker)? && !self.reserve_after_empty_pass(worker)? {
                    break;
                }
            }
            self.fleet.worker_mut(worker).drop_empty_batches();
        }
        changed.retain(|&worker| self.fleet.may_start(worker));
        // A rank may have just reserved blocks for KV that arrives at this instant. Ranks that step together wait for
        // it.
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

    /// Begins passes of engines whose ranks count passes together.
    fn begin_passes(&mut self, changed: &[u32]) {
        for &worker in changed {
            if self.fleet.counts_passes(worker) {
                self.fleet.begin_pass(worker);
            }
        }
    }

    /// Starts the oldest step that worker `index` has scheduled, and simulates the steps that must follow unless
    /// they are observed. `is_last` is false if other workers have yet to start at this instant.
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

    /// Simulates all steps except the last, which is then in flight.
    fn fast_forward(&mut self, index: u32, durations_ns: &[u64]) {
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

    /// Shows routers the KV events of a step that ends at `end_ns`, if events are published at the end of steps.
    fn show_events_at_step_end(&mut self, index: u32, end_ns: u64) {
        let worker = self.fleet.worker_mut(index);
        if self.routing.needs(worker.role()).kv_events_at_step_end {
            self.routing.show_kv_events(end_ns, worker);
        }
    }

    /// Schedules the end of a step that has started.
    fn expect_step_end(&mut self, index: u32, end_ns: u64) {
        let worker = self.fleet.worker(index);
        let end = Event::StepEnd { worker: index, incarnation: worker.incarnation() };
        self.events.push_step_end(worker.role(), end_ns, end);
        self.observation.started(index, [self.clock.now_ns(), end_ns], worker);
    }

    /// Records the tokens of requests that have left an engine's steady decode.
    fn enter_left_steady_decode(&mut self, index: u32) {
        let ledger = &mut self.ledger;
        let enter = |tag, num_tokens| ledger.leave_steady_decode(index, tag, num_tokens);
        self.fleet.worker_mut(index).take_left_steady_decode(enter);
    }

    pub(super) fn dissolve_steady_decode(&mut self, index: u32) {
        self.fleet.worker_mut(index).dissolve_steady_decode();
        self.enter_left_steady_decode(index);
    }

    /// The error of a worker's latency model, for the step that starts now.
    fn pricing_error(&self, index: u32, reason: LatencyError) -> SimError {
        let worker = self.fleet.worker(index);
        let config: &PoolConfig = self.fleet.pool(worker.role()).config();
        let step = worker.step_number();
        latency_error(config, worker.index(), step..step + worker.num_priced(), self.clock.now_ns(), reason)
    }
}

// Consecutive steps whose requests get several tokens each.
//
// The number of tokens is drawn at the end of a step, so such steps cannot be predicted. While nothing from outside
// reaches the engine and no request can end, they are simulated one after another without the event queue.

impl<O: Observer> Simulation<'_, O> {
    /// Advances from the step of a worker that ends at `end_ns` through the steps that must follow and start before
    /// `horizon_ns`. Returns the end of the last step.
    fn decode_bursts(&mut self, index: u32, mut end_ns: u64, horizon_ns: u64) -> Result<u64, SimError> {
        let role = self.fleet.worker(index).role();
        let needs = self.routing.needs(role);
        // Not for these pools: between steps, blocks for other engines are reserved and KV events are reported.
        if role != PoolRole::Aggregated || needs.kv_events {
            return Ok(end_ns);
        }
        // The number of steps is limited, as for predicted steps, so that the observer is called at intervals.
        for _ in 0..Engine::MAX_PREDICTED_STEPS {
            if end_ns >= horizon_ns || !self.fleet.worker(index).decodes_bursts_on() {
                break;
            }
            let (pools, worker) = self.fleet.split(index);
            let batch_requests = worker.plan().shape.batch_requests();
            self.ledger.end_step(end_ns - worker.step_start_ns(), batch_requests);
            worker.decode_bursts(self.traffic.output_seeds(), &pools[role.index()].config().acceptance_rates);
            for output in &worker.engine().outputs().outputs {
                if self.ledger.emit(output.tag, output.num_tokens, end_ns) {
                    self.routing.prefilled(role, end_ns, output.tag);
                }
                if needs.outputs {
                    let output_tokens = self.ledger.record(output.tag).output_tokens;
                    self.routing.generated(role, end_ns, output.tag, output_tokens);
                }
            }
            self.ledger.start_steps(1);
            end_ns = match worker.price(end_ns, end_ns, false) {
                Ok(range) => worker.book(end_ns, range),
                Err(reason) => return Err(self.pricing_error(index, reason)),
            };
        }
        Ok(end_ns)
    }
}

impl<O: Observer> Simulation<'_, O> {
    /// Whether the step that a worker has scheduled must be simulated alone.
    fn must_single_step(&self, index: u32) -> bool {
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

    /// The time until which nothing from outside can reach a worker.
    ///
    /// Events in the queue bound this time. Other events result from steps of other engines: the end of a request
    /// on which another request depends, or a prompt that moves to a decode engine. A prefill engine that waits for
    /// blocks may start such a step as soon as a decode engine takes a prompt from it.
    fn horizon_ns(&mut self, index: u32, all_priced: bool) -> u64 {
        if self.clock.is_real() {
            // Steps may end late in real time, and requests may arrive before they end.
            return self.clock.now_ns();
        }
        let role = self.fleet.worker(index).role();
        let any_pool = self.facts.is_chained || self.fleet.workers_before(role).iter().any(Worker::can_step);
        // Due handoffs also happen at this instant.
        if any_pool && !all_priced || self.handoffs.has_due() {
            return self.clock.now_ns();
        }
        let forecast = self.forecast_arrival_ns(index);
        let roles = self.facts.config.topology.roles();
        let feeding = if any_pool { roles } else { &roles[..role.index()] };
        let steps = feeding.iter().filter_map(|&other| self.events.next_step_end(other));
        // Steps that start after the end of the run do not happen.
        let end = self.facts.config.max_time_ns.map(|max| max.saturating_add(1));
        let arrival = forecast.or_else(|| {
            // A request that starts at that time takes at least this long to reach the queue.
            self.events.next_arrival().map(|at_ns| at_ns.saturating_add(self.facts.overheads.arrival_ns))
        });
        let others = self.events.next_other().into_iter().chain(self.observation.due_ns());
        others.chain(arrival).chain(self.clock.outside_ns()).chain(steps).chain(end).min().unwrap_or(u64::MAX)
    }

    /// The next arrival of a session at a worker, if known. Sessions of a single workload start at times that do not
    /// depend on each other and go to the workers in turn, unless they can overtake each other before the router.
    fn forecast_arrival_ns(&mut self, index: u32) -> Option<u64> {
        let worker = self.fleet.worker(index);
        let may_overtake = self.facts.overheads.delays_arrivals() || self.clock.outside_ns().is_some();
        if worker.role() != PoolRole::Aggregated || self.facts.is_chained || !self.facts.is_steady || may_overtake {
            return None;
        }
        self.traffic.forecast_start_ns(self.routing.requests_before(worker.role(), worker.index())?)
    }
}

impl<O: Observer> Simulation<'_, O> {
    pub(in crate::simulation) fn end_step(&mut self, index: u32) -> Result<(), SimError> {
        let now_ns = self.clock.now_ns();
        let worker = self.fleet.worker(index);
        let role = worker.role();
        let mut refused = std::mem::take(&mut self.buffers.refused);
        refused.clear();
        refused.extend_from_slice(&worker.plan().refused);
        let start_ns = self.apply_step(index)?;
        self.expect_loads_of_others(index);
        self.advance_between_steps(index)?;
        let worker = self.fleet.worker_mut(index);
        self.observation.applied(index, [start_ns, now_ns], worker.engine());
        self.routing.show_kv_events(now_ns, worker);
        worker.clear_kv_events();
        self.enter_left_steady_decode(index);
        let ended = self.fleet.worker(index).engine().outputs();
        self.ledger.end_steady_decode_step(index, ended, now_ns);
        let mut outputs = std::mem::take(&mut self.buffers.outputs);
        outputs.clear();
        outputs.extend_from_slice(&ended.outputs);
        for output in &outputs {
            if output.finish == Some(FinishReason::Error) {
                self.reject_without_grammar(output.tag);
                continue;
            }
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
            // The client may have cancelled the request in the meantime.
            if self.in_flight.find(tag).is_some_and(|live| live.stage == Stage::Refused) {
                self.reject_in_queue(tag, role);
            }
        }
        self.buffers.refused = refused;
        self.inject(index, &outputs)?;
        self.buffers.outputs = outputs;
        self.fleet.note_change(index);
        Ok(())
    }

    /// Applies the result of a worker's step to its engine. Returns when the step started.
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

    /// Records output tokens that reach the client.
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

    /// Keeps the chosen output of a request that is about to complete, if the next turn of its session repeats it.
    fn keep_answer(&mut self, index: u32, tag: u64) {
        if let Some(answer) = self.fleet.worker_mut(index).take_chosen(tag)
            && self.in_flight.get(tag).follow_up.needs_answer()
        {
            self.traffic.keep_answer(tag, answer);
        }
    }
}
