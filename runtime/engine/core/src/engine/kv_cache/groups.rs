//! Blocks of requests with several groups of layers.
//!
//! The scheduler asks for blocks in the same way as without groups. A request's `capacity_tokens` and
//! `next_store_tokens` cover all groups, so a step does no work per group for a request whose blocks do not
//! change.

use super::{Claim, KvCacheManager};
use crate::config::EngineConfig;
use crate::kv::groups::{Chunk, ChunkLimits, GroupHit, KvGroups, Offered};
use crate::kv::pool::KvPool;
use crate::plan::StepPlan;
use crate::request::{Flags, Request, RequestId};

impl KvCacheManager {
    /// Finds the cached blocks that a request can reuse. Returns their number of tokens, which leaves at least one
    /// token to compute.
    pub(super) fn lookup_groups(&mut self, request: &mut Request, block_size_tokens: u32) -> u32 {
        self.group_hit = GroupHit::default();
        let Some(groups) = &mut self.groups else { return 0 };
        groups.clear_hit();
        if !self.pool.caching() {
            return 0;
        }
        request.ensure_hashed(block_size_tokens);
        if request.flags.has(Flags::SKIPS_LOOKUP) {
            return 0;
        }
        let most_tokens = request.num_tokens - 1;
        let apart = if self.looks_up_apart {
            groups.lookup_apart(&self.pool, &request.block_hashes, most_tokens)
        } else {
            None
        };
        self.group_hit = match apart {
            Some(hit) => hit,
            None => groups.lookup(&self.pool, &request.block_hashes, most_tokens),
        };
        self.group_hit.tokens
    }

    /// Reduces the latest hit of `tokens` tokens to the prefix that all groups have, once it is known that nothing is
    /// loaded.
    pub(in crate::engine) fn agreed_prefix(&mut self, request: &Request, tokens: u32) -> u32 {
        let Some(groups) = self.groups.as_mut().filter(|_| self.group_hit.has_diverged) else { return tokens };
        groups.clear_hit();
        self.group_hit = groups.lookup(&self.pool, &request.block_hashes, request.num_tokens - 1);
        self.group_hit.tokens
    }

    /// Allocates the blocks of the latest hit and new blocks for an admission, or none. A request
    /// whose KV has arrived from elsewhere keeps its blocks. If its KV is still to come, windows before its first
    /// own token get no blocks.
    pub(super) fn allocate_in_groups(
        &mut self,
        id: RequestId,
        claim: Claim,
        request: &mut Request,
        config: &EngineConfig,
        plan: Option<&mut StepPlan>,
    ) -> bool {
        let Claim { computed_tokens, slots_tokens, lookahead_tokens, encoder_tokens, full_tokens, .. } = claim;
        let Claim { reserved_blocks, watermark_blocks, .. } = claim;
        let hit = self.group_hit;
        let prefill_end = request.prefill_end();
        let Some(groups) = &mut self.groups else { return false };
        let has_arrived = groups.holds_blocks(id);
        if hit.is_too_new && !has_arrived {
            return false;
        }
        let computed = computed_tokens;
        let chunk_to = |tokens: u32, slots: u32| Chunk { computed, tokens, slots, encoder_tokens, prefill_end };
        let chunk = chunk_to(slots_tokens.saturating_sub(lookahead_tokens), slots_tokens);
        let cost = |groups: &KvGroups, pool: &KvPool, chunk: Chunk, is_capped: bool| match has_arrived {
            true => groups.missing_blocks(id, chunk, is_capped),
            false => groups.admission_cost(pool, chunk, is_capped),
        };
        if config.scheduler_reserve_full_isl() {
            let whole = cost(groups, &self.pool, chunk_to(full_tokens, full_tokens), true);
            if whole + watermark_blocks > self.pool.num_free() {
                return false;
            }
        }
        if has_arrived {
            // By now it is known which blocks the steps in flight still read.
            skip_windows(groups, &mut self.pool, id, request, plan);
        }
        let needed = cost(groups, &self.pool, chunk, false) + reserved_blocks;
        if needed + watermark_blocks > self.pool.num_free() {
            return false;
        }
        if has_arrived {
            return self.grow_groups(id, slots_tokens, lookahead_tokens, request, None);
        }
        // A chunk after loaded tokens also needs a block for the state at their end. vLLM does not count this block,
        // and fails if it is not free.
        let is_loaded = computed > hit.tokens;
        if is_loaded && needed + groups.loaded_states(chunk) > self.pool.num_free() + reserved_blocks {
            return false;
        }
        groups.admit(&mut self.pool, id, hit, chunk);
        request.capacity_tokens = groups.capacity_tokens(id);
        if self.pool.caching() {
            // Blocks that are not part of the hit are offered with the first chunk.
            request.next_store_tokens = 1;
        }
        true
    }

    pub(in crate::engine) fn list_group_blocks(&self, id: RequestId, plan: &mut StepPlan) {
        let Some(groups) = &self.groups else { return };
        for (group, blocks) in groups.blocks_of(id).enumerate() {
            plan.give_blocks(group, blocks);
        }
    }

    /// Frees the blocks that have left the windows of a running request. Then allocates blocks for
    /// `num_tokens` tokens and adds them to `plan`. Returns false if too few blocks are free.
    pub(in crate::engine) fn grow_groups(
        &mut self,
        id: RequestId,
        num_tokens: u32,
        lookahead_tokens: u32,
        request: &mut Request,
        mut plan: Option<&mut StepPlan>,
    ) -> bool {
        let Some(groups) = &mut self.groups else { return false };
        skip_windows(groups, &mut self.pool, id, request, plan.as_deref_mut());
        let chunk = Chunk {
            computed: request.num_computed_tokens,
            tokens: num_tokens.saturating_sub(lookahead_tokens),
            slots: num_tokens,
            encoder_tokens: 0,
            prefill_end: request.prefill_end(),
        };
        let missing = groups.missing_blocks(id, chunk, false);
        if missing > self.pool.num_free() {
            return false;
        }
        if missing > 0 || groups.aligns_chunks() {
            let before: Vec<usize> = groups.blocks_of(id).map(<[_]>::len).collect();
            groups.grow(&mut self.pool, id, chunk);
            if let Some(plan) = plan {
                for (group, (blocks, before)) in groups.blocks_of(id).zip(before).enumerate() {
                    plan.give_blocks(group, &blocks[before..]);
                }
            }
        }
        request.capacity_tokens = groups.capacity_tokens(id);
        true
    }

    /// Shortens a chunk of `tokens` tokens, which follows `computed` tokens and may have up to `most_tokens`, so that
    /// it ends where states are kept (vLLM's `_mamba_block_aligned_split`). Returns 0 if the request must wait for a
    /// step with more room.
    pub(super) fn aligned_chunk(
        &self,
        id: RequestId,
        request: &Request,
        computed: u32,
        tokens: u32,
        most_tokens: u32,
        is_running: bool,
    ) -> u32 {
        let Some(groups) = &self.groups else { return tokens };
        let limits = ChunkLimits {
            known_tokens: request.num_tokens,
            prefill_end: request.prefill_end(),
            most_tokens,
            shared_prefix_tokens: match is_running {
                true => groups.shared_prefix_tokens(id),
                false => self.group_hit.shared_prefix_tokens,
            },
        };
        groups.chunk_end(computed, computed + tokens, &limits) - computed
    }

    /// Frees the blocks that have left the windows of an ended request. Its remaining KV may be held.
    pub(in crate::engine) fn trim_ended_groups(&mut self, id: RequestId, request: &Request) {
        let Some(groups) = self.groups.as_mut().filter(|groups| groups.holds_blocks(id)) else { return };
        skip_windows(groups, &mut self.pool, id, request, None);
    }

    pub(super) fn store_group_blocks(&mut self, id: RequestId, num_tokens: u32, request: &mut Request) {
        let Some(groups) = &mut self.groups else { return };
        let offered = Offered {
            id,
            tag: request.tag,
            prompt_tokens: request.prompt_tokens,
            hashes: &request.block_hashes,
            tokens: if request.flags.has(Flags::KEEPS_TOKENS) { &request.tokens } else { &[] },
        };
        let next = groups.store(&mut self.pool, &offered, num_tokens.min(request.num_tokens));
        request.next_store_tokens = next;
    }
}

/// Frees the blocks that have left the windows of a request. It keeps the blocks that the tokens of steps in flight
/// still read.
fn skip_windows(
    groups: &mut KvGroups,
    pool: &mut KvPool,
    id: RequestId,
    request: &Request,
    mut plan: Option<&mut StepPlan>,
) {
    let processed = request.num_computed_tokens.saturating_sub(request.num_in_flight_tokens);
    groups.skip(pool, id, processed, |group, blocks| {
        if let Some(plan) = &mut plan {
            plan.note_window_free(request.tag, group, blocks);
        }
    });
}
