//! A request's way through the cluster: routing, hand-over, end.

use std::ops::Range;

use vcr_core::plan::{RemoteLoad, RequestOutput};
use vcr_core::{KvRole, RequestId, RequestSpec, ServingEngine, StopRules, seed};

use crate::config::{LinkConfig, LinkSharing, SourceOutput, Topology, TransferScope};
use crate::error::SimError;
use crate::event::Event;
use crate::hand_over::Due;
use crate::link::TransferKey;
use crate::metrics::{Counter, Trend};
use crate::record::{FailReason, Outcome};
use crate::routing::Routed;
use crate::sim::{Live, PoolRouter, Simulation, Stage};
use crate::tokens::made_up;
use crate::worker::Health;
use crate::workload::FollowUp;

const PREFILL_POOL: u32 = 0;
const DECODE_POOL: u32 = 1;

impl Simulation<'_> {
    /// Sends a request that is nowhere to a worker of the first pool.
    pub(crate) fn dispatch(&mut self, tag: u64) -> Result<(), SimError> {
        let record = &self.records[tag as usize];
        let (prompt_tokens, max_tokens) = (record.prompt_tokens, record.max_tokens);
        let (here, role) = self.first_part(tag);
        let first_engine = &self.workers[0].engine;
        let mut fits = first_engine.check(prompt_tokens, here);
        if role == KvRole::Source && fits.is_ok() {
            let decode_engine = &self.workers[self.pools[DECODE_POOL as usize].first_worker as usize].engine;
            fits = decode_engine.check(prompt_tokens, max_tokens);
        }
        if let Err(reason) = fits {
            self.end(tag, Outcome::Rejected(reason));
            return Ok(());
        }
        if self.config.topology.conditional().is_some() {
            let prompt = self.live_mut(tag).prompt.take().expect("the prompt is kept until the last submission");
            let stays = self.stays_with_decode(&prompt);
            let live = self.live_mut(tag);
            live.prompt = Some(prompt);
            live.stays_with_decode = stays;
            if stays {
                self.count(tag, Counter::StayedWithDecode, 1);
                return self.submit(tag, DECODE_POOL, max_tokens, KvRole::Local);
            }
        }
        if role == KvRole::Source && max_tokens > 0 && self.reserves_before_prefill() {
            return self.submit(tag, DECODE_POOL, max_tokens, KvRole::Destination);
        }
        self.submit(tag, PREFILL_POOL, here, role)
    }

    /// Whether decode workers are asked for blocks before prompts are computed.
    fn reserves_before_prefill(&self) -> bool {
        self.pools.get(DECODE_POOL as usize).is_some_and(|pool| pool.config.engine.reserves_before_prefill())
    }

    /// What the first pool does for a request: so many output tokens of it, in
    /// that role.
    pub(crate) fn first_part(&self, tag: u64) -> (u32, KvRole) {
        let max_tokens = self.records[tag as usize].max_tokens;
        match &self.config.topology {
            Topology::Aggregated(_) => (max_tokens, KvRole::Local),
            Topology::Disaggregated { link, .. } => match link.source_output {
                SourceOutput::FirstToken => (max_tokens.min(1), KvRole::Source),
                SourceOutput::Whole => (max_tokens, KvRole::Source),
            },
        }
    }

    /// Routes a request to a worker of `pool`, or parks it until one is up.
    pub(crate) fn submit(&mut self, tag: u64, pool: u32, max_tokens: u32, kv_role: KvRole) -> Result<(), SimError> {
        let live = self.live_mut(tag);
        live.stage = Stage::Parked { pool };
        let prompt = live.prompt.take().expect("the prompt is kept until the last submission");
        let routed = self.route(tag, pool, &prompt, kv_role)?;
        self.live_mut(tag).prompt = Some(prompt);
        match routed {
            Routed::To(worker) => self.place(tag, worker, max_tokens, kv_role),
            Routed::Shed => self.end(tag, Outcome::Shed),
            Routed::Queued => {}
            Routed::Nowhere => self.park(tag, pool),
        }
        Ok(())
    }

    /// Gives a request to the worker that was chosen for it.
    pub(crate) fn place(&mut self, tag: u64, worker: u32, max_tokens: u32, kv_role: KvRole) {
        let pool = self.workers[worker as usize].pool;
        // Its prompt is still to be computed.
        let is_ahead = kv_role == KvRole::Destination && self.live_mut(tag).source.is_none();
        let keep_prompt = self.config.max_retries > 0 || kv_role == KvRole::Source || is_ahead;
        let workload = self.records[tag as usize].workload;
        let tenant = self.config.workloads[workload as usize].tenant;
        let live = self.live_mut(tag);
        let priority = live.priority;
        let kept = if keep_prompt { live.prompt.clone() } else { live.prompt.take() };
        let prompt = kept.expect("the prompt is kept until the last submission");
        let eos_token = self.pools[pool as usize].config.tokens.as_ref().and_then(|tokens| tokens.eos_token);
        let shown = self.workers[worker as usize].tokens.as_ref().map(|_| {
            let block_size_tokens = self.pools[pool as usize].config.engine.block_size();
            (seed::derive(self.config.seed, "tokens", prompt.content_hash()), made_up(&prompt, block_size_tokens))
        });
        let spec = RequestSpec {
            stops: eos_token.map(|token| Box::new(StopRules::of_token(token))),
            priority,
            tenant,
            arrival_ns: self.records[tag as usize].arrival_ns,
            kv_role,
            drawn: self.drawn_outputs(tag, worker).filter(|_| kv_role != KvRole::Source),
            ..RequestSpec::new(tag, prompt, max_tokens)
        };
        match self.workers[worker as usize].engine.submit(spec) {
            Ok(id) => {
                let record = &mut self.records[tag as usize];
                let decode = kv_role == KvRole::Destination;
                if !decode {
                    record.prefill_worker = Some(worker);
                } else if !is_ahead {
                    record.decode_worker = Some(worker);
                }
                self.live_mut(tag).stage =
                    if decode { Stage::Decode { worker, id } } else { Stage::First { worker, id } };
                self.dirty.push(worker);
                if decode && self.reserves_between_steps(worker) {
                    self.due.push_back(Due::Reservation { worker });
                }
                if self.wants_steps {
                    self.observer.submitted(worker, tag);
                }
                if let (Some(tokens), Some((seed, prompt))) = (&mut self.workers[worker as usize].tokens, shown) {
                    tokens.start(tag, seed, prompt, max_tokens, eos_token);
                }
                self.announce(worker, tag, max_tokens);
            }
            Err(reason) => self.end(tag, Outcome::Rejected(reason)),
        }
    }

    /// Tells the injector of a worker, if it has one, of a request.
    fn announce(&mut self, worker: u32, tag: u64, max_tokens: u32) {
        let Some(injector) = self.workers[worker as usize].injector.as_deref_mut() else { return };
        let record = &self.records[tag as usize];
        let workload = self.workloads[record.workload as usize].name();
        let name = format!("{workload}-{}-{}", record.session, record.turn);
        let priority = self.live[tag as usize].as_deref().map_or(0, |live| live.priority);
        injector.arrived(tag, name, record.prompt_tokens, max_tokens, priority);
    }

    fn park(&mut self, tag: u64, pool: u32) {
        if self.pool_may_recover(pool) {
            self.pools[pool as usize].parked.push(tag);
        } else {
            self.withdraw(tag, &(0..0));
            self.end(tag, Outcome::Failed(FailReason::NoEngine));
        }
    }

    /// Whether a worker of `pool` is up or coming up, or an autoscaler will see to
    /// it that one does.
    pub(crate) fn pool_may_recover(&self, pool: u32) -> bool {
        self.pools[pool as usize].scaler.is_some()
            || self.workers.iter().any(|worker| worker.pool == pool && worker.health() != Health::Down)
    }

    /// A prefill worker has computed a prompt: its KV moves on.
    pub(crate) fn end_prefill(&mut self, worker: u32, output: &RequestOutput) -> Result<(), SimError> {
        let tag = output.tag;
        self.release_first(PREFILL_POOL as usize);
        self.records[tag as usize].prefill_end_ns = Some(self.now_ns);
        self.tell_prefill_over(tag);
        let max_tokens = self.records[tag as usize].max_tokens;
        self.live_mut(tag).source = Some((worker, output.request));
        if max_tokens == 0 {
            self.release_source(tag);
            self.complete(tag);
            Ok(())
        } else if let Some((worker, load)) = self.live_mut(tag).destination.take() {
            self.live_mut(tag).stage = Stage::Decode { worker, id: load.request };
            self.records[tag as usize].decode_worker = Some(worker);
            self.start_transfer(load)
        } else {
            // The sampled token is not shown; the decode side samples it again.
            self.submit(tag, DECODE_POOL, max_tokens, KvRole::Destination)
        }
    }

    /// A decode worker has reserved blocks: their content starts to move, once it is
    /// computed.
    pub(crate) fn start_transfer(&mut self, load: RemoteLoad) -> Result<(), SimError> {
        let live = self.live[load.tag as usize].as_deref_mut().expect("a loading request is live");
        let key = TransferKey { tag: load.tag, attempt: live.attempt };
        let Some((source, _)) = live.source else {
            let Stage::Decode { worker, .. } = live.stage else {
                unreachable!("only a decode worker reserves blocks before the prompt is computed")
            };
            live.destination = Some((worker, load));
            let (max_tokens, role) = self.first_part(load.tag);
            return self.submit(load.tag, PREFILL_POOL, max_tokens, role);
        };
        let config = self.link_config();
        let tokens = match config.scope {
            TransferScope::Missing => load.missing_tokens,
            TransferScope::FullPrompt => load.missing_tokens + load.cached_tokens,
        };
        let bytes = u64::from(tokens) * config.kv_bytes_per_token;
        let latency_ns = config.latency_ns;
        let alone_ns = match config.sharing {
            LinkSharing::Unshared => config.alone_ns(bytes),
            LinkSharing::Shared | LinkSharing::PerPrefillEngine => 0,
        };
        let detail = &mut self.records[load.tag as usize].detail;
        detail.transfer_start_ns = Some(self.now_ns);
        detail.decode_cached_tokens = Some(load.cached_tokens);
        if self.links.is_empty() || bytes == 0 {
            let takes_ns = latency_ns.saturating_add(alone_ns);
            let Some(to) = self.destination_of(key.tag, key.attempt) else { return Ok(()) };
            if takes_ns == 0 && self.reserves_between_steps(to) {
                self.due.push_back(Due::TakeOver { tag: key.tag, attempt: key.attempt });
            } else {
                let delivered = Event::TransferDelivered { tag: key.tag, attempt: key.attempt };
                self.events.push(self.now_ns.saturating_add(takes_ns), delivered);
            }
            return Ok(());
        }
        let link = self.link_from(source);
        self.links[link as usize].start(self.now_ns, key, bytes);
        self.expect_link(link);
        Ok(())
    }

    pub(crate) fn progress_link(&mut self, index: u32, version: u64) {
        if self.links[index as usize].version() != version {
            return;
        }
        let latency_ns = self.link_config().latency_ns;
        while let Some(key) = self.links[index as usize].pop_complete(self.now_ns) {
            let delivered = Event::TransferDelivered { tag: key.tag, attempt: key.attempt };
            self.events.push(self.now_ns + latency_ns, delivered);
        }
        self.expect_link(index);
    }

    pub(crate) fn deliver_transfer(&mut self, tag: u64, attempt: u32) {
        let Some(worker) = self.destination_of(tag, attempt) else { return };
        if self.reserves_between_steps(worker) {
            self.due.push_back(Due::TakeOver { tag, attempt });
        } else {
            self.take_over(tag);
        }
    }

    /// The worker that a request's KV has been on its way to since that attempt, if
    /// nothing has come between.
    pub(crate) fn destination_of(&self, tag: u64, attempt: u32) -> Option<u32> {
        match self.live[tag as usize].as_deref() {
            Some(Live { stage: Stage::Decode { worker, .. }, attempt: now, .. }) if *now == attempt => Some(*worker),
            _ => None,
        }
    }

    /// A decode worker has the KV of a request, whose source is free again.
    pub(crate) fn take_over(&mut self, tag: u64) {
        let Stage::Decode { worker, id } = self.live_mut(tag).stage else { return };
        self.records[tag as usize].transfer_end_ns = Some(self.now_ns);
        self.workers[worker as usize].engine.remote_kv_arrived(id);
        self.dirty.push(worker);
        self.release_source(tag);
    }

    /// Frees KV that a prefill worker holds for `tag`, if any does.
    pub(crate) fn release_source(&mut self, tag: u64) {
        if let Some((worker, id)) = self.live_mut(tag).source.take() {
            self.workers[worker as usize].engine.release_held_kv(id);
            self.dirty.push(worker);
        }
    }

    /// Takes a request, and all that is held for it, from where it waits and from the
    /// workers but those that have `crashed`, which have lost it.
    pub(crate) fn withdraw(&mut self, tag: u64, crashed: &Range<u32>) {
        if let Stage::Parked { pool } = self.live_mut(tag).stage {
            let pool = &mut self.pools[pool as usize];
            pool.parked.retain(|&other| other != tag);
            if let PoolRouter::Kv(router) = &mut pool.router {
                router.leave_queue(tag);
            }
        }
        let live = self.live_mut(tag);
        let reserved = live.destination.take().map(|(worker, load)| (worker, load.request));
        let source = live.source.take();
        let at = match live.stage {
            Stage::First { worker, id } | Stage::Decode { worker, id } => Some((worker, id)),
            Stage::Parked { .. } | Stage::Played { .. } => None,
        };
        let is_left = |held: &(u32, RequestId)| !crashed.contains(&held.0);
        for (worker, id) in at.into_iter().chain(reserved).filter(is_left) {
            self.dissolve_bulk(worker);
            self.workers[worker as usize].engine.abort(id);
            self.workers[worker as usize].forget(tag);
            self.observer.aborted(worker, tag);
            self.dirty.push(worker);
            if self.reserves_between_steps(worker) {
                // There may be room for another now.
                self.due.push_back(Due::Reservation { worker });
            }
        }
        if let Some((worker, id)) = source.filter(is_left) {
            self.workers[worker as usize].engine.release_held_kv(id);
            self.dirty.push(worker);
        }
    }

    pub(crate) fn cancel_transfer(&mut self, tag: u64) {
        let live = self.live_mut(tag);
        let (attempt, source) = (live.attempt, live.source);
        if let Some((worker, _)) = source
            && !self.links.is_empty()
        {
            let link = self.link_from(worker);
            self.links[link as usize].cancel(self.now_ns, TransferKey { tag, attempt });
            self.expect_link(link);
        }
    }

    fn expect_link(&mut self, index: u32) {
        let link = &self.links[index as usize];
        if let Some(at_ns) = link.next_completion_ns() {
            self.events.push(at_ns, Event::LinkProgress { link: index, version: link.version() });
        }
    }

    fn link_from(&self, source_worker: u32) -> u32 {
        match self.link_config().sharing {
            // Without sharing there is no link to tell.
            LinkSharing::Shared | LinkSharing::Unshared => 0,
            LinkSharing::PerPrefillEngine => {
                let ranks = self.pools[PREFILL_POOL as usize].config.data_parallel.size;
                self.workers[source_worker as usize].index / ranks
            }
        }
    }

    fn link_config(&self) -> &LinkConfig {
        match &self.config.topology {
            Topology::Disaggregated { link, .. } => link,
            Topology::Aggregated(_) => unreachable!("only disaggregated clusters move KV"),
        }
    }

    /// A request has its whole output.
    pub(crate) fn complete(&mut self, tag: u64) {
        let record = &self.records[tag as usize];
        let metrics = &mut self.metrics[record.workload as usize];
        let arrival_ns = record.arrival_ns;
        if let (Some(first_ns), Some(last_ns)) = (record.first_token_ns, record.last_token_ns) {
            metrics.sample(Trend::Ttft, first_ns - arrival_ns);
            metrics.sample(Trend::E2e, last_ns - arrival_ns);
            if record.output_tokens > 1 {
                metrics.sample(Trend::Tpot, (last_ns - first_ns) / u64::from(record.output_tokens - 1));
            }
        }
        if let (Some(scheduled_ns), Some(prefill_end_ns)) = (record.scheduled_ns, record.prefill_end_ns) {
            metrics.sample(Trend::Queue, scheduled_ns - arrival_ns);
            metrics.sample(Trend::Prefill, prefill_end_ns - scheduled_ns);
            if let Some(transfer_end_ns) = record.transfer_end_ns {
                metrics.sample(Trend::Transfer, transfer_end_ns - prefill_end_ns);
            }
        }
        self.tally.completed_requests += u64::from(record.prefill_worker.is_some());
        metrics.add(Counter::PromptTokens, u64::from(record.prompt_tokens));
        metrics.add(Counter::CachedTokens, u64::from(record.cached_tokens));
        metrics.add(Counter::OutputTokens, u64::from(record.output_tokens));
        self.count_tiers(tag);
        self.end(tag, Outcome::Completed);
    }

    /// A request is over; its session goes on or makes room for another.
    pub(crate) fn end(&mut self, tag: u64, outcome: Outcome) {
        let record = &mut self.records[tag as usize];
        assert_eq!(record.outcome, Outcome::Unfinished, "request {tag} ended twice");
        record.outcome = outcome;
        record.end_ns = Some(self.now_ns);
        let (workload, preemptions) = (record.workload, record.preemptions);
        self.ended += 1;
        let counter = match outcome {
            Outcome::Completed => Counter::Completed,
            Outcome::Rejected(_) => Counter::Rejected,
            Outcome::Shed => Counter::Shed,
            Outcome::Failed(_) | Outcome::Unfinished => Counter::Failed,
        };
        self.count(tag, counter, 1);
        self.count(tag, Counter::Preemptions, u64::from(preemptions));
        let live = self.live[tag as usize].take().expect("the request has not ended");
        self.tell_routers(tag, live.routed, outcome != Outcome::Completed);
        let mut follow_up = live.follow_up;
        // A drawn conversation cannot go on without an answer; rows of a trace
        // stand for themselves and each of them is accounted for.
        if outcome != Outcome::Completed && matches!(follow_up, FollowUp::Drawn(_)) {
            follow_up = FollowUp::None;
        }
        if let FollowUp::Waiters { node } = follow_up {
            self.end_node(workload, node);
            return;
        }
        match self.workloads[workload as usize].think_time_ns(&mut follow_up) {
            Some(think_ns) => self.think(workload, follow_up, tag, think_ns),
            None => {
                let state = &self.workloads[workload as usize];
                // A refusal takes no time: without a count to end it, a loop
                // of refused requests would go on for ever at one instant.
                let refused = matches!(outcome, Outcome::Rejected(_) | Outcome::Shed) && !state.is_counted();
                if state.closed_loop().is_some() && !refused && state.has_next(self.now_ns) {
                    self.events.push(self.now_ns, Event::Arrival { workload });
                }
            }
        }
    }
}
