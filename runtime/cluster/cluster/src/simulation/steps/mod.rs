//! Steps of engines: their start, how far they run ahead, their end.
//!
//! Workers whose situation changed at an instant decide their steps first ([`schedule`]); then
//! those that may start are priced, and taken together as far as nothing from outside can reach
//! the engine ([`horizon`]): predicted in steady decode, one by one with several tokens each
//! ([`bursts`]), or by all ranks that wait for each other ([`barrier`]). At the end of the last
//! one its outputs are seen ([`end`]).

mod barrier;
mod bursts;
mod end;
mod horizon;
mod schedule;

use vcr_core::ServingEngine;
use vcr_core::latency::LatencyError;
use vcr_core::plan::{RemoteLoad, RequestOutput, TierLoad};

use super::Simulation;
use crate::config::PoolConfig;
use crate::error::{SimError, latency_error};
use crate::event::Event;
use crate::observe::Observer;

/// Lists that are kept for their room.
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
            while self.fleet.may_decide(worker) {
                // A pass that comes to nothing is one after which blocks are taken, too.
                if !self.schedule_step(worker)? && !self.reserve_after_empty_pass(worker)? {
                    break;
                }
            }
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

    /// Goes through all steps but the last, which then is in progress.
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

    /// Shows routers the KV events of a step that has started and ends at `end_ns`, where
    /// that is when they are out.
    fn show_events_at_step_end(&mut self, index: u32, end_ns: u64) {
        let worker = self.fleet.worker_mut(index);
        if self.routing.needs(worker.role()).kv_events_at_step_end {
            self.routing.show_kv_events(end_ns, worker);
        }
    }

    /// A step of a worker has started and will end then.
    fn expect_step_end(&mut self, index: u32, end_ns: u64) {
        let worker = self.fleet.worker(index);
        let end = Event::StepEnd { worker: index, incarnation: worker.incarnation() };
        self.events.push_step_end(worker.role(), end_ns, end);
        self.observation.started(index, [self.clock.now_ns(), end_ns], worker);
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

    /// The failure of a worker's latency model to price the step that starts now.
    fn pricing_error(&self, index: u32, reason: LatencyError) -> SimError {
        let worker = self.fleet.worker(index);
        let config: &PoolConfig = self.fleet.pool(worker.role()).config();
        let step = worker.step_number();
        latency_error(config, worker.index(), step..step + worker.num_priced(), self.clock.now_ns(), reason)
    }
}
