//! Prompts that move from prefill to decode engines.
//!
//! If engines reserve blocks for prompts between steps ([`vcr_core::Reservations`]), as in Dynamo's replay, an
//! engine ignores handoffs while it is in a step. The oldest handoff that waits at the engine is tried when a
//! prompt arrives while the engine is idle, when one of its steps ends, and when arrived KV is made available. KV
//! that arrives during a step becomes available at the step's end. All this precedes the steps that start at the
//! same instant, so a prompt whose KV takes no time can be part of such a step.

use vcr_core::ServingEngine;
use vcr_core::plan::{RemoteLoad, RequestOutput};

use super::Simulation;
use crate::config::{PoolRole, SourceOutput};
use crate::disaggregation::{Due, TransferKey};
use crate::error::SimError;
use crate::event::Event;
use crate::in_flight::{Live, Stage};
use crate::ledger::record::Outcome;
use crate::observe::Observer;

impl<O: Observer> Simulation<'_, O> {
    /// Runs all steps of prefill engines that end at this instant, if prefill engines generate whole outputs. Steps
    /// without duration can follow each other. Their handoffs are due after the decode steps that start now.
    pub(super) fn exhaust_instant_steps(&mut self) -> Result<(), SimError> {
        if self.handoffs.source_output() != Some(SourceOutput::Whole) {
            return Ok(());
        }
        let first_decode_worker = self.fleet.pool(PoolRole::Decode).first_worker();
        let mut others = Vec::new();
        loop {
            others.extend(self.fleet.take_changed_from(first_decode_worker));
            self.start_changed()?;
            if self.events.next_step_end(PoolRole::Prefill) != Some(self.clock.now_ns()) {
                break;
            }
            while self.events.next_step_end(PoolRole::Prefill) == Some(self.clock.now_ns())
                && let Some(event) = self.events.pop_at(self.clock.now_ns())
            {
                self.handle(event)?;
            }
        }
        others.into_iter().for_each(|worker| self.fleet.note_change(worker));
        Ok(())
    }

    /// Processes due handoffs, including those that become due at this instant.
    pub(super) fn drive_kv_handoffs(&mut self) -> Result<(), SimError> {
        while let Some(due) = self.handoffs.pop_due() {
            match due {
                Due::Reservation { worker } => {
                    if self.fleet.is_between_steps(worker) {
                        self.try_reservation(worker)?;
                    }
                }
                Due::TakeOver(TransferKey { tag, attempt }) => {
                    let Some(worker) = self.destination_of(tag, attempt) else { continue };
                    if self.fleet.is_between_steps(worker) {
                        self.take_over(tag);
                        self.try_reservation(worker)?;
                    } else {
                        self.fleet.worker_mut(worker).keep_late_kv(tag, attempt);
                    }
                }
            }
        }
        Ok(())
    }

    /// Continues the handoffs that waited for the end of a worker's step.
    pub(super) fn advance_between_steps(&mut self, index: u32) -> Result<(), SimError> {
        if !self.fleet.worker(index).reserves_between_steps() || !self.fleet.is_between_steps(index) {
            return Ok(());
        }
        // With a barrier, all ranks were in the step.
        let ranks = if self.fleet.has_barrier(index) { self.fleet.ranks_of(index) } else { index..index + 1 };
        for rank in ranks {
            self.try_reservation(rank)?;
            for (tag, attempt) in self.fleet.worker_mut(rank).take_late_kv() {
                self.handoffs.push_due(Due::TakeOver(TransferKey { tag, attempt }));
            }
        }
        Ok(())
    }

    /// Handles a worker that decided an empty step. If prefill workers compute only a first token (Dynamo 1.6's
    /// replay), the empty step counts as a pass, after which the worker reserves blocks for the next prompt from
    /// another engine. Returns whether it did.
    pub(super) fn reserve_after_empty_pass(&mut self, index: u32) -> Result<bool, SimError> {
        let worker = self.fleet.worker(index);
        let is_asked = worker.reserves_between_steps()
            && self.retries_when_freed(index)
            && worker.may_reserve()
            && !worker.engine().step_in_flight()
            && !self.fleet.has_barrier(index);
        if is_asked { self.try_reservation(index) } else { Ok(false) }
    }

    /// Whether a prompt without blocks on a worker is retried exactly when a request has freed blocks. This holds
    /// for Dynamo 1.6's mocker of vLLM and TensorRT-LLM.
    fn retries_when_freed(&self, index: u32) -> bool {
        self.handoffs.source_output() == Some(SourceOutput::FirstToken)
            && self.fleet.worker(index).engine().as_vllm().is_some()
    }

    /// Lets a worker reserve blocks for a prompt that another engine computes. Returns whether it did.
    fn try_reservation(&mut self, index: u32) -> Result<bool, SimError> {
        if self.retries_when_freed(index) && !self.fleet.worker(index).may_reserve() {
            return Ok(false);
        }
        match self.fleet.worker_mut(index).reserve_remote() {
            Some(load) => self.start_transfer(index, load).map(|()| true),
            None => Ok(false),
        }
    }

    /// Moves the KV of a prompt that a prefill worker has computed.
    pub(super) fn end_prefill(&mut self, worker: u32, output: &RequestOutput) -> Result<(), SimError> {
        let tag = output.tag;
        self.release_first(PoolRole::Prefill);
        self.ledger.end_prefill(tag, self.clock.now_ns());
        self.routing.moved_on(PoolRole::Prefill, self.clock.now_ns(), tag);
        let live = self.in_flight.get_mut(tag);
        if live.abandoned.is_some() {
            self.end_abandoned_prefill(tag, (worker, output.request));
            return Ok(());
        }
        live.source = Some((worker, output.request));
        if self.ledger.record(tag).max_tokens == 0 {
            self.release_source(tag);
            self.end(tag, Outcome::Completed);
            Ok(())
        } else if let Some((worker, load)) = live.destination.take() {
            live.stage = Stage::Decode { worker, id: load.request };
            self.ledger.enter_decode_worker(tag, worker);
            self.start_transfer(worker, load)
        } else {
            // The sampled token is not sent to the client; the decode engine samples it again.
            self.submit(tag, PoolRole::Decode)
        }
    }

    /// Starts the transfer to blocks that the decode worker `worker` has reserved, as soon as the prompt is
    /// computed.
    pub(super) fn start_transfer(&mut self, worker: u32, load: RemoteLoad) -> Result<(), SimError> {
        let live = self.in_flight.get_mut(load.tag);
        let key = TransferKey { tag: load.tag, attempt: live.attempt };
        let Some((source, _)) = live.source else {
            live.destination = Some((worker, load));
            return self.submit(load.tag, PoolRole::Prefill);
        };
        self.ledger.start_transfer(load.tag, self.clock.now_ns(), load.cached_tokens);
        let source_engine = self.engine_in_pool(source);
        let takes_ns = self.handoffs.start(self.clock.now_ns(), key, &load, source_engine, &mut self.events);
        if let Some(takes_ns) = takes_ns
            && let Some(to) = self.destination_of(key.tag, key.attempt)
        {
            if takes_ns == 0 && self.fleet.worker(to).reserves_between_steps() {
                self.handoffs.push_due(Due::TakeOver(key));
            } else {
                let delivered = Event::TransferDelivered { tag: key.tag, attempt: key.attempt };
                self.events.push(self.clock.now_ns().saturating_add(takes_ns), delivered);
            }
        }
        Ok(())
    }

    pub(super) fn deliver_transfer(&mut self, tag: u64, attempt: u32) {
        let Some(worker) = self.destination_of(tag, attempt) else {
            self.end_orphaned_transfer(TransferKey { tag, attempt });
            return;
        };
        if self.fleet.worker(worker).reserves_between_steps() {
            self.handoffs.push_due(Due::TakeOver(TransferKey { tag, attempt }));
        } else {
            self.take_over(tag);
        }
    }

    pub(super) fn cancel_transfer(&mut self, tag: u64) {
        let &Live { attempt, source, .. } = self.in_flight.get(tag);
        if let Some((worker, _)) = source {
            let source_engine = self.engine_in_pool(worker);
            self.handoffs.cancel(self.clock.now_ns(), TransferKey { tag, attempt }, source_engine, &mut self.events);
        }
    }

    /// The worker that receives this attempt's KV, unless the attempt has ended or failed.
    fn destination_of(&self, tag: u64, attempt: u32) -> Option<u32> {
        match self.in_flight.find(tag) {
            Some(&Live { stage: Stage::Decode { worker, .. }, attempt: now, .. }) if now == attempt => Some(worker),
            _ => None,
        }
    }

    fn take_over(&mut self, tag: u64) {
        let Stage::Decode { worker, id } = self.in_flight.get(tag).stage else { return };
        self.ledger.end_transfer(tag, self.clock.now_ns());
        self.fleet.worker_mut(worker).remote_kv_arrived(id);
        self.fleet.note_change(worker);
        self.release_source(tag);
    }

    /// Frees KV that a prefill worker holds for `tag`, if any.
    fn release_source(&mut self, tag: u64) {
        if let Some((worker, id)) = self.in_flight.get_mut(tag).source.take() {
            self.fleet.worker_mut(worker).release_held_kv(id);
            self.fleet.note_change(worker);
        }
    }

    fn engine_in_pool(&self, worker: u32) -> u32 {
        self.fleet.worker(worker).index() / self.fleet.pool_of(worker).config().data_parallel.size
    }
}
