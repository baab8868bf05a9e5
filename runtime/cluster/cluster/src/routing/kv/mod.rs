//! The KV router: Dynamo's cost function over the router's books and its view of the caches.
//!
//! Other routers are called once per request and see the engines' own loads. This router sees only the engines' KV
//! events. It records its decisions, can queue requests while every engine is busy, and may consist of several
//! replicas that learn of each other's decisions late. The formulas are from `dynamo-kv-router` 1.4.

mod active;
mod books;
mod index;
mod pool_router;
mod queue;

use std::collections::VecDeque;

use vcr_base::random::Stream;
use vcr_core::hash::BlockHash;
use vcr_core::kv_event::KvEvent;
use vcr_core::route::RouteRequest;
use vcr_core::{KvTierChange, TierRun};

use super::sessions::Sessions;
use super::{RouteInput, Routed, RoutedTo};
use crate::config::{KvKnowledge, KvRouterConfig, PoolRole, QueueClass};
use active::Chain;
use books::{Books, Entry};
use index::{EventIndex, GuessedIndex};
use queue::{Queued, RouterQueue};

/// An engine that is up, with its cached blocks of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Candidate {
    worker: u32,
    overlap_blocks: u32,
    /// Further blocks in the worker's tiers.
    tiers: TierRun,
}

impl From<Candidate> for RoutedTo {
    fn from(to: Candidate) -> Self {
        Self { worker: to.worker, overlap_blocks: Some(to.overlap_blocks) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PoolFacts {
    pub(super) workers: u32,
    pub(super) block_size_tokens: u32,
    pub(super) max_num_batched_tokens: u32,
    pub(super) role: PoolRole,
    pub(super) has_tiers: bool,
}

/// One of the routers in front of a pool.
struct Replica {
    books: Books,
    /// The queue; it has no class if requests do not wait.
    queue: RouterQueue,
    /// Decisions of other replicas that this one does not know yet, with the times at which it learns of them.
    coming: VecDeque<(u64, Entry)>,
    guesses: Vec<GuessedIndex>,
}

pub(super) struct KvRouter {
    config: KvRouterConfig,
    facts: PoolFacts,
    replicas: Vec<Replica>,
    /// The replica that received each request; empty if there is only one.
    owners: Vec<u32>,
    turn: u32,
    /// Views of the caches by worker; empty if the router reads the caches themselves.
    events: Vec<EventIndex>,
    ties: Stream,
    /// Scratch: cost of the request on each candidate.
    costs: Vec<f64>,
    no_blocks: Chain,
    /// The workers of sessions, if sessions are sticky.
    sessions: Option<Sessions>,
    /// Scratch.
    candidates: Vec<Candidate>,
}

impl KvRouter {
    pub(super) fn new(mut config: KvRouterConfig, facts: PoolFacts, seed: u64) -> Self {
        match facts.role {
            PoolRole::Aggregated => {}
            PoolRole::Prefill => config.track_active_blocks = false,
            PoolRole::Decode => {
                config.overlap_score_credit = 0.0;
                config.assume_kv_reuse = false;
                config.track_prefill_tokens = false;
                // Without prompt tokens, no engine is ever busy, so no request would wait.
                config.queue = None;
            }
        }
        let classes = config.queue.as_ref().map_or(0, |queue| queue.classes().len());
        let (predicted, reported) = match config.knowledge {
            _ if !facts.role.is_routed_by_cache() => (0, 0),
            KvKnowledge::Predicted { .. } => (facts.workers, 0),
            KvKnowledge::Events { .. } if config.knowledge.is_late() => (0, facts.workers),
            KvKnowledge::Events { .. } => (0, 0),
        };
        let each = |_| Replica {
            books: Books::new(&config, facts.workers),
            queue: RouterQueue::new(classes),
            coming: VecDeque::new(),
            guesses: (0..predicted).map(|_| GuessedIndex::default()).collect(),
        };
        Self {
            replicas: (0..config.replicas.count).map(each).collect(),
            owners: Vec::new(),
            turn: 0,
            events: (0..reported).map(|_| EventIndex::default()).collect(),
            ties: Stream::new(seed, "ties"),
            costs: Vec::new(),
            no_blocks: Chain::from([]),
            sessions: None,
            candidates: Vec::new(),
            config,
            facts,
        }
    }

    pub(super) fn with_sessions(self, sessions: Option<Sessions>) -> Self {
        Self { sessions, ..self }
    }

    /// Whether candidates must include the engines' current cache hits.
    fn needs_overlap(&self) -> bool {
        let knowledge = self.config.knowledge;
        // Also needed without a credit, because cached tokens do not count as uncached prompt tokens.
        self.facts.role.is_routed_by_cache() && matches!(knowledge, KvKnowledge::Events { .. }) && !knowledge.is_late()
    }

    /// Whether the router also looks up the KV tiers.
    fn sees_tiers(&self) -> bool {
        self.facts.has_tiers && self.config.overlap_score_credit > 0.0
    }

    fn needs_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether the events of a step are sent when it ends. Otherwise they are sent when it starts.
    fn sees_events_at_step_end(&self) -> bool {
        matches!(self.config.knowledge, KvKnowledge::Events { at_step_end: true, .. })
    }

    /// Whether the router counts the blocks of outputs.
    fn needs_outputs(&self) -> bool {
        self.config.track_output_blocks && self.config.track_active_blocks
    }

    /// Whether the router must see each step at its end, because other replicas learn of it a fixed time later.
    fn needs_single_steps(&self) -> bool {
        self.needs_outputs() && self.replicas.len() > 1 && self.config.replicas.sync_ns.is_some()
    }

    /// Chooses one of the running engines, or queues the request. `candidates` must not be empty.
    fn choose(&mut self, routed: &RouteInput<'_>, candidates: &mut [Candidate]) -> Routed {
        let query = &routed.query;
        let owner = self.owner_in_turn(query.id);
        self.catch_up(owner, query.now_ns);
        self.look_up(owner, query.now_ns, query.block_hashes, candidates);
        let chain = self.chain(query.block_hashes);
        let RouteRequest { id: request, prompt_tokens, .. } = *query;
        if let Some(config) = &self.config.queue {
            let most_cached = candidates.iter().map(|to| self.cached_tokens(to)).max().unwrap_or(0);
            let cached_tokens = most_cached.min(u64::from(prompt_tokens));
            let class = config.class_of(routed.policy_class, u64::from(prompt_tokens) - cached_tokens);
            let settings = &config.classes()[class];
            let Replica { queue, books, .. } = &mut self.replicas[owner];
            if config.keeps_back(class)
                && (queue.has_waiting(class) || all_busy(books, candidates, settings, &self.facts))
            {
                if query.may_refuse && queue.is_full(class, settings, candidates.len()) {
                    return Routed::Shed;
                }
                let overlaps = candidates.to_vec();
                let queued = Queued { request, prompt_tokens, cached_tokens, chain, overlaps };
                queue.push(routed, class, settings.queue_policy, queued);
                return Routed::Queued;
            }
        }
        Routed::To(self.send(owner, query.now_ns, request, prompt_tokens, chain, candidates).into())
    }

    /// The next request that may leave the queue, if these engines are up.
    fn release_to(&mut self, now_ns: u64, up: &[Candidate]) -> Option<(u64, RoutedTo)> {
        for owner in 0..self.replicas.len() {
            if self.replicas[owner].queue.is_empty() {
                continue;
            }
            // This is needed even if no engine is up, because the router's scheduled wake-up has passed.
            self.catch_up(owner, now_ns);
            if up.is_empty() {
                continue;
            }
            let classes = self.config.queue.as_ref()?.classes();
            let Replica { queue, books, .. } = &mut self.replicas[owner];
            let may_leave = |class: &QueueClass| !all_busy(books, up, class, &self.facts);
            let Some(queued) = queue.pop(classes, may_leave) else { continue };
            let as_it_came = |now: &Candidate| {
                let known = queued.overlaps.iter().find(|candidate| candidate.worker == now.worker);
                known.copied().unwrap_or(Candidate { worker: now.worker, ..Candidate::default() })
            };
            let candidates: Vec<Candidate> = up.iter().map(as_it_came).collect();
            let Queued { request, prompt_tokens, chain, .. } = queued;
            let to = self.send(owner, now_ns, request, prompt_tokens, chain, &candidates);
            return Some((request, to.into()));
        }
        None
    }

    /// Handles a KV event of a worker that was sent at `at_ns`.
    fn kv_event(&mut self, at_ns: u64, worker: u32, event: KvEvent<'_>) {
        let KvKnowledge::Events { lag_ns, .. } = self.config.knowledge else { return };
        if let Some(index) = self.events.get_mut(worker as usize) {
            index.expect(at_ns.saturating_add(lag_ns), event);
        }
    }

    /// Handles a block that was added to or removed from a tier of a worker.
    fn tier_change(&mut self, worker: u32, change: KvTierChange) {
        let KvKnowledge::Events { lag_ns, .. } = self.config.knowledge else { return };
        if self.sees_tiers()
            && let Some(index) = self.events.get_mut(worker as usize)
        {
            index.expect_change(change.at_ns.saturating_add(lag_ns), change);
        }
    }

    fn owner_in_turn(&mut self, request: u64) -> usize {
        let count = self.config.replicas.count;
        if count == 1 {
            return 0;
        }
        let owner = self.turn;
        self.turn = (self.turn + 1) % count;
        if self.owners.len() <= request as usize {
            self.owners.resize(request as usize + 1, 0);
        }
        self.owners[request as usize] = owner;
        owner as usize
    }

    fn owner(&self, request: u64) -> usize {
        self.owners.get(request as usize).copied().unwrap_or(0) as usize
    }

    fn chain(&self, blocks: &[BlockHash]) -> Chain {
        let guesses = self.replicas.iter().any(|replica| !replica.guesses.is_empty());
        let needed = self.config.track_active_blocks || guesses;
        if needed { Chain::from(blocks) } else { self.no_blocks.clone() }
    }

    /// Sets the known cache hits of the candidates, unless the caller has set them.
    fn look_up(&mut self, owner: usize, now_ns: u64, blocks: &[BlockHash], candidates: &mut [Candidate]) {
        if !self.facts.role.is_routed_by_cache() {
            return;
        }
        let sees_tiers = self.sees_tiers();
        for candidate in candidates {
            let worker = candidate.worker as usize;
            if let Some(index) = self.events.get_mut(worker) {
                candidate.overlap_blocks = index.cached_blocks(now_ns, blocks);
                if sees_tiers {
                    candidate.tiers = index.kept_blocks(now_ns, &blocks[candidate.overlap_blocks as usize..]);
                }
            } else if let Some(guess) = self.replicas[owner].guesses.get_mut(worker) {
                candidate.overlap_blocks = guess.cached_blocks(now_ns, blocks);
            }
        }
    }

    fn send(
        &mut self,
        owner: usize,
        now_ns: u64,
        request: u64,
        prompt_tokens: u32,
        chain: Chain,
        candidates: &[Candidate],
    ) -> Candidate {
        let to = candidates[self.cheapest(owner, prompt_tokens, &chain, candidates)];
        let cached = self.cached_tokens(&to);
        if let KvKnowledge::Predicted { ttl_ns } = self.config.knowledge
            && let Some(guess) = self.replicas[owner].guesses.get_mut(to.worker as usize)
        {
            guess.sent(now_ns.saturating_add(ttl_ns), &chain);
        }
        let prefill_tokens = u64::from(prompt_tokens).saturating_sub(cached);
        self.book(owner, now_ns, Entry::Sent { request, worker: to.worker, prefill_tokens, chain });
        to
    }

    /// Records an entry in the books of replica `owner` now, and in the books of the other replicas after their
    /// delay.
    fn book(&mut self, owner: usize, now_ns: u64, entry: Entry) {
        self.catch_up(owner, now_ns);
        if let Some(sync_ns) = self.config.replicas.sync_ns {
            for (other, replica) in self.replicas.iter_mut().enumerate().filter(|(other, _)| *other != owner) {
                debug_assert_ne!(other, owner);
                replica.coming.push_back((now_ns.saturating_add(sync_ns), entry.clone()));
            }
        }
        self.replicas[owner].books.book(entry);
    }

    fn catch_up(&mut self, owner: usize, now_ns: u64) {
        let Replica { books, coming, .. } = &mut self.replicas[owner];
        while let Some((_, entry)) = coming.pop_front_if(|(at_ns, _)| *at_ns <= now_ns) {
            books.book(entry);
        }
    }
}

/// Whether every engine is too busy for a request of a class.
fn all_busy(books: &Books, candidates: &[Candidate], class: &QueueClass, facts: &PoolFacts) -> bool {
    let is_busy = |worker| class.is_busy(books.account(worker).prefill_tokens, facts.max_num_batched_tokens);
    candidates.iter().all(|candidate| is_busy(candidate.worker))
}

#[cfg(test)]
mod tests;

impl KvRouter {
    /// Converts blocks in the tiers to the number of device blocks that are worth the same.
    fn tier_credit(&self, tiers: TierRun) -> f64 {
        self.config.host_cache_hit_weight * f64::from(tiers.host_blocks)
            + self.config.disk_cache_hit_weight * f64::from(tiers.disk_blocks)
    }

    /// Number of cached prompt tokens. Tokens in the tiers count with their weight.
    fn cached_tokens(&self, candidate: &Candidate) -> u64 {
        let block = u64::from(self.facts.block_size_tokens);
        let below = self.tier_credit(candidate.tiers) * block as f64;
        u64::from(candidate.overlap_blocks) * block + below.round() as u64
    }

    fn cheapest(&mut self, owner: usize, prompt_tokens: u32, chain: &Chain, candidates: &[Candidate]) -> usize {
        if candidates.len() == 1 {
            return 0;
        }
        self.weigh(owner, prompt_tokens, chain, candidates);
        let lowest = self.costs.iter().copied().fold(f64::INFINITY, f64::min);
        if self.config.temperature > 0.0 {
            return self.draw(lowest);
        }
        let mut chosen = 0;
        let mut equal = 0;
        for (position, &cost) in self.costs.iter().enumerate().filter(|(_, cost)| **cost == lowest) {
            debug_assert!(cost.is_finite());
            equal += 1;
            // All engines with the lowest cost are equally likely.
            if equal == 1 || self.ties.unit() * f64::from(equal) < 1.0 {
                chosen = position;
            }
        }
        chosen
    }

    /// Draws a candidate by a softmax of the costs, scaled by their spread.
    fn draw(&mut self, lowest: f64) -> usize {
        let highest = self.costs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let spread = highest - lowest;
        let scale = if spread > 0.0 { spread * self.config.temperature } else { 1.0 };
        let mut total = 0.0;
        for cost in &mut self.costs {
            total += libm::exp((lowest - *cost) / scale);
            *cost = total;
        }
        let at = self.ties.unit() * total;
        self.costs.iter().position(|&upto| at < upto).unwrap_or(self.costs.len() - 1)
    }

    /// Computes the costs of all candidates.
    fn weigh(&mut self, owner: usize, prompt_tokens: u32, chain: &Chain, candidates: &[Candidate]) {
        let config = &self.config;
        let books = &self.replicas[owner].books;
        let block = f64::from(self.facts.block_size_tokens);
        let request_blocks = f64::from(prompt_tokens) / block;
        let prefill_blocks = |worker| books.account(worker).prefill_tokens as f64 / block;
        let least = if config.overlap_score_credit_decay > 0.0 {
            candidates.iter().map(|candidate| prefill_blocks(candidate.worker)).fold(f64::INFINITY, f64::min)
        } else {
            0.0
        };
        self.costs.clear();
        for &Candidate { worker, overlap_blocks, tiers } in candidates {
            let under_way = prefill_blocks(worker);
            let mut credit = config.overlap_score_credit * f64::from(overlap_blocks);
            if config.overlap_score_credit_decay > 0.0 {
                credit /= 1.0 + config.overlap_score_credit_decay * (under_way - least) / request_blocks;
            }
            credit += self.tier_credit(tiers);
            let raw = if config.track_prefill_tokens { under_way + request_blocks } else { 0.0 };
            let prefill = config.prefill_load_scale * (raw - credit).max(0.0);
            let requests = config.decode_active_request_weight * books.account(worker).requests as f64;
            self.costs.push(prefill + books.blocks_with(worker, chain) as f64 + requests);
        }
    }
}
