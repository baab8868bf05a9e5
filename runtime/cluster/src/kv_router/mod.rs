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
mod classes;
mod config;
mod cost;
mod index;
mod queue;

use std::collections::VecDeque;

use vcr_core::hash::BlockHash;
use vcr_core::kv_event::KvEvent;
use vcr_core::{KvTierChange, TierRun};
use vcr_random::Stream;

use active::Chain;
use books::{Books, Entry};
pub use classes::{IslBucket, QueueClass, QueueConfig, QueueProfile};
pub use config::{KvKnowledge, KvRouterConfig, QueueOrder, ReplicaConfig};
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
    /// The class or family of classes that it asks for in the queue.
    pub(crate) policy_class: Option<&'a str>,
    /// Whether it may be refused: not once it has been with an engine.
    pub(crate) may_shed: bool,
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

/// What becomes of a request that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvRouted {
    /// This worker takes it.
    To(Candidate),
    /// It waits.
    Queued,
    /// It is refused: too much of its class waits.
    Full,
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
struct Replica {
    books: Books,
    /// Without a class where nobody waits.
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
                // Without prompt tokens no engine is ever busy.
                config.queue = None;
            }
        }
        let classes = config.queue.as_ref().map_or(0, |queue| queue.classes().len());
        let each = |_| Replica {
            books: Books::new(&config, facts.workers),
            queue: RouterQueue::new(classes),
            coming: VecDeque::new(),
            guesses: match config.knowledge {
                KvKnowledge::Predicted { .. } => (0..facts.workers).map(|_| GuessedIndex::default()).collect(),
                KvKnowledge::Events { .. } => Vec::new(),
            },
        };
        Self {
            replicas: (0..config.replicas.count).map(each).collect(),
            owners: Vec::new(),
            turn: 0,
            events: if config.knowledge.is_late() {
                (0..facts.workers).map(|_| EventIndex::default()).collect()
            } else {
                Vec::new()
            },
            ties: Stream::new(seed, "ties"),
            costs: Vec::new(),
            no_blocks: Chain::from([]),
            config,
            facts,
        }
    }

    /// Whether it asks what is cached at all. Also without a credit, what is cached
    /// is not booked as prompt tokens to compute.
    fn minds_caches(&self) -> bool {
        self.facts.part != PoolPart::Decode
    }

    /// Whether the candidates must come with what the engines have cached now.
    pub(crate) fn needs_overlap(&self) -> bool {
        let knowledge = self.config.knowledge;
        self.minds_caches() && matches!(knowledge, KvKnowledge::Events { .. }) && !knowledge.is_late()
    }

    /// Whether it looks for KV below the device, too.
    pub(crate) fn sees_tiers(&self) -> bool {
        self.facts.has_tiers && self.config.overlap_score_credit > 0.0
    }

    /// Whether it wants the engines' KV events.
    pub(crate) fn needs_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether those of a step are out when it ends, not when it starts.
    pub(crate) fn hears_at_step_end(&self) -> bool {
        matches!(self.config.knowledge, KvKnowledge::Events { at_step_end: true, .. })
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
    /// keeps the request back.
    pub(crate) fn route(&mut self, query: &KvQuery<'_>, candidates: &mut [Candidate]) -> KvRouted {
        let owner = self.owner_in_turn(query.request);
        self.catch_up(owner, query.now_ns);
        self.look_up(owner, query.now_ns, query.blocks, candidates);
        let chain = self.chain(query.blocks);
        let KvQuery { request, prompt_tokens, .. } = *query;
        if let Some(config) = &self.config.queue {
            let most_cached = candidates.iter().map(|to| self.cached_tokens(to)).max().unwrap_or(0);
            let cached_tokens = most_cached.min(u64::from(prompt_tokens));
            let class = config.class_of(query.policy_class, u64::from(prompt_tokens) - cached_tokens);
            let settings = &config.classes()[class];
            let Replica { queue, books, .. } = &mut self.replicas[owner];
            if config.keeps_back(class)
                && (queue.has_waiting(class) || all_busy(books, candidates, settings, &self.facts))
            {
                if query.may_shed && queue.is_full(class, settings, candidates.len()) {
                    return KvRouted::Full;
                }
                let overlaps = candidates.to_vec();
                let queued = Queued { request, prompt_tokens, cached_tokens, chain, overlaps };
                queue.push(query, class, settings.queue_policy, queued);
                return KvRouted::Queued;
            }
        }
        KvRouted::To(self.send(owner, query.now_ns, request, prompt_tokens, chain, candidates))
    }

    /// The next request that need not wait any more, if the engines that are up
    /// are these.
    pub(crate) fn release(&mut self, now_ns: u64, up: &[Candidate]) -> Option<Released> {
        for owner in 0..self.replicas.len() {
            if self.replicas[owner].queue.is_empty() {
                continue;
            }
            // Also with no engine up: what has been heard is not to be heard again.
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
            return Some(Released { request, to });
        }
        None
    }

    /// Takes all requests out of the queues.
    pub(crate) fn give_up_queued(&mut self) -> Vec<u64> {
        let queues = self.replicas.iter_mut().map(|replica| &mut replica.queue);
        queues.flat_map(RouterQueue::drain).map(|queued| queued.request).collect()
    }

    /// A request that waits here is over.
    pub(crate) fn leave_queue(&mut self, request: u64) {
        self.replicas.iter_mut().for_each(|replica| replica.queue.leave(request));
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
        let KvKnowledge::Events { lag_ns, .. } = self.config.knowledge else { return };
        if let Some(index) = self.events.get_mut(worker as usize) {
            index.expect(at_ns.saturating_add(lag_ns), event);
        }
    }

    /// A block has come to a tier of a worker, or left it.
    pub(crate) fn tier_change(&mut self, worker: u32, change: KvTierChange) {
        let KvKnowledge::Events { lag_ns, .. } = self.config.knowledge else { return };
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
        if !self.minds_caches() {
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
}

/// Whether no engine takes anybody of a class.
fn all_busy(books: &Books, candidates: &[Candidate], class: &QueueClass, facts: &PoolFacts) -> bool {
    let is_busy = |worker| class.is_busy(books.account(worker).prefill_tokens, facts.max_num_batched_tokens);
    candidates.iter().all(|candidate| is_busy(candidate.worker))
}

#[cfg(test)]
mod tests;
