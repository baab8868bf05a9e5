//! Which worker takes a request: asking the routers, and telling them what became of it.

use vcr_core::{KvRole, Prompt, ServingEngine, TierRun};

use crate::error::SimError;
use crate::event::Event;
use crate::kv_router::{Candidate, KvQuery, KvRouted, Released};
use crate::router::{Choice, EndedRequest, RouteError, RoutePhase, RouteQuery};
use crate::sim::{Pool, PoolRouter, Simulation};

/// What a router made of a request.
pub(crate) enum Routed {
    /// This worker, counted over all engines, takes it.
    To(u32),
    /// It is refused.
    Shed,
    /// It waits in the router.
    Queued,
    /// No worker is up that could take it.
    Nowhere,
}

impl Simulation<'_> {
    /// The router's choice among the workers of `pool` that are up.
    pub(crate) fn route(&mut self, tag: u64, pool: u32, prompt: &Prompt, kv_role: KvRole) -> Result<Routed, SimError> {
        let routed = match self.pools[pool as usize].router {
            PoolRouter::Asked(_) => self.ask(tag, pool as usize, prompt, kv_role)?,
            PoolRouter::Kv(_) => self.route_by_kv(tag, pool as usize, prompt),
        };
        Ok(routed)
    }

    fn ask(&mut self, tag: u64, index: usize, prompt: &Prompt, kv_role: KvRole) -> Result<Routed, SimError> {
        let workers = self.pools[index].workers();
        let pool = &mut self.pools[index];
        let PoolRouter::Asked(router) = &mut pool.router else { unreachable!("it is another kind of router") };
        let overlap = router.needs_overlap();
        self.loads.clear();
        for worker in &self.workers[workers] {
            if worker.is_up() {
                let hit = if overlap { worker.engine.cached_prefix_blocks(prompt.block_hashes()) } else { 0 };
                self.loads.push(worker.load(hit));
            }
        }
        if self.loads.is_empty() {
            return Ok(Routed::Nowhere);
        }
        let record = &self.records[tag as usize];
        let live = self.live[tag as usize].as_deref_mut().expect("the request has not ended");
        let block_size_tokens = pool.config.engine.block_size();
        let query = RouteQuery {
            now_ns: self.now_ns,
            request: tag,
            prompt_tokens: record.prompt_tokens,
            max_tokens: record.max_tokens,
            priority: live.priority,
            lora: None,
            tenant: self.config.workloads[record.workload as usize].tenant,
            // Sessions are numbered within their workload.
            session: u64::from(record.workload) << 48 | record.session,
            block_size_tokens,
            phase: match kv_role {
                KvRole::Local => RoutePhase::Whole,
                KvRole::Source => RoutePhase::Prefill,
                KvRole::Destination => RoutePhase::Decode,
            },
            may_shed: live.routed == [None; 2],
            blocks: prompt.block_hashes(),
        };
        let refused = |what: String| RouteError { router: "router".to_owned(), reason: what };
        let choice = router.route(&query, &self.loads).and_then(|choice| match choice {
            Choice::Shed if query.may_shed => Ok(None),
            Choice::Shed => Err(refused("it refused a request that has been with an engine before".to_owned())),
            Choice::Worker(position) => match self.loads.get(position) {
                Some(load) => Ok(Some(*load)),
                None => Err(refused(format!("it chose position {position} of {} engines", self.loads.len()))),
            },
        });
        let chosen = choice.map_err(|reason| SimError::Route {
            pool: pool.config.name.clone(),
            request: Some(tag),
            at_ms: self.now_ns as f64 / 1e6,
            reason,
        })?;
        let Some(load) = chosen else { return Ok(Routed::Shed) };
        let known = overlap.then_some(load.overlap_blocks);
        Ok(self.routed_to(tag, index, load.worker, known))
    }

    fn route_by_kv(&mut self, tag: u64, index: usize, prompt: &Prompt) -> Routed {
        self.release_first(index);
        self.find_candidates(index, prompt);
        self.tell_tier_changes(index);
        if self.candidates.is_empty() {
            return Routed::Nowhere;
        }
        let pool = &mut self.pools[index];
        let PoolRouter::Kv(router) = &mut pool.router else { unreachable!("it is another kind of router") };
        let record = &self.records[tag as usize];
        let live = self.live[tag as usize].as_deref().expect("the request has not ended");
        let query = KvQuery {
            now_ns: self.now_ns,
            request: tag,
            arrival_ns: record.arrival_ns,
            prompt_tokens: record.prompt_tokens,
            priority: live.priority,
            strict_priority: live.strict_priority,
            policy_class: self.workloads[record.workload as usize].policy_class(live.policy_class),
            may_shed: live.routed == [None; 2],
            blocks: prompt.block_hashes(),
        };
        match router.route(&query, &mut self.candidates) {
            KvRouted::To(to) => self.routed_to(tag, index, to.worker, Some(to.overlap_blocks)),
            KvRouted::Queued => {
                self.wake_router(index);
                Routed::Queued
            }
            KvRouted::Full => Routed::Shed,
        }
    }

    /// The workers of a pool that are up, with what they have cached if the KV
    /// router asks for that.
    fn find_candidates(&mut self, index: usize, prompt: &Prompt) {
        let now_ns = self.now_ns;
        let blocks = prompt.block_hashes();
        let pool = &self.pools[index];
        let PoolRouter::Kv(router) = &pool.router else { unreachable!("it is another kind of router") };
        let overlap = router.needs_overlap();
        let sees_tiers = overlap && router.sees_tiers();
        self.candidates.clear();
        for worker in &mut self.workers[pool.workers()] {
            if worker.is_up() {
                let hit = if overlap { worker.engine.cached_prefix_blocks(blocks) } else { 0 };
                let tiers = match worker.engine.kv_tiers_mut().filter(|_| sees_tiers) {
                    Some(tiers) => {
                        tiers.advance(now_ns);
                        tiers.find_run(&blocks[hit as usize..])
                    }
                    None => TierRun::default(),
                };
                self.candidates.push(Candidate { worker: worker.index, overlap_blocks: hit, tiers });
            }
        }
    }

    /// Notes where a request goes.
    fn routed_to(&mut self, tag: u64, index: usize, worker: u32, overlap_blocks: Option<u32>) -> Routed {
        let pool = &self.pools[index];
        let live = self.live[tag as usize].as_deref_mut().expect("the request has not ended");
        live.routed[index] = Some(worker);
        let tokens = overlap_blocks.map(|blocks| blocks * pool.config.engine.block_size());
        self.records[tag as usize].detail.route_overlap_tokens[index] = tokens;
        Routed::To(pool.first_worker + worker)
    }

    /// Lets requests out of the KV routers as far as engines have room.
    pub(crate) fn release_queued(&mut self) {
        for index in 0..self.pools.len() {
            self.release_first(index);
        }
    }

    /// The same for one pool: those for whom what happened before at this instant has
    /// made room go before what comes next.
    pub(crate) fn release_first(&mut self, index: usize) {
        let pool = &mut self.pools[index];
        if std::mem::take(&mut pool.queue_moves) && matches!(&pool.router, PoolRouter::Kv(router) if router.has_queue())
        {
            self.release_from(index);
        }
    }

    fn release_from(&mut self, index: usize) {
        self.candidates.clear();
        let up = self.workers[self.pools[index].workers()].iter().filter(|worker| worker.is_up());
        self.candidates.extend(up.map(|worker| Candidate { worker: worker.index, ..Candidate::default() }));
        while let PoolRouter::Kv(router) = &mut self.pools[index].router
            && let Some(Released { request: tag, to }) = router.release(self.now_ns, &self.candidates)
        {
            if let Routed::To(worker) = self.routed_to(tag, index, to.worker, Some(to.overlap_blocks)) {
                // Only the first pool counts prompt tokens, so only there anyone waits.
                let (max_tokens, kv_role) = self.first_part(tag);
                self.place(tag, worker, max_tokens, kv_role);
            }
        }
        self.wake_router(index);
    }

    /// Routers with a queue look at it again: they have heard of each other.
    pub(crate) fn router_hears(&mut self, pool: u32) {
        let pool = &mut self.pools[pool as usize];
        pool.queue_moves = true;
        pool.hears_at_ns = None;
    }

    /// Sees to it that routers with a queue look at it when they hear of each other.
    fn wake_router(&mut self, index: usize) {
        let pool = &mut self.pools[index];
        let PoolRouter::Kv(router) = &pool.router else { return };
        if let Some(at_ns) = router.hears_at_ns()
            && pool.hears_at_ns.is_none_or(|earlier| at_ns < earlier)
        {
            pool.hears_at_ns = Some(at_ns);
            self.events.push(at_ns.max(self.now_ns), Event::RouterHears { pool: index as u32 });
        }
    }

    /// The first token of a request has come from `pool`.
    pub(crate) fn tell_first_token(&mut self, tag: u64, pool: u32) {
        let Pool { router: PoolRouter::Kv(router), queue_moves, .. } = &mut self.pools[pool as usize] else { return };
        router.prefilled(self.now_ns, tag);
        *queue_moves = true;
    }

    /// The output of a request of `pool` has grown.
    pub(crate) fn tell_output(&mut self, tag: u64, pool: u32) {
        let PoolRouter::Kv(router) = &mut self.pools[pool as usize].router else { return };
        if router.needs_outputs() {
            router.generated(self.now_ns, tag, self.records[tag as usize].output_tokens);
        }
    }

    /// The same of all requests in a stretch.
    pub(crate) fn tell_outputs_of_stretch(&mut self, index: u32) {
        let worker = &self.workers[index as usize];
        let PoolRouter::Kv(router) = &mut self.pools[worker.pool as usize].router else { return };
        if router.needs_outputs() {
            for output in &worker.engine.outputs().outputs {
                router.generated(self.now_ns, output.tag, self.records[output.tag as usize].output_tokens);
            }
        }
    }

    /// The first of two pools is done with a request.
    pub(crate) fn tell_prefill_over(&mut self, tag: u64) {
        let Pool { router: PoolRouter::Kv(router), queue_moves, .. } = &mut self.pools[0] else { return };
        router.ended(self.now_ns, tag);
        *queue_moves = true;
    }

    /// Tells the routers that have routed it that a request is over.
    pub(crate) fn tell_routers(&mut self, tag: u64, routed: [Option<u32>; 2], failed: bool) {
        let output_tokens = self.records[tag as usize].output_tokens;
        for (pool, worker) in self.pools.iter_mut().zip(routed) {
            let Some(worker) = worker else { continue };
            match &mut pool.router {
                PoolRouter::Asked(router) => {
                    if router.needs_ended() {
                        router.ended(&EndedRequest { request: tag, worker, output_tokens, failed });
                    }
                }
                PoolRouter::Kv(router) => {
                    router.ended(self.now_ns, tag);
                    pool.queue_moves = true;
                }
            }
        }
    }

    /// Tells the pool's KV routers, if they want to know, what a worker's cache has
    /// announced when it decided a step, unless that is out only when the step ends.
    pub(crate) fn tell_events_of_start(&mut self, index: u32) {
        if !self.hears_at_step_end(index) {
            self.tell_kv_events(index, self.now_ns);
        }
    }

    /// The same for a step that has started and ends at `end_ns`, where that is when
    /// its events are out.
    pub(crate) fn tell_events_of_end(&mut self, index: u32, end_ns: u64) {
        if self.hears_at_step_end(index) {
            self.tell_kv_events(index, end_ns);
        }
    }

    fn hears_at_step_end(&self, index: u32) -> bool {
        let pool = self.workers[index as usize].pool as usize;
        matches!(&self.pools[pool].router, PoolRouter::Kv(router) if router.hears_at_step_end())
    }

    /// Tells the pool's KV routers, if they want to know, what a worker's cache has
    /// announced since the last time, as seen at `at_ns`.
    pub(crate) fn tell_kv_events(&mut self, index: u32, at_ns: u64) {
        let worker = &mut self.workers[index as usize];
        let PoolRouter::Kv(router) = &mut self.pools[worker.pool as usize].router else { return };
        if router.needs_events() {
            let upto = worker.engine.kv_events().map_or(0, |events| events.len());
            let number = worker.index;
            worker.tell_kv_events(upto, |event| router.kv_event(at_ns, number, event));
        }
    }

    /// The same for the steps that a stretch has scheduled, each at its start or end.
    pub(crate) fn tell_events_of_stretch(&mut self, index: u32, durations_ns: &[u64]) {
        let worker = &mut self.workers[index as usize];
        let PoolRouter::Kv(router) = &mut self.pools[worker.pool as usize].router else { return };
        if router.needs_events() {
            let (mut out_ns, durations_ns) = match (router.hears_at_step_end(), durations_ns) {
                (true, [first_ns, rest @ ..]) => (self.now_ns.saturating_add(*first_ns), rest),
                (_, [rest @ .., _]) => (self.now_ns, rest),
                (_, []) => return,
            };
            for (step, duration_ns) in durations_ns.iter().enumerate() {
                out_ns = out_ns.saturating_add(*duration_ns);
                let Some(&upto) = worker.engine.events_by_step().and_then(|upto| upto.get(step)) else { break };
                let number = worker.index;
                worker.tell_kv_events(upto as usize, |event| router.kv_event(out_ns, number, event));
            }
            worker.clear_kv_events();
        }
    }

    /// A request has lost its engine.
    pub(crate) fn tell_lost(&mut self, tag: u64) {
        for pool in &mut self.pools {
            if let PoolRouter::Kv(router) = &mut pool.router {
                router.ended(self.now_ns, tag);
                pool.queue_moves = true;
            }
        }
    }

    /// A worker's process is gone, and its cache with it.
    pub(crate) fn tell_crash(&mut self, index: u32) {
        let worker = &self.workers[index as usize];
        if let PoolRouter::Kv(router) = &mut self.pools[worker.pool as usize].router {
            router.crashed(worker.index);
        }
    }

    /// Takes the requests out of the routers of a pool that has no engines any more.
    pub(crate) fn give_up_queued(&mut self, pool: u32) -> Vec<u64> {
        match &mut self.pools[pool as usize].router {
            PoolRouter::Kv(router) => router.give_up_queued(),
            PoolRouter::Asked(_) => Vec::new(),
        }
    }
}
