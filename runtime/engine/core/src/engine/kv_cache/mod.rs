//! The KV cache manager: a request's blocks from lookup to release.
//!
//! Owns the block pool, the groups of layers, and the latest prefix lookup. It has the role of vLLM's
//! `KVCacheManager`. Requests and settings are passed as arguments.

mod admission;
mod groups;
mod requests;

use std::collections::VecDeque;

pub(super) use self::admission::Claim;
use crate::config::EngineConfig;
use crate::kv::event::{KvEventLog, StoredBlocks};
use crate::kv::groups::{GroupHit, KvGroups};
use crate::kv::pool::{BlockId, KvPool};
use crate::plan::StepPlan;
use crate::request::{Flags, Request, RequestId};

#[derive(Debug)]
pub(super) struct KvCacheManager {
    pool: KvPool,
    /// Blocks by group of layers, unless there is only one group of full attention. Also holds
    /// the block tables of requests and other rarely used fields.
    groups: Option<Box<KvGroups>>,
    /// Whether blocks have hashes: for prefix caching, or to find KV in tiers and connectors.
    hashes_blocks: bool,
    /// Free blocks that admitted requests may still need; 0 unless admissions guarantee the whole output.
    reserved_blocks: u32,
    /// The blocks of the latest prefix hit, without groups.
    hit: Vec<BlockId>,
    /// The latest prefix hit over groups. Its blocks are in `groups`.
    group_hit: GroupHit,
    /// Whether a lookup counts the hits of states and of full attention separately.
    looks_up_apart: bool,
    /// Blocks to free when a step ends, with the step's number, oldest first.
    deferred_frees: VecDeque<(u64, Vec<BlockId>)>,
}

impl KvCacheManager {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            pool: match config.enable_prefix_caching() {
                false if config.rules().queues_uncached_blocks() => KvPool::uncached_queue(config.num_gpu_blocks()),
                caching => KvPool::new(config.num_gpu_blocks(), caching),
            },
            groups: KvGroups::of(config),
            hashes_blocks: config.enable_prefix_caching() || config.has_offloading(),
            reserved_blocks: 0,
            hit: Vec::new(),
            group_hit: GroupHit::default(),
            looks_up_apart: config.keeps_states() && config.kv_connector().is_some_and(|connector| connector.is_nixl),
            deferred_frees: VecDeque::new(),
        }
    }

    #[inline]
    pub(super) fn pool(&self) -> &KvPool {
        &self.pool
    }

    #[inline]
    pub(super) fn pool_mut(&mut self) -> &mut KvPool {
        &mut self.pool
    }

    #[inline]
    pub(super) fn groups(&self) -> Option<&KvGroups> {
        self.groups.as_deref()
    }

    #[inline]
    pub(super) fn has_groups(&self) -> bool {
        self.groups.is_some()
    }

    #[inline]
    pub(super) fn caching(&self) -> bool {
        self.pool.caching()
    }

    #[inline]
    pub(super) fn hashes_blocks(&self) -> bool {
        self.hashes_blocks
    }

    /// Prepares the groups for deciding a step. Returns the number of groups, or 0 without groups.
    #[inline]
    pub(super) fn begin_step(&mut self) -> u32 {
        self.groups.as_mut().map_or(0, |groups| {
            groups.begin_step();
            groups.len() as u32
        })
    }

    /// Clears the prefix cache. Does nothing and returns false while blocks are in use.
    pub(super) fn reset_cache(&mut self) -> bool {
        let is_reset = self.pool.reset_cache();
        if let Some(groups) = self.groups.as_mut().filter(|_| is_reset) {
            groups.forget_cache();
        }
        is_reset
    }

    /// Allocates blocks for `num_tokens` tokens of a request and adds them to the plan. Returns
    /// false if too few blocks are free.
    pub(super) fn give_blocks(
        &mut self,
        id: RequestId,
        num_tokens: u32,
        request: &mut Request,
        config: &EngineConfig,
        plan: &mut StepPlan,
    ) -> bool {
        if self.groups.is_some() {
            return self.grow_groups(id, num_tokens, config.drafting().lookahead_tokens, request, Some(plan));
        }
        let have = request.block_table.len() as u32;
        let missing = blocks_for(config, num_tokens).saturating_sub(have);
        if missing > self.pool.num_free() {
            return false;
        }
        self.grow_table(request, missing, config.block_size());
        plan.block_ids.extend_from_slice(&request.block_table[have as usize..]);
        true
    }

    /// Allocates `count` more blocks for a request. The caller guarantees that they are free.
    pub(super) fn grow_table(&mut self, request: &mut Request, count: u32, block_size_tokens: u32) {
        self.pool.allocate(count, &mut request.block_table);
        if request.flags.has(Flags::RESERVES) {
            self.reserved_blocks -= count;
        }
        request.capacity_tokens = (request.block_table.len() as u32).saturating_mul(block_size_tokens);
    }

    /// Offers the blocks that are full after `num_tokens` tokens to the cache, as far as their tokens are known.
    #[cold]
    pub(super) fn store_blocks(
        &mut self,
        id: RequestId,
        num_tokens: u32,
        request: &mut Request,
        config: &EngineConfig,
    ) {
        if self.groups.is_some() {
            return self.store_group_blocks(id, num_tokens, request);
        }
        let block_size = config.block_size();
        // A drafter may rewrite the KV of the last tokens, or a block's hash may not be known yet.
        let settled = num_tokens.min(request.num_tokens).saturating_sub(config.drafting().unsettled_tokens());
        let from = (request.next_store_tokens / block_size - 1) as usize;
        let to = ((settled / block_size) as usize).min(request.block_hashes.len());
        if to <= from {
            return;
        }
        request.next_store_tokens = (to as u32 + 1).saturating_mul(block_size);
        let parent = from.checked_sub(1).map(|before| request.block_hashes[before]);
        let known: &[u32] = if request.flags.has(Flags::KEEPS_TOKENS) { &request.tokens } else { &[] };
        let (blocks, hashes) = (&request.block_table[from..to], &request.block_hashes[from..to]);
        let (start, end, tag) = (from as u32 * block_size, to as u32 * block_size, request.tag);
        if self.pool.events().is_some_and(KvEventLog::has_places) {
            let is_stored = self.pool.register(blocks, hashes);
            if let Some(events) = self.pool.events_mut().filter(|_| is_stored) {
                let blocks = hashes.iter().copied().zip((1..).map(|count| start + count * block_size));
                let (group, block_tokens) = (0, block_size);
                let stored = StoredBlocks { group, tag, parent, start, end, block_tokens, blocks, known };
                events.stored_of_group(stored);
            }
            return;
        }
        self.pool.store(tag, parent, blocks, hashes, known.get(start as usize..end as usize).unwrap_or(&[]));
    }

    /// Frees all blocks of a request, either now or when the step `after_step` ends.
    pub(super) fn release(&mut self, id: RequestId, request: &Request, after_step: Option<u64>) {
        let Some(step) = after_step else {
            return match &mut self.groups {
                Some(groups) => groups.release(&mut self.pool, id),
                None => self.pool.release(&request.block_table),
            };
        };
        let blocks = match &mut self.groups {
            Some(groups) => groups.take_blocks(id),
            None => request.block_table.clone(),
        };
        if !blocks.is_empty() {
            self.deferred_frees.push_back((step, blocks));
        }
    }

    /// Frees the blocks that wait for the end of `step` or an earlier step.
    #[inline]
    pub(super) fn free_deferred(&mut self, step: u64) {
        while let Some((_, blocks)) = self.deferred_frees.pop_front_if(|(fence, _)| *fence <= step) {
            self.pool.release(&blocks);
        }
    }

    /// Takes back the blocks of a request whose load brought nothing.
    pub(super) fn take_unfilled(&mut self, id: RequestId, request: &mut Request, block_size_tokens: u32) {
        self.release(id, request, None);
        self.forget_table(request, block_size_tokens);
    }

    /// The blocks of a request in token order; with groups of layers, those of the first group.
    pub(super) fn first_table<'a>(&'a self, id: RequestId, request: &'a Request) -> &'a [BlockId] {
        match &self.groups {
            Some(groups) => groups.blocks_of(id).next().unwrap_or_default(),
            None => &request.block_table,
        }
    }

    /// Clears the block table of a request whose blocks have been released.
    pub(super) fn forget_table(&self, request: &mut Request, block_size_tokens: u32) {
        request.block_table.clear();
        request.capacity_tokens = 0;
        if self.pool.caching() {
            request.next_store_tokens = block_size_tokens;
        }
    }

    pub(super) fn evict(&mut self, mut blocks: Vec<BlockId>) {
        blocks.sort_unstable();
        blocks.dedup();
        for block in blocks {
            let Some(hash) = self.pool.key_of(block) else { continue };
            if let Some(groups) = &mut self.groups {
                groups.forget_block(&mut self.pool, block);
                continue;
            }
            self.pool.forget(block);
            if let Some(events) = self.pool.events_mut() {
                events.removed(hash);
            }
        }
    }
}

/// Number of blocks for `num_tokens` tokens plus the slots of a burst.
fn blocks_for(config: &EngineConfig, num_tokens: u32) -> u32 {
    let slots = num_tokens.saturating_add(config.quirks().burst_tokens()).min(config.max_model_len());
    slots.div_ceil(config.block_size())
}
