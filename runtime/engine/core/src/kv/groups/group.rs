//! A group of layers, with values derived from the engine's settings.

use super::states::{Chunk, States};
use super::{KvCacheGroup, KvCacheKind, MambaCacheMode};
use crate::config::{Drafting, EngineConfig};

#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) kind: KvCacheKind,
    /// The kind that decides which blocks are held. A drafter may need more of a window.
    pub(super) held: KvCacheKind,
    pub(super) block_size: u32,
    /// Whether the last block of a hit is dropped.
    pub(super) drops_block: bool,
    /// Maximum number of blocks that an admission counts for a request.
    pub(super) admission_cap: u32,
    /// Number of blocks at the end of a table for the states after drafts.
    pub(super) draft_blocks: u32,
    /// Rules for states, if the group keeps states at the ends of steps.
    pub(super) states: Option<States>,
}

impl Group {
    pub(super) fn of(group: &KvCacheGroup, config: &EngineConfig) -> Self {
        let KvCacheKind::Mamba { checkpoint_tokens } = group.kind else {
            return Self::with_blocks(group.kind, group.block_size.unwrap_or(config.block_size()), config);
        };
        // A single state for the whole sequence is in a block that never becomes full.
        let is_whole = config.mamba_cache_mode() == MambaCacheMode::None;
        let block_size = if is_whole { config.max_model_len() } else { config.block_size() };
        let states = (config.mamba_cache_mode() == MambaCacheMode::Align).then(|| {
            let Drafting { drops_block, hash_lookahead_tokens, .. } = config.drafting();
            let checkpoint_tokens = checkpoint_tokens.filter(|_| config.rules().has_checkpoints());
            States { checkpoint_tokens, drops_block, hash_lookahead_tokens, rules: config.rules() }
        });
        let draft_blocks = config.num_speculative_tokens();
        Self { draft_blocks, states, ..Self::with_blocks(group.kind, block_size, config) }
    }

    fn with_blocks(kind: KvCacheKind, block_size: u32, config: &EngineConfig) -> Self {
        let held = config.drafting().held_kind(kind);
        let admission_cap = held.admission_cap(block_size, config.max_in_flight_tokens(), config.max_model_len());
        Self { kind, held, block_size, drops_block: false, admission_cap, draft_blocks: 0, states: None }
    }

    /// Number of blocks for a chunk that ends at slot `slots`. Cross attention takes all its blocks with
    /// the first chunk.
    pub(super) fn blocks_of(&self, chunk: Chunk, slots: u32) -> u32 {
        match self.kind {
            KvCacheKind::CrossAttention => chunk.encoder_tokens.div_ceil(self.block_size),
            _ => self.blocks_for(slots),
        }
    }

    pub(super) fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size) + self.draft_blocks
    }

    /// Number of blocks at the start of a table that no token after the first `computed` tokens needs.
    pub(super) fn skipped_blocks(&self, computed: u32) -> u32 {
        self.held.skipped_tokens(computed) / self.block_size
    }
}
