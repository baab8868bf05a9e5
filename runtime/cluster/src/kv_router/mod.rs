//! The KV router: Dynamo's cost function over what its books and its index know.
//!
//! Other routers are asked once for each request and see the engines' own loads.
//! This one sees nothing of the engines but their KV events. It books what it has
//! sent, may keep requests back while every engine is busy, and may be several
//! routers that hear of each other late. The formulas are those of
//! `dynamo-kv-router` 1.4; where that breaks ties by a global random generator,
//! this one draws from the run's seed.

mod active;
mod books;
mod config;
mod index;
mod queue;

use std::collections::VecDeque;

use vcr_core::hash::BlockHash;
use vcr_core::kv_event::KvEvent;
use vcr_core::{KvTierChange, TierRun};
use vcr_random::Stream;

use active::Chain;
use books::{Books, Entry};
pub use config::{KvKnowledge, KvRouterConfig, QueueConfig, QueueOrder, ReplicaConfig};
use index::{EventIndex, GuessedIndex};
use queue::{Queued, RouterQueue};

/// A request to be routed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvQuery<'a> {
    pub(crate) now_ns: u64,
    pub(crate) request: u64,
    pub(crate) arrival_ns: u64,
    pub(crate) prompt_tokens: u32,
    /// As Dynamo has it: a higher one is sooner.
    pub(crate) priority: i32,
    /// A higher one is sooner, whatever the priority.
    pub(crate) strict_priority: u32,
    pub(crate) blocks: &'a [BlockHash],
}

/// An engine that is up, and what it has cached of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) worker: u32,
    pub(crate) overlap_blocks: u32,
    /// What it has beyond that in its tiers.
    pub(crate) tiers: TierRun,
}

/// A request that leaves the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    pub(crate) request: u64,
    pub(crate) to: Candidate,
}

/// Which part of the work the pool does, which says what counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolPart {
    Whole,
    Prefill,
    Decode,
}

/// What a pool's engines are, as far as the router cares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolFacts {
    pub(crate) workers: u32,
    pub(crate) block_size_tokens: u32,
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) part: PoolPart,
    /// Whether they keep KV below the device.
    pub(crate) has_tiers: bool,
}

/// One of the routers in front of a pool.
#[derive(Default)]
struct Replica {
    books: Books,
    queue: RouterQueue,
    /// What other routers did and this one does not know yet.
    coming: VecDeque<(u64, Entry)>,
    guesses: Vec<GuessedIndex>,
}

/// The KV routers of one pool.
pub(crate) struct KvRouter {
    config: KvRouterConfig,
    facts: PoolFacts,
    replicas: Vec<Replica>,
    /// By request, the router that it came to; empty where there is only one.
    owners: Vec<u32>,
    turn: u32,
    /// By worker; empty where the caches are known as they are.
    events: Vec<EventIndex>,
    ties: Stream,
    /// Scratch: what it takes each candidate to serve the request.
    costs: Vec<f64>,
    no_blocks: Chain,
}

impl KvRouter {
    pub(crate) fn new(mut config: KvRouterConfig, facts: PoolFacts, seed: u64) -> Self {
        match facts.part {
            PoolPart::Whole => {}
            PoolPart::Prefill => config.track_active_blocks = false,
            PoolPart::Decode => {
                config.overlap_score_credit = 0.0;
                config.assume_kv_reuse = false;
                config.track_prefill_tokens = false;
            }
        }
        let each = |_| Replica {
            books: Books::new(&config, facts.workers),
            guesses: match config.knowledge {
                KvKnowledge::Predicted { .. } => (0..facts.workers).map(|_| GuessedIndex::default()).collect(),
                KvKnowledge::Events { .. } => Vec::new(),
            },
            ..Replica::default()
        };
        Self {
            replicas: (0..config.replicas.count).map(each).collect(),
            owners: Vec::new(),
            turn: 0,
            events: match config.knowledge {
                KvKnowledge::Events { lag_ns } if lag_ns > 0 => {
                    (0..facts.workers).map(|_| EventIndex::default()).collect()
                }
                _ => Vec::new(),
            },
            ties: Stream::new(seed, "ties"),
            costs: Vec::new(),
            no_blocks: Chain::from([]),
            config,
            facts,
        }
    }

    /// Whether the candidates must come with what the engines have cached now.
    pub(crate) fn needs_overlap(&self) -> bool {
        self.config.overlap_score_credit > 0.0 && self.config.knowledge == KvKnowledge::Events { lag_ns: 0 }
    }

    /// Whether it looks for KV below the device, too.
    pub(crate) fn sees_tiers(&self) -> bool {
        self.facts.has_tiers && self.config.overlap_score_credit > 0.0
    }

    /// Whether it wants the engines' KV events.
    pub(crate) fn needs_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether it counts the blocks of outputs.
    pub(crate) fn needs_outputs(&self) -> bool {
        self.config.track_output_blocks && self.config.track_active_blocks
    }

    /// Whether it must be told of each step when it ends: other routers hear of it
    /// so long after.
    pub(crate) fn needs_single_steps(&self) -> bool {
        self.needs_outputs() && self.replicas.len() > 1 && self.config.replicas.sync_ns.is_some()
    }

    /// Whether requests may wait here.
    pub(crate) fn has_queue(&self) -> bool {
        self.config.queue.is_some()
    }

    /// Chooses among the engines that are up, of which there is at least one, or
    /// lets the request wait: then there is no answer yet.
    pub(crate) fn route(&mut self, query: &KvQuery<'_>, candidates: &mut [Candidate]) -> Option<Candidate> {
        let owner = self.owner_in_turn(query.request);
        self.catch_up(owner, query.now_ns);
        self.look_up(owner, query.now_ns, query.blocks, candidates);
        let chain = self.chain(query.blocks);
        if let Some(queue) = self.config.queue
            && (!self.replicas[owner].queue.is_empty() || self.all_busy(owner, candidates, &queue))
        {
            let (request, prompt_tokens) = (query.request, query.prompt_tokens);
            let most_cached_tokens = candidates.iter().map(|to| self.cached_tokens(to)).max().unwrap_or(0);
            let queued = Queued { request, prompt_tokens, chain, overlaps: candidates.to_vec() };
            self.replicas[owner].queue.push(query, queue.order, most_cached_tokens, queued);
            return None;
        }
        Some(self.send(owner, query.now_ns, query.request, query.prompt_tokens, chain, candidates))
    }

    /// The next request that need not wait any more, if the engines that are up
    /// are these.
    pub(crate) fn release(&mut self, now_ns: u64, up: &[Candidate]) -> Option<Released> {
        let queue = self.config.queue?;
        for owner in 0..self.replicas.len() {
            if self.replicas[owner].queue.is_empty() {
                continue;
            }
            // Also with no engine up: what has been heard is not to be heard again.
            self.catch_up(owner, now_ns);
            if up.is_empty() || self.all_busy(owner, up, &queue) {
                continue;
            }
            let Some(queued) = self.replicas[owner].queue.pop() else { continue };
            let as_it_came = |now: &Candidate| {
                let known = queued.overlaps.iter().find(|candidate| candidate.worker == now.worker);
                known.copied().unwrap_or(Candidate { worker: now.worker, ..Candidate::default() })
            };
            let candidates: Vec<Candidate> = up.iter().map(as_it_came).collect();
            let Queued { request, prompt_tokens, chain, .. } = queued;
            let to = self.send(owner, now_ns, request, prompt_tokens, chain, &candidates);
            return Some(Released { request, to });
        }
        None
    }

    /// Takes all requests out of the queues.
    pub(crate) fn give_up_queued(&mut self) -> Vec<u64> {
        let queues = self.replicas.iter_mut().map(|replica| &mut replica.queue);
        queues.flat_map(|queue| std::iter::from_fn(|| queue.pop()).map(|queued| queued.request)).collect()
    }

    /// How many requests wait here, and their prompt tokens.
    pub(crate) fn queued(&self) -> (u64, u64) {
        let each = self.replicas.iter().map(|replica| replica.queue.load());
        each.fold((0, 0), |(requests, tokens), (more, more_tokens)| (requests + more, tokens + more_tokens))
    }

    /// When a router that keeps requests back hears next of what others did.
    pub(crate) fn hears_at_ns(&self) -> Option<u64> {
        let waiting = self.replicas.iter().filter(|replica| !replica.queue.is_empty());
        waiting.filter_map(|replica| replica.coming.front().map(|(at_ns, _)| *at_ns)).min()
    }

    /// The first token of a request has come.
    pub(crate) fn prefilled(&mut self, now_ns: u64, request: u64) {
        if self.config.track_prefill_tokens {
            self.book(self.owner(request), now_ns, Entry::Prefilled { request });
        }
    }

    /// The output of a request has grown.
    pub(crate) fn generated(&mut self, now_ns: u64, request: u64, output_tokens: u32) {
        let blocks = u64::from(output_tokens / self.facts.block_size_tokens);
        self.book(self.owner(request), now_ns, Entry::Generated { request, blocks });
    }

    /// A request is over here.
    pub(crate) fn ended(&mut self, now_ns: u64, request: u64) {
        self.book(self.owner(request), now_ns, Entry::Over { request });
    }

    /// A KV event of a worker, sent at `at_ns`.
    pub(crate) fn kv_event(&mut self, at_ns: u64, worker: u32, event: KvEvent<'_>) {
        let KvKnowledge::Events { lag_ns } = self.config.knowledge else { return };
        if let Some(index) = self.events.get_mut(worker as usize) {
            index.expect(at_ns.saturating_add(lag_ns), event);
        }
    }

    /// A block has come to a tier of a worker, or left it.
    pub(crate) fn tier_change(&mut self, worker: u32, change: KvTierChange) {
        let KvKnowledge::Events { lag_ns } = self.config.knowledge else { return };
        if self.sees_tiers()
            && let Some(index) = self.events.get_mut(worker as usize)
        {
            index.expect_change(change.at_ns.saturating_add(lag_ns), change);
        }
    }

    /// A worker has lost its cache with all else.
    pub(crate) fn crashed(&mut self, worker: u32) {
        if let Some(index) = self.events.get_mut(worker as usize) {
            index.forget();
        }
        for replica in &mut self.replicas {
            if let Some(guess) = replica.guesses.get_mut(worker as usize) {
                guess.forget();
            }
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
        let guesses = matches!(self.config.knowledge, KvKnowledge::Predicted { .. });
        let needed = self.config.track_active_blocks || guesses;
        if needed { Chain::from(blocks) } else { self.no_blocks.clone() }
    }

    /// Fills in what is known of the caches, unless the caller has.
    fn look_up(&mut self, owner: usize, now_ns: u64, blocks: &[BlockHash], candidates: &mut [Candidate]) {
        if self.config.overlap_score_credit == 0.0 {
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

    fn all_busy(&self, owner: usize, candidates: &[Candidate], queue: &QueueConfig) -> bool {
        let most = queue.threshold * f64::from(self.facts.max_num_batched_tokens);
        let books = &self.replicas[owner].books;
        candidates.iter().all(|candidate| books.account(candidate.worker).prefill_tokens as f64 > most)
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
        if let KvKnowledge::Predicted { ttl_ns } = self.config.knowledge {
            self.replicas[owner].guesses[to.worker as usize].sent(now_ns.saturating_add(ttl_ns), &chain);
        }
        let prefill_tokens = u64::from(prompt_tokens).saturating_sub(cached);
        self.book(owner, now_ns, Entry::Sent { request, worker: to.worker, prefill_tokens, chain });
        to
    }

    /// Enters something into the books of `owner`, now, and into those of the
    /// others, when they hear of it.
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

    /// What blocks below the device are worth in cached ones.
    fn tier_credit(&self, tiers: TierRun) -> f64 {
        self.config.host_cache_hit_weight * f64::from(tiers.host_blocks)
            + self.config.disk_cache_hit_weight * f64::from(tiers.disk_blocks)
    }

    /// Prompt tokens that need not be computed, those below the device by their
    /// weight.
    fn cached_tokens(&self, candidate: &Candidate) -> u64 {
        let block = u64::from(self.facts.block_size_tokens);
        let below = self.tier_credit(candidate.tiers) * block as f64;
        u64::from(candidate.overlap_blocks) * block + below.round() as u64
    }

    /// Position of the candidate that costs least.
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
            // Each of those that cost the same is as likely as the others.
            if equal == 1 || self.ties.unit() * f64::from(equal) < 1.0 {
                chosen = position;
            }
        }
        chosen
    }

    /// Draws a candidate by a softmax over its cost, scaled by the costs' spread.
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

    /// Fills in the costs of all candidates.
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

#[cfg(test)]
mod tests;
