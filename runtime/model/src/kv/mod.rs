//! KV-cache groups and KV blocks, by the rules of vLLM 0.32.

mod groups;
pub(crate) mod spec;

use vcr_core::{KvCacheGroup, KvCacheKind};

use crate::error::{ModelError, gib};
use crate::serving::{Serving, Shape};

/// Part of a sequence whose KV a group of layers keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvKind {
    /// Everything.
    Full,
    /// Everything, as latent vectors.
    Latent,
    /// The latest tokens.
    Window(u64),
    /// The chunk that the next token is in.
    Chunk(u64),
    /// The state after the latest token.
    State {
        /// Blocks of a request: for the states before and after a step, those after drafts, and that which Mamba 2
        /// leaves within a step; with prefix caching off the state after a step replaces that before it.
        blocks: u64,
        /// Tokens at whose multiples a step can leave a state within it; none if it cannot.
        checkpoint_tokens: Option<u32>,
    },
}

impl KvKind {
    /// vLLM's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Latent => "mla_attention",
            Self::Window(_) => "sliding_window",
            Self::Chunk(_) => "chunked_local_attention",
            Self::State { .. } => "mamba",
        }
    }

    /// Tokens of its window or chunk.
    #[must_use]
    pub fn window_tokens(self) -> Option<u64> {
        match self {
            Self::Window(tokens) | Self::Chunk(tokens) => Some(tokens),
            Self::Full | Self::Latent | Self::State { .. } => None,
        }
    }
}

/// Layers with the same blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Part of a sequence whose KV they keep.
    pub kind: KvKind,
    /// Caches of layers; a layer with an indexer has two.
    pub layers: usize,
    /// Tokens of a block.
    pub block_size: u64,
    /// Bytes of a block of all its layers.
    pub page_bytes: u64,
}

impl KvGroup {
    /// Maximum number of blocks that a sequence of `tokens` tokens holds at once.
    fn blocks(&self, tokens: u64, in_flight_tokens: u64) -> u64 {
        match self.kind {
            KvKind::Full | KvKind::Latent => tokens.div_ceil(self.block_size),
            KvKind::Window(window) => (window - 1 + in_flight_tokens).min(tokens).div_ceil(self.block_size) + 1,
            KvKind::Chunk(chunk) => (chunk + in_flight_tokens).min(tokens).div_ceil(self.block_size),
            KvKind::State { blocks, .. } => blocks,
        }
    }

    /// Bytes that each token adds, as long as nothing falls out of a window.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        if matches!(self.kind, KvKind::State { .. }) { 0.0 } else { self.page_bytes as f64 / self.block_size as f64 }
    }
}

/// The KV cache of an engine, before its memory is known.
#[derive(Clone, Debug, PartialEq)]
pub struct KvPlan {
    model: String,
    /// Tokens of the smallest block, of which the others are multiples.
    pub block_size: u64,
    /// The groups, in vLLM's order.
    pub groups: Vec<KvGroup>,
    /// Bytes of a block: that of the largest group.
    pub bytes_per_block: u64,
    /// Longest sequence.
    pub max_model_len: u64,
    in_flight_tokens: u64,
}

impl KvPlan {
    pub(crate) fn of(model: Shape<'_>, serving: &Serving) -> Result<Self, ModelError> {
        let specs = spec::of(model, serving)?;
        let groups = groups::of(model.name, specs, serving.disable_hybrid_kv_cache_manager)?;
        let block_size = groups.iter().map(|group| group.block_size).min().unwrap_or(1);
        Ok(Self {
            model: model.name.to_owned(),
            block_size,
            bytes_per_block: groups.iter().map(|group| group.page_bytes).max().unwrap_or(0),
            groups,
            max_model_len: serving.max_model_len.unwrap_or(model.max_model_len),
            in_flight_tokens: serving.in_flight_tokens,
        })
    }

    /// Bytes that each token of a short sequence takes in all groups.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        self.groups.iter().map(KvGroup::bytes_per_token).sum()
    }

    /// Maximum bytes of the blocks that a sequence of `tokens` tokens holds at once.
    #[must_use]
    pub fn bytes_of_sequence(&self, tokens: u64) -> u64 {
        let blocks = |group: &KvGroup| group.blocks(tokens, self.in_flight_tokens);
        self.bytes_per_block.saturating_mul(self.groups.iter().map(blocks).sum())
    }

    /// Longest sequence that fits in memory for blocks; 0 if none does.
    #[must_use]
    pub fn longest_in(&self, bytes: u64) -> u64 {
        let usable = bytes.saturating_sub(self.bytes_per_block);
        let (mut fits, mut over) = (0, self.max_model_len + 1);
        while over - fits > 1 {
            let middle = fits + (over - fits) / 2;
            if self.bytes_of_sequence(middle) <= usable { fits = middle } else { over = middle }
        }
        fits
    }

    /// KV blocks in so much memory, the null block included.
    ///
    /// # Errors
    /// If not even one sequence fits, in vLLM's words.
    pub fn blocks_in(&self, bytes: u64) -> Result<u32, ModelError> {
        // The null block is in the pool, but holds nothing.
        let usable = bytes.saturating_sub(self.bytes_per_block);
        let needed = self.bytes_of_sequence(self.max_model_len);
        if usable == 0 {
            let text = format!(
                "No available memory for the cache blocks of {}: try increasing `gpu_memory_utilization`",
                self.model
            );
            return Err(ModelError::Memory(text));
        }
        if needed > usable {
            let longest = self.longest_in(bytes);
            let estimate = match longest {
                0 => String::new(),
                longest => format!("; based on the available memory, the estimated maximum model length is {longest}"),
            };
            return Err(ModelError::Memory(format!(
                "To serve at least one request with the max seq len of {} ({}), {} KV cache is needed, which is larger \
                 than the available KV cache memory ({}){estimate}",
                self.model,
                self.max_model_len,
                gib(needed as f64),
                gib(usable as f64)
            )));
        }
        Ok(u32::try_from(bytes / self.bytes_per_block).unwrap_or(u32::MAX))
    }

    /// The groups as an engine takes them; none for one group of full attention.
    #[must_use]
    pub fn engine_groups(&self) -> Vec<KvCacheGroup> {
        let group_of = |group: &KvGroup| {
            let tokens = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
            let kind = match group.kind {
                KvKind::Full | KvKind::Latent => KvCacheKind::FullAttention,
                KvKind::Window(window) => KvCacheKind::SlidingWindow { window_tokens: tokens(window) },
                KvKind::Chunk(chunk) => KvCacheKind::ChunkedLocal { chunk_tokens: tokens(chunk) },
                KvKind::State { checkpoint_tokens, .. } => KvCacheKind::Mamba { checkpoint_tokens },
            };
            let block_size = (group.block_size != self.block_size).then(|| tokens(group.block_size));
            KvCacheGroup { kind, block_size, has_drafter: false }
        };
        let groups: Vec<KvCacheGroup> = self.groups.iter().map(group_of).collect();
        let is_plain = matches!(groups[..], [KvCacheGroup { kind: KvCacheKind::FullAttention, .. }]);
        if is_plain { Vec::new() } else { groups }
    }
}
