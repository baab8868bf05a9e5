//! Blocks that hold states of Mamba and linear attention, with prefix caching. Source: vLLM's `MambaManager` in
//! cache mode `align`, and `_mamba_block_aligned_split`.
//!
//! A state covers all tokens up to the end of a chunk. It is kept if a block of other layers ends there. Its index in
//! the table is that block's index; other entries are null blocks. The blocks for states after drafts
//! follow the latest state and move with it.

use super::{Group, NULL_BLOCK, Table};
use crate::config::SchedulerRules;
use crate::kv::pool::BlockId;

/// A chunk that needs blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// Number of tokens before the chunk.
    pub(crate) computed: u32,
    /// Number of tokens up to the end of the chunk.
    pub(crate) tokens: u32,
    /// `tokens` plus the drafter's slots. A drafter has no states.
    pub(crate) slots: u32,
    /// Encoder outputs that cross-attention layers keep from now on.
    pub(crate) encoder_tokens: u32,
    /// The end of the request's prefill. If the request has an output, this is before the last known token.
    pub(crate) prefill_end: u32,
}

/// Limits on the end of a chunk, in addition to its maximum number of tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkLimits {
    pub(crate) known_tokens: u32,
    pub(crate) prefill_end: u32,
    /// Maximum number of tokens that any step lets a request compute.
    pub(crate) most_tokens: u32,
    pub(crate) shared_prefix_tokens: u32,
}

/// Rules of a group that keeps states at the ends of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct States {
    /// See [`KvCacheKind::Mamba`](super::KvCacheKind).
    pub(super) checkpoint_tokens: Option<u32>,
    pub(super) drops_block: bool,
    pub(super) hash_lookahead_tokens: u32,
    pub(super) rules: SchedulerRules,
}

impl Group {
    /// Whether this group keeps states at the ends of steps.
    pub(super) fn aligns_states(&self) -> bool {
        self.states.is_some()
    }

    fn rules(&self) -> SchedulerRules {
        self.states.unwrap_or_default().rules
    }

    /// Index of the state at the last boundary before the block in which a chunk ends.
    fn checkpoint_place(&self, end: u32) -> Option<u32> {
        end.div_ceil(self.block_size).checked_sub(2)
    }

    /// Whether a chunk can leave a state at the boundary `position`, in addition to the state at its end.
    fn can_checkpoint(&self, start: u32, end: u32, position: u32) -> bool {
        let Some(checkpoint_tokens) = self.states.and_then(|states| states.checkpoint_tokens) else { return false };
        let size = self.block_size;
        if self.rules().leaves_any_checkpoint() {
            return start.is_multiple_of(size);
        }
        // The boundary needs an index of its own between the state before the chunk and the state after it.
        let place_before = start.checked_sub(1).map(|last| last / size);
        start.is_multiple_of(size)
            && self.checkpoint_place(end).is_some_and(|place| Some(place) > place_before)
            && start.saturating_add(size) <= position
            && position < end
            && (position - start).is_multiple_of(checkpoint_tokens)
    }

    /// The latest boundary within `tokens` tokens from which a later request can resume. That request must have a
    /// token left to compute, or drop a block of full attention (vLLM's
    /// `get_mamba_prefill_checkpoint_position`).
    pub(super) fn last_boundary(&self, tokens: u32) -> u32 {
        let (size, states) = (self.block_size, self.states.unwrap_or_default());
        if states.drops_block {
            let tokens = if states.rules.drops_from_whole_prompts() { tokens } else { tokens.saturating_sub(1) };
            return (tokens / size * size).saturating_sub(size);
        }
        tokens.saturating_sub(states.hash_lookahead_tokens.max(1)) / size * size
    }

    /// The boundary at which a chunk must end if the request has `tokens` known tokens.
    fn last_stop(&self, tokens: u32) -> u32 {
        let (size, states) = (self.block_size, self.states.unwrap_or_default());
        if !states.rules.stops_at_known_end() {
            return self.last_boundary(tokens);
        }
        (tokens / size * size).saturating_sub(if states.drops_block { size } else { 0 })
    }

    /// Index of the state that this chunk leaves inside it, if that needs a block that the request does not have yet.
    fn checkpoint(&self, table: &Table, chunk: Chunk, is_sparse: bool, is_new: bool) -> Option<u32> {
        let Chunk { computed, tokens, prefill_end, .. } = chunk;
        let rules = self.rules();
        if is_sparse && tokens < prefill_end && !rules.checkpoints_sparse_chunks()
            || rules.leaves_any_checkpoint() && tokens.is_multiple_of(self.block_size)
            || !self.can_checkpoint(computed, tokens, self.last_boundary(tokens))
        {
            return None;
        }
        let place = self.checkpoint_place(tokens)?;
        let ends = table.blocks.len().saturating_sub(self.draft_blocks as usize);
        let is_for_drafts = !is_new && place as usize >= ends && !rules.leaves_any_checkpoint();
        let is_free = table.blocks.get(place as usize).is_none_or(|&block| block == NULL_BLOCK);
        (is_free || is_for_drafts).then_some(place)
    }

    /// Number of blocks that a chunk needs, given a hit of `num_hit` blocks that are not in the table yet.
    pub(super) fn missing_states(
        &self,
        table: &Table,
        num_hit: u32,
        chunk: Chunk,
        is_sparse: bool,
        is_new: bool,
    ) -> u32 {
        let missing = self.blocks_for(chunk.tokens).saturating_sub(num_hit + table.blocks.len() as u32);
        let has_checkpoint = self.checkpoint(table, chunk, is_sparse, is_new).is_some();
        let rules = self.rules();
        let takes_drafts = is_new || has_checkpoint && rules.keeps_drafts_at_checkpoints();
        let most = 1 + u32::from(has_checkpoint) + if takes_drafts { self.draft_blocks } else { 0 };
        if missing == 0 || has_checkpoint && !is_new && rules.counts_passed_boundaries() {
            missing
        } else if rules.assumes_most_states() {
            most
        } else {
            missing.min(most)
        }
    }

    /// Extends a table for a chunk: adds null blocks for the boundaries that the chunk passes, moves draft blocks
    /// to the end, and appends new blocks with `allocate`.
    pub(super) fn grow_states(
        &self,
        table: &mut Table,
        chunk: Chunk,
        is_sparse: bool,
        is_new: bool,
        allocate: impl FnOnce(u32, &mut Vec<BlockId>),
    ) {
        let rules = self.rules();
        table.checkpoint = self.checkpoint(table, chunk, is_sparse, is_new);
        let checkpoint = usize::from(table.checkpoint.is_some());
        let required = self.blocks_for(chunk.tokens) as usize;
        let before = table.blocks.len();
        if required <= before && (checkpoint == 0 || rules.leaves_any_checkpoint()) {
            return;
        }
        let latest = if is_new { before } else { before - self.draft_blocks as usize };
        table.state_before = latest.checked_sub(1).map(|place| place as u32);
        let passed = required - self.draft_blocks as usize - 1;
        let nulls_end = passed.saturating_sub(checkpoint);
        if before < passed {
            table.blocks.resize(nulls_end.max(before), NULL_BLOCK);
        }
        if !is_new {
            let moved_end = match checkpoint {
                1 if rules.keeps_drafts_at_checkpoints() => 0,
                1 if rules.moves_all_drafts() => passed,
                _ => nulls_end,
            };
            for place in before - self.draft_blocks as usize..before.min(moved_end) {
                let block = std::mem::replace(&mut table.blocks[place], NULL_BLOCK);
                table.blocks.push(block);
            }
        }
        allocate(required.saturating_sub(table.blocks.len()) as u32, &mut table.blocks);
    }

    /// The end of a chunk from `start` to at most token `end`: a position where a state must be kept, unless a
    /// state inside the chunk serves the same purpose.
    pub(super) fn aligned_end(&self, start: u32, end: u32, limits: &ChunkLimits) -> u32 {
        let (size, prefill_end) = (self.block_size, limits.prefill_end);
        let leaves_any = self.rules().leaves_any_checkpoint();
        let has_checkpoint = match leaves_any {
            true => !self.states.is_some_and(|states| states.drops_block) && self.can_checkpoint(start, end, 0),
            false => end >= prefill_end && self.can_checkpoint(start, end, self.last_boundary(prefill_end)),
        };
        let mut end = end;
        if end < prefill_end && !(leaves_any && has_checkpoint) {
            let aligned = end / size * size;
            // If a block is longer than any chunk, chunks end inside it.
            if aligned > start || size <= limits.most_tokens {
                end = aligned;
            }
        }
        let next_boundary = (start / size + 1).saturating_mul(size);
        let shared = limits.shared_prefix_tokens;
        let shared_stop = start + shared.saturating_sub(start) / size * size;
        let stops = [
            (!has_checkpoint && !start.is_multiple_of(size)).then_some(next_boundary),
            (!has_checkpoint).then_some(self.last_stop(limits.known_tokens)),
            (start < shared && shared < end).then_some(shared_stop),
        ];
        let inside = stops.into_iter().flatten().filter(|&stop| start < stop && stop < end);
        inside.min().unwrap_or(end).max(start)
    }
}
