//! KV-cache groups and KV blocks, under the rules of vLLM 0.32.

pub(crate) mod spec;

use vcr_core::{Drafter, KvCacheGroup, KvCacheKind, SchedulerRules};

use crate::drafter::DraftMethod;
use crate::error::{ModelError, gib};
use crate::layers::{Attention, Layer, Mixer, Reach};
use crate::serving::{Serving, Shape};
use spec::Spec;

/// The part of a sequence's KV that a group of layers keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvKind {
    /// KV of all tokens.
    Full,
    /// Latent vectors of all tokens.
    Latent,
    /// KV of the latest tokens.
    Window(u64),
    /// KV of the chunk that contains the next token.
    Chunk(u64),
    /// The state after the latest token.
    State {
        /// Number of blocks of a request: for the states before and after a step, after drafts and, with Mamba 2,
        /// inside a step. Without prefix caching, the state after a step replaces the one before it.
        blocks: u64,
        /// A step can leave a state inside it at multiples of this number of tokens. None if it cannot.
        checkpoint_tokens: Option<u32>,
    },
}

impl KvKind {
    /// vLLM's name of the kind.
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

    /// Window size or chunk length in tokens, if there is one.
    #[must_use]
    pub fn window_tokens(self) -> Option<u64> {
        match self {
            Self::Window(tokens) | Self::Chunk(tokens) => Some(tokens),
            Self::Full | Self::Latent | Self::State { .. } => None,
        }
    }
}

/// Layers that share block tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// The part of a sequence's KV that the layers keep.
    pub kind: KvKind,
    /// Number of layer caches. A layer with an indexer has two caches.
    pub layers: usize,
    /// Tokens per block.
    pub block_size: u64,
    /// Bytes of a block over all layers of the group.
    pub page_bytes: u64,
    /// Bytes of a block over the group's layers in each stage.
    pub(crate) stage_page_bytes: Vec<u64>,
    /// Whether the group has layers of the drafter.
    pub has_drafter: bool,
}

impl KvGroup {
    /// Maximum number of blocks that a sequence of `tokens` tokens holds at once.
    fn blocks(&self, tokens: u64, in_flight_tokens: u64, unsettled_tokens: u64, ranks: u64) -> u64 {
        match self.kind {
            KvKind::Full | KvKind::Latent => tokens.div_ceil(ranks).div_ceil(self.block_size),
            KvKind::Window(window) => {
                (window - 1 + unsettled_tokens + in_flight_tokens).min(tokens).div_ceil(self.block_size) + 1
            }
            KvKind::Chunk(chunk) => (chunk + in_flight_tokens).min(tokens).div_ceil(self.block_size),
            KvKind::State { blocks, .. } => blocks,
        }
    }

    /// Bytes that each token adds, as long as no token leaves a window.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        if matches!(self.kind, KvKind::State { .. }) { 0.0 } else { self.page_bytes as f64 / self.block_size as f64 }
    }
}

/// An engine's KV cache, before its memory is known.
#[derive(Clone, Debug, PartialEq)]
pub struct KvPlan {
    model: String,
    /// Tokens of the smallest block on one GPU. The other block sizes are multiples of it.
    pub block_size: u64,
    /// The groups, in vLLM's order.
    pub groups: Vec<KvGroup>,
    /// Bytes of a block on one GPU, for the largest group and the largest stage.
    pub bytes_per_block: u64,
    /// Bytes of a block on one GPU, by stage.
    pub stage_block_bytes: Vec<u64>,
    /// Number of GPUs that share the KV of each sequence.
    pub context_ranks: u64,
    /// Longest sequence in tokens.
    pub max_model_len: u64,
    in_flight_tokens: u64,
    method: Option<DraftMethod>,
    /// Additional tokens that windows keep because the drafter recomputes their KV (`extra_retained_tokens`).
    unsettled_tokens: u64,
}

impl KvPlan {
    pub(crate) fn of(model: Shape<'_>, serving: &Serving) -> Result<Self, ModelError> {
        let specs = spec::of(model, serving)?;
        let stages = serving.stages(model.layers.len());
        let caches = |layers: &[Layer]| layers.iter().map(spec::caches).sum::<usize>();
        let ends: Vec<usize> = stages.iter().map(|stage| caches(&model.layers[..stage.end])).collect();
        let is_chunked =
            |layer: &Layer| matches!(layer.mixer, Mixer::Attention(Attention { reach: Reach::Chunk(_), .. }));
        // With a drafter that reads the model's hidden state, vLLM does not treat chunks separately
        // (`VllmConfig`).
        let keeps_all =
            model.draft.is_some_and(|draft| draft.kind(1).is_eagle_like()) && model.layers.iter().any(is_chunked);
        let stage_count = ends.len();
        let parts = Parts { first_of_drafter: caches(model.layers), stage_ends: ends };
        let groups = of(model.name, specs, &parts, serving.disable_hybrid_kv_cache_manager || keeps_all)?;
        let of_stage = |stage: usize| groups.iter().map(|group| group.stage_page_bytes[stage]).max().unwrap_or(0);
        let stage_block_bytes: Vec<u64> = (0..stage_count).map(of_stage).collect();
        let block_size = groups.iter().map(|group| group.block_size).min().unwrap_or(1);
        Ok(Self {
            model: model.name.to_owned(),
            block_size,
            bytes_per_block: stage_block_bytes.iter().copied().max().unwrap_or(0),
            stage_block_bytes,
            context_ranks: serving.decode_context_parallel,
            groups,
            method: model.draft.map(|draft| draft.method),
            unsettled_tokens: model.draft.map_or(0, |draft| match draft.kind(serving.num_speculative_tokens) {
                Drafter::MultiModuleMtp => serving.num_speculative_tokens - 1,
                _ => 0,
            }),
            max_model_len: serving.max_model_len.unwrap_or(model.max_model_len),
            in_flight_tokens: serving.in_flight_tokens,
        })
    }

    /// Bytes that each token of a short sequence needs in all groups, summed over the stages.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        self.groups.iter().map(KvGroup::bytes_per_token).sum()
    }

    /// Maximum bytes of the blocks that a sequence of `tokens` tokens holds at once.
    #[must_use]
    pub fn bytes_of_sequence(&self, tokens: u64) -> u64 {
        self.bytes_per_block.saturating_mul(self.blocks_of_sequence(tokens))
    }

    /// Maximum number of blocks that a sequence of `tokens` tokens holds at once, in all groups.
    #[must_use]
    pub fn blocks_of_sequence(&self, tokens: u64) -> u64 {
        let Self { in_flight_tokens, unsettled_tokens, context_ranks, .. } = *self;
        self.groups.iter().map(|group| group.blocks(tokens, in_flight_tokens, unsettled_tokens, context_ranks)).sum()
    }

    /// Longest sequence whose blocks fit into `bytes` on each GPU; 0 if none does.
    #[must_use]
    pub fn longest_in(&self, bytes: u64) -> u64 {
        self.longest_with(bytes, self.bytes_per_block)
    }

    /// Longest sequence that fits, given the free bytes on one GPU of each stage; 0 if none does.
    #[must_use]
    pub fn longest_in_stages(&self, bytes: &[u64]) -> u64 {
        let stages = bytes.iter().zip(&self.stage_block_bytes).filter(|(_, bytes_per_block)| **bytes_per_block > 0);
        let longest = stages.map(|(&bytes, &bytes_per_block)| self.longest_with(bytes, bytes_per_block));
        longest.fold(self.max_model_len, u64::min)
    }

    fn longest_with(&self, bytes: u64, bytes_per_block: u64) -> u64 {
        let usable = bytes.saturating_sub(bytes_per_block);
        let (mut fits, mut over) = (0, self.max_model_len + 1);
        while over - fits > 1 {
            let middle = fits + (over - fits) / 2;
            let needed = bytes_per_block.saturating_mul(self.blocks_of_sequence(middle));
            if needed <= usable { fits = middle } else { over = middle }
        }
        fits
    }

    /// Number of KV blocks in `bytes` on each GPU, including the null block.
    ///
    /// # Errors
    /// If not even one sequence fits. The text is vLLM's.
    pub fn blocks_in(&self, bytes: u64) -> Result<u32, ModelError> {
        self.blocks_with(bytes, self.bytes_per_block)
    }

    /// Number of KV blocks that fit on all stages, given the free bytes on one GPU of each stage.
    pub fn blocks_in_stages(&self, bytes: &[u64]) -> Result<u32, ModelError> {
        let stages = bytes.iter().zip(&self.stage_block_bytes).filter(|(_, bytes_per_block)| **bytes_per_block > 0);
        let mut blocks = u32::MAX;
        for (&bytes, &bytes_per_block) in stages {
            blocks = blocks.min(self.blocks_with(bytes, bytes_per_block)?);
        }
        Ok(blocks)
    }

    fn blocks_with(&self, bytes: u64, bytes_per_block: u64) -> Result<u32, ModelError> {
        // The null block is part of the pool, but holds no KV.
        let usable = bytes.saturating_sub(bytes_per_block);
        let needed = bytes_per_block.saturating_mul(self.blocks_of_sequence(self.max_model_len));
        if usable == 0 {
            let text = format!(
                "No available memory for the cache blocks of {}: try increasing `gpu_memory_utilization`",
                self.model
            );
            return Err(ModelError::Memory(text));
        }
        if needed > usable {
            let longest = self.longest_with(bytes, bytes_per_block);
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
        Ok(u32::try_from(bytes / bytes_per_block).unwrap_or(u32::MAX))
    }

    /// The groups of an engine under the rules of a release. Empty for one group of full attention. Releases differ in
    /// the drafters whose groups they find (`_annotate_eagle_groups`). If a release finds no group, the drafter affects
    /// all groups.
    #[must_use]
    pub fn engine_groups(&self, rules: SchedulerRules) -> Vec<KvCacheGroup> {
        let is_found = match self.method {
            Some(DraftMethod::Mtp) => rules.finds_groups_of_modules(),
            Some(DraftMethod::Eagle | DraftMethod::Eagle3) => rules.finds_groups_of_drafters(),
            Some(DraftMethod::DraftModel) | None => false,
        };
        // Latent attention alone counts as full attention. Together with full attention, it is looked up separately.
        let has_full = self.groups.iter().any(|group| matches!(group.kind, KvKind::Full));
        let group_of = |group: &KvGroup| {
            let tokens = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
            let kind = match group.kind {
                KvKind::Latent if has_full => KvCacheKind::LatentAttention,
                KvKind::Full | KvKind::Latent => KvCacheKind::FullAttention,
                KvKind::Window(window) => KvCacheKind::SlidingWindow { window_tokens: tokens(window) },
                KvKind::Chunk(chunk) => KvCacheKind::ChunkedLocal { chunk_tokens: tokens(chunk) },
                KvKind::State { checkpoint_tokens, .. } => KvCacheKind::Mamba { checkpoint_tokens },
            };
            let block_size = (group.block_size != self.block_size).then(|| tokens(group.block_size));
            KvCacheGroup { kind, block_size, has_drafter: is_found && group.has_drafter }
        };
        let groups: Vec<KvCacheGroup> = self.groups.iter().map(group_of).collect();
        let is_plain = matches!(groups[..], [KvCacheGroup { kind: KvCacheKind::FullAttention, .. }]);
        if is_plain { Vec::new() } else { groups }
    }
}

/// The caches of each stage, and those of the drafter.
struct Parts {
    /// End of the model's caches in each stage. The drafter's caches are in the last stage.
    stage_ends: Vec<usize>,
    /// Index of the drafter's first cache.
    first_of_drafter: usize,
}

fn of(model: &str, mut specs: Vec<Spec>, parts: &Parts, is_hybrid_off: bool) -> Result<Vec<KvGroup>, ModelError> {
    let has_full = specs.iter().any(|spec| spec.kind == KvKind::Full);
    if is_hybrid_off && has_full {
        // Blocks are kept for all tokens, even for layers with windows.
        for spec in &mut specs {
            if spec.kind.window_tokens().is_some() {
                spec.kind = KvKind::Full;
            }
        }
    }
    let Some(first) = specs.first().copied() else {
        let reason = "expected a layer with attention or a state".to_owned();
        return Err(ModelError::File { place: model.to_owned(), reason });
    };
    if specs.iter().all(|spec| spec.block_size == first.block_size && is_one_type(first.kind, spec.kind)) {
        let members: Vec<usize> = (0..specs.len()).collect();
        return Ok(vec![group(&specs, &members, parts)]);
    }
    unify_pages(model, &mut specs)?;
    Ok(of_equal_pages(&specs, parts))
}

/// The group of the caches with the indices `members`. Caches are numbered in the order of their layers.
fn group(specs: &[Spec], members: &[usize], parts: &Parts) -> KvGroup {
    let stage_ends = &parts.stage_ends;
    let mut stage_page_bytes = vec![0; stage_ends.len()];
    for &member in members {
        let stage = stage_ends.partition_point(|end| *end <= member).min(stage_ends.len() - 1);
        stage_page_bytes[stage] += specs[member].page_bytes;
    }
    let Spec { kind, block_size, .. } = specs[members[0]];
    let page_bytes = stage_page_bytes.iter().sum();
    let has_drafter = members.iter().any(|&member| member >= parts.first_of_drafter);
    KvGroup { kind, layers: members.len(), block_size, page_bytes, stage_page_bytes, has_drafter }
}

fn is_one_type(kind: KvKind, other: KvKind) -> bool {
    let is_full = |kind| matches!(kind, KvKind::Full | KvKind::Latent);
    kind == other || is_full(kind) && is_full(other)
}

/// Enlarges the pages of all caches to the size of the largest page, with more tokens per block or with padding.
fn unify_pages(model: &str, specs: &mut [Spec]) -> Result<(), ModelError> {
    let page_bytes = specs.iter().map(|spec| spec.page_bytes).max().unwrap_or(0);
    for spec in specs {
        if !matches!(spec.kind, KvKind::State { .. }) && page_bytes.is_multiple_of(spec.page_bytes) {
            spec.block_size *= page_bytes / spec.page_bytes;
        } else if spec.kind == KvKind::Latent {
            let reason = format!(
                "a page of {} bytes does not divide the largest, of {page_bytes}, and cannot be padded",
                spec.page_bytes
            );
            return Err(ModelError::File { place: model.to_owned(), reason });
        }
        spec.page_bytes = page_bytes;
    }
    Ok(())
}

/// Builds groups that have as many layers as the rarest kind, or as the most frequent kind if that is not much more
/// (`_get_kv_cache_groups_uniform_page_size`).
fn of_equal_pages(specs: &[Spec], parts: &Parts) -> Vec<KvGroup> {
    let mut kinds: Vec<(Spec, Vec<usize>)> = Vec::new();
    for (number, spec) in specs.iter().enumerate() {
        match kinds.iter_mut().find(|(known, _)| known == spec) {
            Some((_, members)) => members.push(number),
            None => kinds.push((*spec, vec![number])),
        }
    }
    let fewest = kinds.iter().map(|(_, members)| members.len()).min().unwrap_or(1);
    let most = kinds.iter().map(|(_, members)| members.len()).max().unwrap_or(1);
    let size = if 2 * most < 3 * fewest { most } else { fewest };
    let mut groups = Vec::new();
    for (_, members) in kinds {
        let count = members.len().div_ceil(size);
        // Layers alternate between the groups, so that each stage has the same number of layers of each group.
        for number in 0..count {
            let own: Vec<usize> = members.iter().copied().skip(number).step_by(count).collect();
            groups.push(group(specs, &own, parts));
        }
    }
    groups
}
