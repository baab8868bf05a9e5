//! The paged KV pool: owners of blocks, cached blocks, order of eviction.
//!
//! Owns reference counts, the order of free blocks and the map from block hash to
//! block. Keeps vLLM's order exactly (0.32 and 0.33, `vllm/v1/core/block_pool.py`):
//! blocks are taken from the front of the free ones; released blocks without a hash
//! go to the front, hashed ones to the back; a hit on a free cached block takes it out;
//! taking a cached block drops its hash. Nothing here scans the pool, and no memory is
//! touched for blocks that were never taken.

mod blocks;
mod queue;

use std::sync::Arc;

use blocks::Blocks;

use crate::kv::event::KvEventLog;
use crate::kv::forecast::{Forecast, Outlook};
use crate::kv::hash::BlockHash;

/// Index of a KV block; block 0 is the null block and is never handed out.
pub type BlockId = u32;

/// The blocks of one engine.
#[derive(Debug)]
pub struct KvPool {
    blocks: AnyBlocks,
    num_free: u32,
    caching: bool,
    events: Option<KvEventLog>,
    /// The future that decides which cached block is evicted, if it is known.
    outlook: Option<Box<Outlook>>,
}

/// Blocks with links as narrow as their number allows.
#[derive(Debug)]
enum AnyBlocks {
    Narrow(Blocks<u16>),
    Wide(Blocks<u32>),
}

macro_rules! each {
    ($pool:expr, $blocks:ident => $call:expr) => {
        match &$pool.blocks {
            AnyBlocks::Narrow($blocks) => $call,
            AnyBlocks::Wide($blocks) => $call,
        }
    };
    (mut $pool:expr, $blocks:ident => $call:expr) => {
        match &mut $pool.blocks {
            AnyBlocks::Narrow($blocks) => $call,
            AnyBlocks::Wide($blocks) => $call,
        }
    };
}

impl KvPool {
    /// A pool of `num_gpu_blocks` blocks, the null block included; at most 2^30, as
    /// [`EngineConfig`](crate::EngineConfig) checks.
    #[must_use]
    pub fn new(num_gpu_blocks: u32, caching: bool) -> Self {
        Self::with_queue(num_gpu_blocks, caching, caching)
    }

    /// A pool without cache whose blocks are allocated in the order of their release.
    pub(crate) fn uncached_queue(num_gpu_blocks: u32) -> Self {
        Self::with_queue(num_gpu_blocks, false, true)
    }

    fn with_queue(num_gpu_blocks: u32, caching: bool, has_queue: bool) -> Self {
        let blocks = match blocks::are_narrow(num_gpu_blocks) {
            true => AnyBlocks::Narrow(Blocks::new(num_gpu_blocks, caching, has_queue)),
            false => AnyBlocks::Wide(Blocks::new(num_gpu_blocks, caching, has_queue)),
        };
        Self { blocks, num_free: num_gpu_blocks - 1, caching, events: None, outlook: None }
    }

    /// From now on, evicts cached blocks in the order of their next use, not of their last. Must be called
    /// before the first request.
    pub fn use_forecast(&mut self, forecast: &Arc<Forecast>) {
        self.outlook = Some(Box::new(Outlook::new(Arc::clone(forecast))));
    }

    /// The prompt of a request of the forecast is scheduled somewhere, or it never will be.
    pub fn mark_scheduled(&mut self, request: u64) {
        if let Some(outlook) = &mut self.outlook {
            outlook.mark_scheduled(request);
        }
    }

    /// Makes room for `count` blocks by the future.
    #[cold]
    fn evict_by_future(&mut self, count: u32) {
        let Some(outlook) = &mut self.outlook else { return };
        let missing = count.saturating_sub(each!(self, blocks => blocks.num_uncached()));
        for _ in 0..missing {
            let Some(id) = outlook.pop() else { return };
            let hash = each!(self, blocks => blocks.hash_of(id));
            if let (Some(events), Some(hash)) = (&mut self.events, hash) {
                events.removed(hash);
            }
            each!(mut self, blocks => blocks.uncache_free(id));
            if let Some(hash) = hash.filter(|&hash| each!(self, blocks => blocks.count(hash)) == 1) {
                outlook.set_copied(hash, false);
            }
        }
    }

    /// Starts or stops recording events. Whoever translates them must start
    /// before the first request.
    pub fn record_events(&mut self, on: bool) {
        self.events = on.then(KvEventLog::default);
    }

    /// Starts recording events as [`KvPool::record_events`] does, with the places of blocks. Their hashes cover
    /// `lookahead_tokens` tokens that follow the block.
    pub fn record_events_with_places(&mut self, lookahead_tokens: u32) {
        self.events.get_or_insert_default().record_places(lookahead_tokens);
    }

    /// A request has ended: no more of its blocks are stored.
    pub fn forget_events_of(&mut self, tag: u64) {
        if let Some(events) = &mut self.events {
            events.forget_request(tag);
        }
    }

    /// Events recorded since the log was last cleared; none while recording is off.
    #[must_use]
    pub fn events(&self) -> Option<&KvEventLog> {
        self.events.as_ref()
    }

    /// Forgets the recorded events.
    pub fn clear_events(&mut self) {
        if let Some(events) = &mut self.events {
            events.clear();
        }
    }

    /// Whether full blocks are kept for reuse.
    #[must_use]
    pub fn caching(&self) -> bool {
        self.caching
    }

    /// Blocks that no request references.
    #[must_use]
    pub fn num_free(&self) -> u32 {
        self.num_free
    }

    /// Blocks that requests can use in all.
    #[must_use]
    pub fn num_usable(&self) -> u32 {
        each!(self, blocks => blocks.num_blocks()) - 1
    }

    /// Blocks that no request references and whose content is kept for reuse.
    #[must_use]
    pub fn num_free_cached(&self) -> u32 {
        self.num_free - each!(self, blocks => blocks.num_uncached())
    }

    /// Blocks referenced by at least one request.
    #[must_use]
    pub fn num_active(&self) -> u32 {
        self.num_usable() - self.num_free
    }

    /// The longest run of cached blocks at the start of `hashes`, appended to `hit`.
    pub fn lookup(&self, hashes: &[BlockHash], hit: &mut Vec<BlockId>) {
        if self.caching {
            each!(self, blocks => hit.extend(hashes.iter().map_while(|&hash| blocks.find(hash))));
        }
    }

    /// Length in blocks of the longest cached prefix of `hashes`, the block hashes of one sequence.
    ///
    /// A block is released before its parent and used no later, so it is evicted
    /// before it: a cached block has all its parents. So the end of the run can be
    /// searched for.
    #[must_use]
    pub fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32 {
        let cached = |index: usize| each!(self, blocks => blocks.find(hashes[index])).is_some();
        if !self.caching || hashes.is_empty() || !cached(0) {
            return 0;
        }
        // Doubling first: most runs are short.
        let mut end = 1;
        while end < hashes.len() && cached(end) {
            end = (2 * end + 1).min(hashes.len());
        }
        let mut known = end / 2;
        while known + 1 < end {
            let middle = usize::midpoint(known, end);
            if cached(middle) { known = middle } else { end = middle }
        }
        known as u32 + 1
    }

    /// Number of `blocks` that are free, and so would cost a free block to revive.
    #[must_use]
    pub fn count_free_among<'a>(&self, blocks: impl IntoIterator<Item = &'a BlockId>) -> u32 {
        each!(self, own => blocks.into_iter().filter(|&&id| own.is_free(id)).count() as u32)
    }

    /// Whether several requests hold a block.
    pub(crate) fn is_shared(&self, id: BlockId) -> bool {
        each!(self, blocks => blocks.is_shared(id))
    }

    /// Adds a reference to each cached block of a hit.
    pub fn touch<'a>(&mut self, hit: impl IntoIterator<Item = &'a BlockId>) {
        let outlook = &mut self.outlook;
        let mut touched = |id: BlockId, was_free: bool| {
            if was_free && let Some(outlook) = outlook {
                outlook.remove(id);
            }
            was_free
        };
        let freed = each!(mut self, blocks => hit.into_iter().filter(|&&id| touched(id, blocks.touch(id))).count());
        self.num_free -= freed as u32;
    }

    /// Moves `count` blocks from the front of the free ones to `table`, evicting their cached
    /// contents. The caller has checked [`KvPool::num_free`].
    pub fn allocate(&mut self, count: u32, table: &mut Vec<BlockId>) {
        assert!(count <= self.num_free, "allocate {count} of {} free blocks", self.num_free);
        if self.outlook.is_some() {
            self.evict_by_future(count);
        }
        self.num_free -= count;
        match &mut self.events {
            None => each!(mut self, blocks => blocks.take(count, table, |_, _| {})),
            Some(events) => each!(mut self, blocks => blocks.take(count, table, |_, &hash| events.removed(hash))),
        }
    }

    /// [`KvPool::allocate`] for groups of layers: `removed` is called with the log, if there is
    /// one, and with each block that was cached and its key.
    pub(crate) fn allocate_noting(
        &mut self,
        count: u32,
        table: &mut Vec<BlockId>,
        mut removed: impl FnMut(Option<&mut KvEventLog>, BlockId, BlockHash),
    ) {
        assert!(count <= self.num_free, "allocate {count} of {} free blocks", self.num_free);
        self.num_free -= count;
        let events = &mut self.events;
        each!(mut self, blocks => blocks.take(count, table, |id, &key| removed(events.as_mut(), id, key)));
    }

    /// The block that was cached first under a key.
    pub(crate) fn find(&self, key: BlockHash) -> Option<BlockId> {
        each!(self, blocks => blocks.find(key))
    }

    /// Puts blocks into the cache map, each under its key. Events are the caller's.
    pub(crate) fn insert(&mut self, blocks: &[BlockId], keys: &[BlockHash]) {
        each!(mut self, own => own.insert(blocks, keys));
    }

    /// The key of a block that a request holds, if it is cached.
    pub(crate) fn key_of(&self, id: BlockId) -> Option<BlockHash> {
        each!(self, blocks => blocks.hash_of(id))
    }

    /// Takes a cached block that a request holds out of the cache map. Events are the caller's.
    pub(crate) fn forget(&mut self, id: BlockId) {
        each!(mut self, blocks => blocks.forget(id));
    }

    /// The log, for events of groups.
    pub(crate) fn events_mut(&mut self) -> Option<&mut KvEventLog> {
        self.events.as_mut()
    }

    /// Registers consecutive full blocks of one sequence for reuse. `tokens`
    /// are theirs, if known; they and the request's `tag` only go into the events.
    pub fn store(
        &mut self,
        tag: u64,
        parent: Option<BlockHash>,
        blocks: &[BlockId],
        hashes: &[BlockHash],
        tokens: &[u32],
    ) {
        if self.register(blocks, hashes)
            && let Some(events) = &mut self.events
        {
            events.stored(tag, parent, hashes, tokens);
        }
    }

    /// The same; if it returns true, the caller records the event.
    pub(crate) fn register(&mut self, blocks: &[BlockId], hashes: &[BlockHash]) -> bool {
        debug_assert_eq!(blocks.len(), hashes.len());
        if !self.caching || blocks.is_empty() {
            return false;
        }
        each!(mut self, own => own.insert(blocks, hashes));
        if let Some(outlook) = &mut self.outlook {
            let copied = hashes.iter().filter(|&&hash| each!(self, own => own.count(hash)) > 1);
            copied.for_each(|&hash| outlook.set_copied(hash, true));
        }
        true
    }

    /// Forgets every cached block. False, and nothing done, while any block is
    /// referenced (vLLM's `reset_prefix_cache`).
    pub fn reset_cache(&mut self) -> bool {
        if self.num_active() > 0 {
            return false;
        }
        each!(mut self, blocks => blocks.forget_hashes());
        if let Some(outlook) = &mut self.outlook {
            outlook.clear();
        }
        if let Some(events) = &mut self.events {
            events.cleared();
        }
        true
    }

    /// Drops one reference to each block of a request's table, tail first: so the
    /// deepest block of a chain is evicted before its parents. Blocks without a hash
    /// cannot be hit and are reused before any cached one.
    pub fn release(&mut self, table: &[BlockId]) {
        self.num_free += each!(mut self, blocks => blocks.release(table));
        if let Some(outlook) = &mut self.outlook {
            for &id in table.iter().rev().filter(|&&id| each!(self, blocks => blocks.is_free(id))) {
                if let Some(hash) = each!(self, blocks => blocks.hash_of(id)) {
                    outlook.add(id, hash, each!(self, blocks => blocks.count(hash)) > 1);
                }
            }
        }
    }

    /// The free blocks, in the order in which they are allocated.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let free: Box<dyn Iterator<Item = BlockId>> = each!(self, blocks => Box::new(blocks.free()));
        free
    }

    /// Sum over all blocks of references held; for conservation checks.
    #[must_use]
    pub fn total_references(&self) -> u64 {
        each!(self, blocks => blocks.total_references())
    }

    /// Checks every structural invariant by walking the whole pool.
    ///
    /// # Panics
    /// When the free blocks, reference counts or cache map disagree.
    pub fn assert_consistent(&self) {
        each!(self, blocks => blocks.assert_consistent(self.num_free));
    }
}
