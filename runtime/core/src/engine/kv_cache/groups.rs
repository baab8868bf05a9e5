//! Blocks of requests where layers are in groups.
//!
//! The scheduler asks for blocks as it does without groups. A request's `capacity_tokens` and
//! `next_store_tokens` say when anything about its blocks changes in any group, so that a step looks
//! at no group of a request whose blocks stay as they are.

use super::{Claim, KvCacheManager};
use crate::config::EngineConfig;
use crate::kv::groups::{Chunk, ChunkLimits, GroupHit, Offered};
use crate::plan::StepPlan;
use crate::request::{Flags, KvRole, Request, RequestId, RequestStatus};

impl KvCacheManager {
    /// Finds the cached blocks that a request can reuse and gives the tokens they hold. At least one token
    /// is always left to compute.
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
        self.group_hit = groups.lookup(&self.pool, &request.block_hashes, request.num_tokens - 1);
        self.group_hit.tokens
    }

    /// Takes the hit of the latest lookup and new blocks for an admission, or nothing. A request whose KV has come from
    /// elsewhere keeps its blocks, and one whose KV will come needs none before the windows of its first own token.
    pub(super) fn allocate_in_groups(
        &mut self,
        id: RequestId,
        claim: Claim,
        request: &mut Request,
        config: &EngineConfig,
    ) -> bool {
        let Claim { slots_tokens, full_tokens, reserved_blocks, watermark_blocks } = claim;
        let hit = self.group_hit;
        let has_arrived = request.status == RequestStatus::RemoteKvReady;
        let is_remote = request.status == RequestStatus::Waiting && request.kv_role == KvRole::Destination;
        let computed = if is_remote { request.prompt_tokens } else { hit.tokens };
        if hit.is_too_new {
            return false;
        }
        let prefill_end = prefill_end(request);
        let Some(groups) = &mut self.groups else { return false };
        // The slots of the drafter come with the first step.
        let lookahead_tokens = if is_remote { 0 } else { config.drafting().lookahead_tokens };
        let chunk_to = |tokens: u32, slots: u32| Chunk { computed, tokens, slots, prefill_end };
        let chunk = chunk_to(slots_tokens.saturating_sub(lookahead_tokens), slots_tokens);
        let cost = |chunk: Chunk, is_capped: bool| match has_arrived {
            true => groups.missing_blocks(id, chunk),
            false => groups.admission_cost(&self.pool, chunk, is_capped),
        };
        let mut needed = cost(chunk, false) + reserved_blocks;
        if config.scheduler_reserve_full_isl {
            needed = needed.max(cost(chunk_to(full_tokens, full_tokens), true));
        }
        if needed + watermark_blocks > self.pool.num_free() {
            return false;
        }
        if has_arrived {
            return self.grow_groups(id, slots_tokens, request, config, None);
        }
        groups.admit(&mut self.pool, id, hit, chunk);
        request.capacity_tokens = groups.capacity_tokens(id);
        if self.pool.caching() {
            // Whatever the hit leaves to offer is offered with the first chunk.
            request.next_store_tokens = 1;
        }
        true
    }

    /// Enters all blocks of a request into the plan.
    pub(in crate::engine) fn list_group_blocks(&self, id: RequestId, plan: &mut StepPlan) {
        let Some(groups) = &self.groups else { return };
        for (group, blocks) in groups.blocks_of(id).enumerate() {
            plan.give_blocks(group, blocks);
        }
    }

    /// Frees what has left the windows of a running request, and gives it blocks for `num_tokens`
    /// tokens, which are entered into `plan`. False if they are not free.
    pub(in crate::engine) fn grow_groups(
        &mut self,
        id: RequestId,
        num_tokens: u32,
        request: &mut Request,
        config: &EngineConfig,
        mut plan: Option<&mut StepPlan>,
    ) -> bool {
        let Some(groups) = &mut self.groups else { return false };
        // Steps in flight still read what the tokens they compute need.
        let processed = request.num_computed_tokens.saturating_sub(request.num_in_flight_tokens);
        groups.skip(&mut self.pool, id, processed, |group, blocks| {
            if let Some(plan) = &mut plan {
                plan.note_window_free(request.tag, group, blocks);
            }
        });
        let chunk = Chunk {
            computed: request.num_computed_tokens,
            tokens: num_tokens.saturating_sub(config.drafting().lookahead_tokens),
            slots: num_tokens,
            prefill_end: prefill_end(request),
        };
        let missing = groups.missing_blocks(id, chunk);
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

    /// How many of `tokens` tokens, after `computed` ones, a chunk of up to `most_tokens` has: it ends where states are
    /// kept (vLLM's `_mamba_block_aligned_split`). 0 where it has to wait for a step with more room.
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
            prefill_end: prefill_end(request),
            most_tokens,
            shared_prefix_tokens: match is_running {
                true => groups.shared_prefix_tokens(id),
                false => self.group_hit.shared_prefix_tokens,
            },
        };
        groups.chunk_end(computed, computed + tokens, &limits) - computed
    }

    /// Frees what has left the windows of a request that has ended and whose KV is held.
    pub(in crate::engine) fn trim_held_groups(&mut self, id: RequestId, request: &Request) {
        let Some(groups) = &mut self.groups else { return };
        let processed = request.num_computed_tokens.saturating_sub(request.num_in_flight_tokens);
        groups.skip(&mut self.pool, id, processed, |_, _| ());
    }

    /// Offers the blocks of all groups that are full after `num_tokens` tokens to the cache.
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

/// Where the prefill of a request ends: one that has output computes that again after a preemption, but for the last
/// token.
fn prefill_end(request: &Request) -> u32 {
    request.prompt_tokens.max(request.num_tokens - 1)
}
