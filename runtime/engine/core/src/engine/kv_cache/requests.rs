//! The blocks of an engine's requests.

use crate::engine::Engine;
use crate::kv::groups::KvGroups;
use crate::kv::hash::BlockHash;
use crate::kv::pool::{BlockId, KvPool};
use crate::plan::StepPlan;
use crate::request::{Flags, RequestId};

impl Engine {
    /// The KV pool.
    #[must_use]
    #[inline]
    pub fn pool(&self) -> &KvPool {
        self.kv_cache.pool()
    }

    /// The KV pool, mutable so that the driver can record its events.
    pub fn pool_mut(&mut self) -> &mut KvPool {
        self.kv_cache.pool_mut()
    }

    /// The blocks of a request that runs or whose KV is held, in token order. Empty if there are
    /// groups of layers.
    #[must_use]
    pub fn block_table(&self, id: RequestId) -> &[BlockId] {
        &self.requests[id].block_table
    }

    /// The blocks of a request that runs or whose KV is held, by group of layers and in token order.
    /// The null block 0 stands where a group needs no block. Empty without groups.
    pub fn group_block_tables(&self, id: RequestId) -> impl Iterator<Item = &[BlockId]> {
        self.kv_cache.groups().into_iter().flat_map(move |groups| groups.blocks_of(id))
    }

    /// Length in blocks of the longest cached prefix of a sequence with the block hashes `hashes`.
    #[must_use]
    pub fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32 {
        match self.kv_cache.groups() {
            Some(groups) if self.kv_cache.caching() => {
                let most_tokens = (hashes.len() as u32).saturating_mul(self.config.block_size());
                groups.cached_tokens(self.kv_cache.pool(), hashes, most_tokens) / self.config.block_size()
            }
            _ => self.kv_cache.pool().cached_prefix_blocks(hashes),
        }
    }

    /// Drops the whole prefix cache (vLLM's `reset_prefix_cache`). With `preempt_running`, all
    /// running requests are preempted first and later recomputed, and their outputs of steps in flight
    /// are dropped.
    ///
    /// Returns false, and leaves the cache unchanged, while blocks are in use.
    pub fn reset_prefix_cache(&mut self, preempt_running: bool) -> bool {
        if preempt_running {
            self.dissolve_steady_decode();
            while let Some(id) = self.running.pop() {
                self.preempt(id);
                self.requests[id].flags.set(Flags::DROPS_STALE, true);
            }
        }
        self.kv_cache.reset_cache()
    }

    #[inline]
    pub(in crate::engine) fn store_full_blocks(&mut self, id: RequestId, num_tokens: u32) {
        let request = &mut self.requests[id];
        if num_tokens.min(request.num_tokens) >= request.next_store_tokens {
            self.kv_cache.store_blocks(id, num_tokens, request, &self.config);
        }
    }

    #[inline]
    pub(in crate::engine) fn give_blocks(&mut self, id: RequestId, num_tokens: u32, plan: &mut StepPlan) -> bool {
        self.kv_cache.give_blocks(id, num_tokens, &mut self.requests[id], &self.config, plan)
    }

    #[inline]
    pub(in crate::engine) fn grow_table(&mut self, id: RequestId, count: u32) {
        self.kv_cache.grow_table(&mut self.requests[id], count, self.config.block_size());
    }

    pub(in crate::engine) fn aligned_chunk(&self, id: RequestId, computed: u32, tokens: u32, is_running: bool) -> u32 {
        // Under request times, a prompt is computed at once, whatever its chunks are.
        if self.has_request_times() || !self.kv_cache.groups().is_some_and(KvGroups::aligns_chunks) {
            return tokens;
        }
        let chunk_cap = self.chunk_cap(id);
        let threshold = self.config.long_prefill_token_threshold();
        let most_tokens = if threshold > 0 { threshold } else { u32::MAX };
        let most_tokens = most_tokens.min(self.config.step_tokens()).min(chunk_cap);
        self.kv_cache.aligned_chunk(id, &self.requests[id], computed, tokens.min(chunk_cap), most_tokens, is_running)
    }

    pub(in crate::engine) fn end_reservation(&mut self, id: RequestId) {
        self.kv_cache.end_reservation(&mut self.requests[id], &self.config);
    }

    /// Frees all blocks of a request, now or after the steps in flight.
    pub(in crate::engine) fn release_blocks(&mut self, id: RequestId) {
        let after_step = (!self.may_free_after(id, 0)).then_some(self.stats.steps);
        self.kv_cache.release(id, &self.requests[id], after_step);
        self.queues.set_destination_blocked(false);
    }

    /// Whether a request's blocks may be reused now, once `taken_back_tokens` of its tokens in flight are discarded.
    pub(in crate::engine) fn may_free_after(&self, id: RequestId, taken_back_tokens: u32) -> bool {
        !self.config.defers_frees() || self.requests[id].num_in_flight_tokens == taken_back_tokens
    }
}
