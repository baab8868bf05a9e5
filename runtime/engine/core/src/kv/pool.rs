//! The paged KV pool: references to blocks, cached blocks, and the eviction order.
//!
//! Owns reference counts, the order of free blocks, and the map from block hash to block. The order is exactly
//! vLLM's (0.32 and 0.33, `vllm/v1/core/block_pool.py`). Blocks are allocated from the front of the free list.
//! Released blocks without a hash go to the front, blocks with a hash to the back. A hit on a free cached block
//! removes it from the list. Allocating a cached block drops its hash. No operation scans the pool, and blocks that
//! were never allocated use no memory.

mod blocks;
mod queue;

use std::sync::Arc;

use blocks::Blocks;

use crate::kv::event::KvEventLog;
use crate::kv::forecast::{Forecast, Outlook};
use crate::kv::hash::BlockHash;

/// Index of a KV block; block 0 is the null block and is never handed out.
pub type BlockId = u32;

/// The KV blocks of one engine.
#[derive(Debug)]
pub struct KvPool {
    blocks: AnyBlocks,
    num_free: u32,
    caching: bool,
    events: Option<KvEventLog>,
    /// The forecast that decides which cached block is evicted, if there is one.
    outlook: Option<Box<Outlook>>,
}

/// Blocks, with the narrowest links that fit their number.
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
    /// A pool of `num_gpu_blocks` blocks, including the null block. The maximum is 2^30, which
    /// [`EngineConfig`](crate::EngineConfig) checks.
    #[must_use]
    pub fn new(num_gpu_blocks: u32, caching: bool) -> Self {
        Self::with_queue(num_gpu_blocks, caching, caching)
    }

    /// A pool without cache, which allocates blocks in the order of their release.
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

    /// From now on, evicts cached blocks by their next use, not by their last use. Must be called
    /// before the first request.
    pub fn use_forecast(&mut self, forecast: &Arc<Forecast>) {
        self.outlook = Some(Box::new(Outlook::new(Arc::clone(forecast))));
    }

    /// Records that the prompt of a request in the forecast has been scheduled on any engine, or never will be.
    pub fn mark_scheduled(&mut self, request: u64) {
        if let Some(outlook) = &mut self.outlook {
            outlook.mark_scheduled(request);
        }
    }

    /// Evicts blocks by the forecast until `count` blocks can be allocated.
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

    /// Starts or stops recording events. To translate events, start before the first request.
    pub fn record_events(&mut self, on: bool) {
        self.events = on.then(KvEventLog::default);
    }

    /// Starts recording events with the positions of blocks. Block hashes cover
    /// `lookahead_tokens` tokens after the block.
    pub fn record_events_with_places(&mut self, lookahead_tokens: u32) {
        self.events.get_or_insert_default().record_places(lookahead_tokens);
    }

    /// Forgets an ended request, of which no more blocks will be stored.
    pub fn forget_events_of(&mut self, tag: u64) {
        if let Some(events) = &mut self.events {
            events.forget_request(tag);
        }
    }

    /// Events recorded since the log was last cleared. None while recording is off.
    #[must_use]
    pub fn events(&self) -> Option<&KvEventLog> {
        self.events.as_ref()
    }

    /// Removes the recorded events.
    pub fn clear_events(&mut self) {
        if let Some(events) = &mut self.events {
            events.clear();
        }
    }

    /// Whether prefix caching is on.
    #[must_use]
    pub fn caching(&self) -> bool {
        self.caching
    }

    /// Number of blocks that no request references.
    #[must_use]
    pub fn num_free(&self) -> u32 {
        self.num_free
    }

    /// Number of blocks without the null block.
    #[must_use]
    pub fn num_usable(&self) -> u32 {
        each!(self, blocks => blocks.num_blocks()) - 1
    }

    /// Number of blocks that no request references and whose content is kept for reuse.
    #[must_use]
    pub fn num_free_cached(&self) -> u32 {
        self.num_free - each!(self, blocks => blocks.num_uncached())
    }

    /// Number of blocks that requests reference.
    #[must_use]
    pub fn num_active(&self) -> u32 {
        self.num_usable() - self.num_free
    }

    /// Appends the longest run of cached blocks at the start of `hashes` to `hit`.
    pub fn lookup(&self, hashes: &[BlockHash], hit: &mut Vec<BlockId>) {
        if self.caching {
            each!(self, blocks => hit.extend(hashes.iter().map_while(|&hash| blocks.find(hash))));
        }
    }

    /// Length in blocks of the longest cached prefix of a sequence with the block hashes `hashes`.
    ///
    /// A block is released before its parent and never used later than its parent, so it is evicted earlier. So
    /// if a block is cached, all its parents are, and a search can find the end of the prefix.
    #[must_use]
    pub fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32 {
        let cached = |index: usize| each!(self, blocks => blocks.find(hashes[index])).is_some();
        if !self.caching || hashes.is_empty() || !cached(0) {
            return 0;
        }
        // The search doubles its step, because most prefixes are short.
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

    /// Number of free blocks among `blocks`. Reviving such a block costs a free block.
    #[must_use]
    pub fn count_free_among<'a>(&self, blocks: impl IntoIterator<Item = &'a BlockId>) -> u32 {
        each!(self, own => blocks.into_iter().filter(|&&id| own.is_free(id)).count() as u32)
    }

    /// Whether several requests reference a block.
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

    /// Allocates `count` blocks from the front of the free list, and evicts their cached contents. The caller has
    /// checked [`KvPool::num_free`].
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

    /// Like [`KvPool::allocate`], for groups of layers. Calls `removed` with the log, if there is one, for each block
    /// that was cached, with its key.
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

    /// The block that was first cached with a key.
    pub(crate) fn find(&self, key: BlockHash) -> Option<BlockId> {
        each!(self, blocks => blocks.find(key))
    }

    /// Inserts blocks with their keys into the cache map. The caller records events.
    pub(crate) fn insert(&mut self, blocks: &[BlockId], keys: &[BlockHash]) {
        each!(mut self, own => own.insert(blocks, keys));
    }

    pub(crate) fn key_of(&self, id: BlockId) -> Option<BlockHash> {
        each!(self, blocks => blocks.hash_of(id))
    }

    /// Removes a cached block that a request references from the cache map. The caller records events.
    pub(crate) fn forget(&mut self, id: BlockId) {
        each!(mut self, blocks => blocks.forget(id));
    }

    /// The event log, for groups to record their own events.
    pub(crate) fn events_mut(&mut self) -> Option<&mut KvEventLog> {
        self.events.as_mut()
    }

    /// Registers consecutive full blocks of one sequence for reuse. `tokens` are the tokens of these blocks, if known.
    /// `tokens` and `tag` are only used for events.
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

    /// Like [`KvPool::store`], but the caller records the event if this returns true.
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

    /// Forgets every cached block. Does nothing and returns false while any block is
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

    /// Drops one reference to each block of a request's table, from the last block to the first, so that the last block
    /// of a sequence is evicted before its parents. Blocks without a hash cannot be hit and are reused before cached
    /// blocks.
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

    /// The free blocks in allocation order.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let free: Box<dyn Iterator<Item = BlockId>> = each!(self, blocks => Box::new(blocks.free()));
        free
    }

    /// Total number of references to all blocks, for consistency checks.
    #[must_use]
    pub fn total_references(&self) -> u64 {
        each!(self, blocks => blocks.total_references())
    }

    /// Checks all invariants by walking the whole pool.
    ///
    /// # Panics
    /// If the free blocks, reference counts or cache map are inconsistent.
    pub fn assert_consistent(&self) {
        each!(self, blocks => blocks.assert_consistent(self.num_free));
    }
}
