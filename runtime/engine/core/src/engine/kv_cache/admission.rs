//! Blocks of admitted requests: the cached prefix, and the new blocks.

use super::{KvCacheManager, blocks_for};
use crate::config::EngineConfig;
use crate::plan::StepPlan;
use crate::request::{Flags, Request, RequestId};

/// Spare entries of a block table at admission, in addition to the request's known blocks, so that
/// the table is rarely reallocated during decoding.
const MAX_SPARE_TABLE_BLOCKS: u32 = 256;

/// The blocks that an admission needs.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Claim {
    /// Tokens before the chunk. Those beyond the latest prefix hit are loaded from elsewhere.
    pub(in crate::engine) computed_tokens: u32,
    pub(in crate::engine) slots_tokens: u32,
    /// The part of `slots_tokens` for the drafter.
    pub(in crate::engine) lookahead_tokens: u32,
    /// Encoder outputs that cross-attention layers keep.
    pub(in crate::engine) encoder_tokens: u32,
    pub(in crate::engine) full_tokens: u32,
    /// Blocks that must stay free for other requests.
    pub(in crate::engine) reserved_blocks: u32,
    /// Blocks that must stay free in addition.
    pub(in crate::engine) watermark_blocks: u32,
}

impl KvCacheManager {
    /// Forgets the latest prefix hit, except a hit over groups.
    #[inline]
    pub(in crate::engine) fn clear_hit(&mut self) {
        self.hit.clear();
    }

    /// Number of blocks in the latest prefix hit, except a hit over groups.
    #[inline]
    pub(in crate::engine) fn num_hit_blocks(&self) -> usize {
        self.hit.len()
    }

    /// Finds the cached blocks that a request can reuse. Returns their number of tokens, which leaves at least one
    /// token to compute.
    pub(in crate::engine) fn lookup_prefix(&mut self, request: &mut Request, config: &EngineConfig) -> u32 {
        if self.groups.is_some() {
            return self.lookup_groups(request, config.block_size());
        }
        if !self.pool.caching() {
            return 0;
        }
        request.ensure_hashed(config.block_size());
        if request.flags.has(Flags::SKIPS_LOOKUP) {
            return 0;
        }
        let most_tokens = request.num_tokens - u32::from(!config.quirks().caches_whole_prompts());
        let most = (most_tokens / config.block_size()) as usize;
        let usable = most.min(request.block_hashes.len());
        self.pool.lookup(&request.block_hashes[..usable], &mut self.hit);
        if config.quirks().recomputes_last_cached_block() || config.drafting().drops_block {
            self.hit.pop();
        }
        (self.hit.len() as u32 * config.block_size()).min(request.num_tokens - 1)
    }

    /// All tokens of a request whose whole prompt is cached on the device. The last block after the first
    /// `computed` tokens is recomputed, so other tiers need no lookup.
    pub(in crate::engine) fn whole_tokens(
        &self,
        request: &Request,
        computed: u32,
        config: &EngineConfig,
    ) -> Option<u32> {
        let is_whole = config.host_rules().looks_nothing_up_for_whole_prompts()
            && computed + config.block_size() == request.num_tokens
            && request.num_tokens == request.prompt_tokens
            && request.block_hashes.last().is_some_and(|&hash| self.pool.find(hash).is_some());
        is_whole.then_some(request.num_tokens)
    }

    /// Allocates the blocks of the prefix hit and new blocks for a request, or none if too few are free.
    pub(in crate::engine) fn allocate(
        &mut self,
        id: RequestId,
        claim: Claim,
        request: &mut Request,
        config: &EngineConfig,
        plan: Option<&mut StepPlan>,
    ) -> bool {
        if self.groups.is_some() {
            return self.allocate_in_groups(id, claim, request, config, plan);
        }
        let Claim { slots_tokens, full_tokens, reserved_blocks, watermark_blocks, .. } = claim;
        let held = request.block_table.len() as u32;
        let reused = self.hit.len() as u32;
        // A hit on a free block also takes a block from the free list.
        let revived = self.pool.count_free_among(&self.hit);
        let cost = |tokens: u32| blocks_for(config, tokens).saturating_sub(held + reused) + revived;
        let needed = cost(slots_tokens);
        let must_fit = if config.scheduler_reserve_full_isl() { cost(full_tokens) } else { needed };
        let reserves_beside_all = config.host_rules().reserves_beside_whole_prompts();
        let with_reserved = reserved_blocks + if reserves_beside_all { must_fit } else { needed };
        let fits = if config.quirks().reserves_whole_output() {
            // A request that already holds a reservation was admitted to the pool before.
            request.flags.has(Flags::RESERVES)
                || cost(request.end_tokens) + watermark_blocks + self.reserved_blocks <= self.pool.num_free()
        } else {
            must_fit.max(with_reserved) + watermark_blocks <= self.pool.num_free()
        };
        if !fits {
            return false;
        }
        self.pool.touch(&self.hit);
        let longest = blocks_for(config, request.end_tokens).min(self.pool.num_usable());
        // All known tokens are computed unless the request is preempted.
        let known = blocks_for(config, full_tokens).max(held + reused + needed);
        if reused > 0 {
            request.next_store_tokens = (reused + 1).saturating_mul(config.block_size());
        }
        request.reserve(longest.min(known + MAX_SPARE_TABLE_BLOCKS), config.block_size());
        request.block_table.extend_from_slice(&self.hit);
        self.reserve(request, config);
        self.grow_table(request, needed - revived, config.block_size());
        true
    }

    /// Reserves the blocks that a request may still need, if admissions guarantee the whole output.
    fn reserve(&mut self, request: &mut Request, config: &EngineConfig) {
        if config.quirks().reserves_whole_output() && !request.flags.has(Flags::RESERVES) {
            request.flags.set(Flags::RESERVES, true);
            self.reserved_blocks += unused_reservation(request, config);
        }
    }

    /// Releases the blocks that a request has reserved and not used.
    pub(in crate::engine) fn end_reservation(&mut self, request: &mut Request, config: &EngineConfig) {
        if request.flags.has(Flags::RESERVES) {
            self.reserved_blocks -= unused_reservation(request, config);
            request.flags.set(Flags::RESERVES, false);
        }
    }
}

fn unused_reservation(request: &Request, config: &EngineConfig) -> u32 {
    blocks_for(config, request.end_tokens) - request.block_table.len() as u32
}
