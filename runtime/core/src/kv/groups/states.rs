//! Blocks that hold states of Mamba and linear attention, with prefix caching (vLLM 0.32 and 0.33, `MambaManager` in
//! cache mode `align` and `_mamba_block_aligned_split`).
//!
//! A state stands for all tokens up to where a chunk ended. It is kept where a block of other layers ends, at the place
//! of that block in the table; places that no chunk ended at have the null block. Behind the latest state a table has
//! the blocks for states after drafts, which move on with it.

use super::{Group, NULL_BLOCK, Table};
use crate::kv::pool::BlockId;

/// A chunk that needs blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// Tokens before it.
    pub(crate) computed: u32,
    /// Tokens up to its end.
    pub(crate) tokens: u32,
    /// The same and those for which a drafter takes slots; it has no states.
    pub(crate) slots: u32,
    /// Where the request's prefill ends: before the last known token, where it has an output.
    pub(crate) prefill_end: u32,
}

/// Limits of the end of a chunk, but for its start and its latest end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkLimits {
    /// All known tokens of the request.
    pub(crate) known_tokens: u32,
    /// See [`Chunk::prefill_end`].
    pub(crate) prefill_end: u32,
    /// Most tokens that any step lets a request compute.
    pub(crate) most_tokens: u32,
    /// See [`GroupHit::shared_prefix_tokens`](super::GroupHit).
    pub(crate) shared_prefix_tokens: u32,
}

/// The rules of a group whose states are kept where blocks end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct States {
    /// See [`KvCacheKind::Mamba`](super::KvCacheKind).
    pub(super) checkpoint_tokens: Option<u32>,
    /// See [`Drafting`](crate::Drafting).
    pub(super) drops_block: bool,
    /// See [`Drafting`](crate::Drafting).
    pub(super) hash_lookahead_tokens: u32,
}

impl Group {
    /// Whether the states of this group are kept where blocks end.
    pub(super) fn aligns_states(&self) -> bool {
        self.states.is_some()
    }

    /// Whether a chunk can leave the state at the boundary `position` behind, besides that at its end.
    fn can_checkpoint(&self, start: u32, end: u32, position: u32) -> bool {
        let Some(checkpoint_tokens) = self.states.and_then(|states| states.checkpoint_tokens) else { return false };
        let size = self.block_size;
        // The boundary has a place of its own between those of the state before and the state after.
        let place = i64::from(end.div_ceil(size)) - 2;
        let place_before = (i64::from(start) - 1).div_euclid(i64::from(size));
        start.is_multiple_of(size)
            && place > place_before
            && start.saturating_add(size) <= position
            && position < end
            && (position - start).is_multiple_of(checkpoint_tokens)
    }

    /// The latest boundary within `tokens` tokens from which a later request can go on: it has a token to compute, or drops
    /// a block of full attention (vLLM's `get_mamba_prefill_checkpoint_position`).
    pub(super) fn last_boundary(&self, tokens: u32) -> u32 {
        let (size, states) = (self.block_size, self.states.unwrap_or_default());
        if states.drops_block {
            return (tokens / size * size).saturating_sub(size);
        }
        tokens.saturating_sub(states.hash_lookahead_tokens.max(1)) / size * size
    }

    /// Whether this chunk of a request leaves such a state, in a block that the request does not have yet.
    fn leaves_checkpoint(&self, table: &Table, chunk: Chunk, is_sparse: bool, is_new: bool) -> bool {
        if is_sparse && chunk.tokens < chunk.prefill_end
            || !self.can_checkpoint(chunk.computed, chunk.tokens, self.last_boundary(chunk.tokens))
        {
            return false;
        }
        let place = (chunk.tokens.div_ceil(self.block_size) - 2) as usize;
        let ends = table.blocks.len().saturating_sub(self.draft_blocks as usize);
        table.blocks.get(place).is_none_or(|&block| block == NULL_BLOCK) || !is_new && place >= ends
    }

    /// Blocks that a chunk takes, given `num_hit` blocks of a hit that the table does not have yet.
    pub(super) fn missing_states(
        &self,
        table: &Table,
        num_hit: u32,
        chunk: Chunk,
        is_sparse: bool,
        is_new: bool,
    ) -> u32 {
        let missing = self.blocks_for(chunk.tokens).saturating_sub(num_hit + table.blocks.len() as u32);
        let checkpoint = u32::from(self.leaves_checkpoint(table, chunk, is_sparse, is_new));
        let drafts = if is_new { self.draft_blocks } else { 0 };
        missing.min(1 + checkpoint + drafts)
    }

    /// Gives a table what a chunk needs: null blocks for the boundaries that it passes over, the draft blocks that it
    /// leaves behind moved to the end, and new blocks, which `allocate` appends.
    pub(super) fn grow_states(
        &self,
        table: &mut Table,
        chunk: Chunk,
        is_sparse: bool,
        is_new: bool,
        allocate: impl FnOnce(u32, &mut Vec<BlockId>),
    ) {
        let checkpoint = usize::from(self.leaves_checkpoint(table, chunk, is_sparse, is_new));
        table.has_checkpoint = checkpoint > 0;
        let required = self.blocks_for(chunk.tokens) as usize;
        let before = table.blocks.len();
        if required <= before && checkpoint == 0 {
            return;
        }
        let passed = required - self.draft_blocks as usize - 1;
        let nulls_end = passed.saturating_sub(checkpoint);
        if before < passed {
            table.blocks.resize(nulls_end.max(before), NULL_BLOCK);
        }
        if !is_new {
            for place in before - self.draft_blocks as usize..before.min(nulls_end) {
                let block = std::mem::replace(&mut table.blocks[place], NULL_BLOCK);
                table.blocks.push(block);
            }
        }
        allocate(required.saturating_sub(table.blocks.len()) as u32, &mut table.blocks);
    }

    /// The end of a chunk of which up to `end` tokens may be computed, with `start` before it: where a state is to be
    /// kept, unless a state in a step's middle serves as well.
    pub(super) fn aligned_end(&self, start: u32, end: u32, limits: &ChunkLimits) -> u32 {
        let (size, prefill_end) = (self.block_size, limits.prefill_end);
        let has_checkpoint = end >= prefill_end && self.can_checkpoint(start, end, self.last_boundary(prefill_end));
        let mut end = end;
        if end < prefill_end {
            let aligned = end / size * size;
            // Where a block is longer than any chunk, chunks end within it.
            if aligned > start || size <= limits.most_tokens {
                end = aligned;
            }
        }
        let next_boundary = (start / size + 1).saturating_mul(size);
        let shared = limits.shared_prefix_tokens;
        let shared_stop = start + shared.saturating_sub(start) / size * size;
        let stops = [
            (!has_checkpoint && !start.is_multiple_of(size)).then_some(next_boundary),
            (!has_checkpoint).then_some(self.last_boundary(limits.known_tokens)),
            (start < shared && shared < end).then_some(shared_stop),
        ];
        let inside = stops.into_iter().flatten().filter(|&stop| start < stop && stop < end);
        inside.min().unwrap_or(end).max(start)
    }
}
