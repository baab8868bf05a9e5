//! Submission, transfer and end of requests in the cluster.

use std::ops::Range;

use vcr_core::route::EndedRequest;
use vcr_core::{DrawnOutputs, KvRole, RejectReason, RequestId, RequestSpec, ServingEngine, StopRules, seed};

use super::Simulation;
use crate::config::{PoolRole, SourceOutput};
use crate::disaggregation::{Due, stays_with_decode};
use crate::error::SimError;
use crate::event::Event;
use crate::in_flight::Stage;
use crate::ledger::record::{FailReason, Outcome};
use crate::observe::Observer;
use crate::routing::Routed;

impl<O: Observer> Simulation<'_, O> {
    /// Sends a request that is on no worker to its first pool.
    pub(super) fn dispatch(&mut self, tag: u64) -> Result<(), SimError> {
        let record = self.ledger.record(tag);
        let (prompt_tokens, max_tokens) = (record.prompt_tokens, record.max_tokens);
        let first = self.fleet.first_role();
        let mut fits = self.check(first, prompt_tokens, self.tokens_of_part(tag, first));
        if first == PoolRole::Prefill && fits.is_ok() {
            fits = self.check(PoolRole::Decode, prompt_tokens, max_tokens);
        }
        if let Err(reason) = fits
            && !self.is_rejected_in_queue(tag, first)
        {
            self.end(tag, Outcome::Rejected(reason));
            return Ok(());
        }
        if let Some(config) = self.facts.config.topology.conditional() {
            let (prefill, decode) = (self.fleet.workers_of(PoolRole::Prefill), self.fleet.workers_of(PoolRole::Decode));
            let live = self.in_flight.get_mut(tag);
            let prompt = live.take_prompt();
            live.stays_with_decode = stays_with_decode(config, &prompt, prefill, decode);
            live.prompt = Some(prompt);
            if live.stays_with_decode {
                self.ledger.stays_with_decode(tag);
                return self.submit(tag, PoolRole::Decode);
            }
        }
        if first == PoolRole::Prefill && max_tokens > 0 && self.reserves_before_prefill() {
            return self.submit(tag, PoolRole::Decode);
        }
        self.submit(tag, first)
    }

    pub(super) fn check(&self, pool: PoolRole, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        let engine = self.fleet.workers_of(pool)[0].engine();
        engine.check(prompt_tokens, max_tokens)?;
        if pool == PoolRole::Decode { engine.check_load(prompt_tokens) } else { Ok(()) }
    }

    /// Whether a request can never run in a pool and must be rejected at the head of a worker's queue.
    pub(super) fn is_rejected_in_queue(&self, tag: u64, pool: PoolRole) -> bool {
        let record = self.ledger.record(tag);
        self.fleet.pool(pool).config().rejects_in_queue()
            && self.check(pool, record.prompt_tokens, self.tokens_of_part(tag, pool)).is_err()
    }

    /// Rejects a request that can never run and has reached the head of a worker's queue.
    pub(super) fn reject_in_queue(&mut self, tag: u64, pool: PoolRole) {
        let prompt_tokens = self.ledger.record(tag).prompt_tokens;
        let fits = self.check(pool, prompt_tokens, self.tokens_of_part(tag, pool));
        self.end(tag, Outcome::Rejected(fits.err().unwrap_or(RejectReason::ExceedsKvPool)));
    }

    /// Whether decode workers reserve blocks before prompts are computed.
    fn reserves_before_prefill(&self) -> bool {
        self.fleet.pool(PoolRole::Decode).config().engine.reserves_before_prefill()
    }

    /// Number of output tokens that a pool generates for a request.
    pub(super) fn tokens_of_part(&self, tag: u64, pool: PoolRole) -> u32 {
        let max_tokens = self.ledger.record(tag).max_tokens;
        match (pool, self.handoffs.source_output()) {
            (PoolRole::Prefill, Some(SourceOutput::FirstToken)) => max_tokens.min(1),
            _ => max_tokens,
        }
    }

    /// The part that a pool's worker plays in the transfer of the request's KV.
    pub(super) fn kv_role(&self, tag: u64, pool: PoolRole) -> KvRole {
        match pool {
            PoolRole::Aggregated => KvRole::Local,
            PoolRole::Prefill => KvRole::Source,
            PoolRole::Decode if self.in_flight.get(tag).stays_with_decode => KvRole::Local,
            PoolRole::Decode => KvRole::Destination,
        }
    }

    /// Routes a request to a worker of `pool`, or makes it wait until one is up.
    pub(super) fn submit(&mut self, tag: u64, pool: PoolRole) -> Result<(), SimError> {
        self.in_flight.get_mut(tag).stage = Stage::Waiting { pool };
        match self.route(tag, pool)? {
            Routed::To(to) => self.place(tag, pool, to),
            Routed::Shed => self.end(tag, Outcome::Shed),
            Routed::Queued => self.routing.expect_wake(pool, self.clock.now_ns(), &mut self.events),
            Routed::Nowhere if self.fleet.may_recover(pool) => self.routing.park(pool, tag),
            Routed::Nowhere => self.fail_without_engine(tag),
        }
        Ok(())
    }

    /// Places a request on its chosen worker.
    pub(super) fn place(&mut self, tag: u64, pool: PoolRole, to: crate::routing::RoutedTo) {
        let own = self.fleet.pool(pool);
        let worker = own.first_worker() + to.worker;
        let overlap_tokens = to.overlap_blocks.map(|blocks| blocks * own.config().engine.block_size());
        let eos_token = own.config().tokens.as_ref().and_then(|tokens| tokens.eos_token);
        self.ledger.route(tag, pool, overlap_tokens);
        let (kv_role, max_tokens) = (self.kv_role(tag, pool), self.tokens_of_part(tag, pool));
        // An engine stops generating when the client has as many tokens as it wants.
        let max_tokens = self.cancel_tokens(tag).map_or(max_tokens, |enough| max_tokens.min(enough));
        let drawn = self.drawn_outputs(tag, worker).filter(|_| kv_role != KvRole::Source);
        let drawn = drawn.filter(|_| self.in_flight.get(tag).stop_after.is_none());
        let is_refused = self.is_rejected_in_queue(tag, pool);
        let compilation = self.compilation_of(tag);
        let record = self.ledger.record(tag);
        let live = self.in_flight.get_mut(tag);
        live.routed[pool.index()] = Some(to.worker);
        // True if the prompt must still be computed.
        let is_ahead = kv_role == KvRole::Destination && live.source.is_none();
        let may_retry = live.client.as_ref().is_some_and(|client| client.may_retry);
        let keeps_prompt = self.facts.config.max_retries > 0 || may_retry || kv_role == KvRole::Source || is_ahead;
        let prompt = live.take_prompt();
        if keeps_prompt {
            live.prompt = Some(prompt.clone());
        }
        // The stop token is the token that is drawn at its index.
        let drawn_stop = live
            .stop_after
            .filter(|_| eos_token.is_none())
            .map(|tokens| seed::output_token(self.traffic.output_seeds()[tag as usize], tokens - 1));
        let spec = RequestSpec {
            stops: eos_token.or(drawn_stop).map(|token| Box::new(StopRules::of_token(token))),
            lora: record.adapter,
            priority: live.priority,
            tenant: self.facts.config.workloads[record.workload as usize].tenant,
            slo: self.facts.config.workloads[record.workload as usize].objectives_of(record.class),
            arrival_ns: record.queued_ns,
            kv_role,
            drawn,
            is_refused,
            structured: compilation.is_some(),
            ..RequestSpec::new(tag, prompt, max_tokens)
        };
        self.fleet.note_request(worker);
        let id = match self.fleet.worker_mut(worker).submit(spec, self.facts.config.seed) {
            Ok(id) => id,
            Err(reason) => return self.end(tag, Outcome::Rejected(reason)),
        };
        if kv_role == KvRole::Destination {
            live.stage = Stage::Decode { worker, id };
            if !is_ahead {
                self.ledger.enter_decode_worker(tag, worker);
            }
            if self.fleet.worker(worker).reserves_between_steps() {
                self.handoffs.push_due(Due::Reservation { worker });
            }
        } else {
            live.stage = Stage::Prefill { worker, id };
            self.ledger.enter_prefill_worker(tag, worker);
        }
        self.fleet.note_change(worker);
        self.observation.submitted(worker, tag);
        if let Some(compilation) = compilation {
            self.begin_compilation(tag, worker, compilation);
        }
        self.announce(worker, tag, max_tokens);
    }

    /// Whether and how the outputs of a request are drawn at a worker. None if an observer, router or injector sees
    /// the outputs, or a token source chooses them.
    fn drawn_outputs(&self, tag: u64, worker: u32) -> Option<DrawnOutputs> {
        let worker = self.fleet.worker(worker);
        if self.observation.wants_steps() || !worker.draws_outputs_unseen() || self.routing.needs(worker.role()).outputs
        {
            return None;
        }
        let seed = self.traffic.output_seeds()[tag as usize];
        Some(DrawnOutputs { seed, group: self.ledger.record(tag).workload })
    }

    /// Removes a request and its resources from its queue and from all workers except the `crashed` ones, which
    /// have lost it.
    pub(super) fn withdraw(&mut self, tag: u64, crashed: &Range<u32>) {
        let live = self.in_flight.get_mut(tag);
        let reserved = live.destination.take().map(|(worker, load)| (worker, load.request));
        let source = live.source.take();
        let at = match live.stage {
            Stage::Prefill { worker, id } | Stage::Decode { worker, id } => Some((worker, id)),
            Stage::Waiting { pool } => {
                self.routing.withdraw(pool, tag);
                None
            }
            Stage::Refused | Stage::Played { .. } | Stage::Answered => None,
        };
        let is_left = |held: &(u32, RequestId)| !crashed.contains(&held.0);
        for (worker, id) in at.into_iter().chain(reserved).filter(is_left) {
            self.dissolve_steady_decode(worker);
            self.fleet.worker_mut(worker).abort(tag, id);
            self.observation.aborted(worker, tag);
            self.fleet.note_change(worker);
            if self.fleet.worker(worker).reserves_between_steps() {
                // There may now be room for another prompt.
                self.handoffs.push_due(Due::Reservation { worker });
            }
        }
        if let Some((worker, id)) = source.filter(is_left) {
            self.fleet.worker_mut(worker).release_held_kv(id);
            self.fleet.note_change(worker);
        }
    }

    /// Ends a request for which no engine is up or will be.
    pub(super) fn fail_without_engine(&mut self, tag: u64) {
        self.withdraw(tag, &(0..0));
        self.end(tag, Outcome::Failed(FailReason::NoEngine));
    }

    /// Ends a request for routers and engines. The client may not have received the complete answer yet.
    pub(super) fn end(&mut self, tag: u64, outcome: Outcome) {
        if self.in_flight.get(tag).abandoned.is_some() {
            self.end_abandoned(tag);
            return;
        }
        self.mark_scheduled(&[tag]);
        let outcome = self.end_wait(tag, outcome);
        let record = self.ledger.record(tag);
        let output_tokens = record.output_tokens;
        let ended = EndedRequest {
            id: tag,
            worker: 0,
            output_tokens,
            failed: outcome != Outcome::Completed,
            ttft_ns: record.prefill_end_ns.map(|first_ns| first_ns - record.arrival_ns),
        };
        let live = self.in_flight.get_mut(tag);
        self.routing.ended(self.clock.now_ns(), live.routed, ended);
        // Recorded times are client times, so nothing is added to them.
        let is_played = matches!(live.stage, Stage::Played { .. });
        let way_ns = if is_played { 0 } else { self.facts.overheads.answer_ns(output_tokens) };
        live.stage = Stage::Answered;
        if way_ns == 0 {
            self.answer(tag, outcome);
        } else {
            self.events.push(self.clock.now_ns().saturating_add(way_ns), Event::Answered { tag, outcome });
        }
    }

    /// Gives the complete answer to the client, and ends the request. The session continues or makes room for
    /// another.
    pub(super) fn answer(&mut self, tag: u64, outcome: Outcome) {
        let live = self.in_flight.remove(tag);
        self.ledger.end(tag, outcome, self.clock.now_ns());
        let record = self.ledger.record(tag);
        let slo = self.facts.config.workloads[record.workload as usize].slo_of(record.class);
        if let Some(is_met) = slo.map(|slo| slo.is_kept(record)) {
            self.ledger.count_slo(is_met);
        }
        self.observation.ended(tag, self.ledger.record(tag));
        if self.facts.is_served {
            return;
        }
        let Some(live) = self.retry(tag, live, outcome) else { return };
        let is_warm =
            self.traffic.ended(tag, self.ledger.record(tag), live.follow_up, self.clock.now_ns(), &mut self.events);
        if is_warm {
            self.begin_measuring();
        }
    }

    pub(super) fn begin_measuring(&mut self) {
        self.ledger.begin_measuring();
        self.fleet.each_with_tiers(|worker| worker.begin_measuring(self.clock.now_ns()));
    }
}
