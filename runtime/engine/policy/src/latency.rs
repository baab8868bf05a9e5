//! Shapes of steps, as latency models price them.

use alloc::vec::Vec;

/// The layers of a group, by the KV that they keep of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvGroupKind {
    /// The whole sequence.
    #[default]
    FullAttention,
    /// The whole sequence, compressed.
    LatentAttention,
    /// The KV of the latest tokens.
    SlidingWindow,
    /// The KV of the next token's chunk.
    ChunkedLocal,
    /// The KV of the encoder's output.
    CrossAttention,
    /// A state.
    Mamba,
}

impl KvGroupKind {
    /// Its name in `wit/`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FullAttention => "full-attention",
            Self::LatentAttention => "latent-attention",
            Self::SlidingWindow => "sliding-window",
            Self::ChunkedLocal => "chunked-local",
            Self::CrossAttention => "cross-attention",
            Self::Mamba => "mamba",
        }
    }
}

/// A group of layers whose KV is in the same blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvGroup {
    /// The kind of its layers.
    pub kind: KvGroupKind,
    /// Tokens in a block of the group.
    pub block_size_tokens: u32,
    /// Tokens of the window, or of a chunk.
    pub window_tokens: Option<u32>,
}

/// The part of a step that differs between groups. States and cross-attention have 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvGroupShape {
    /// Query-key pairs of all prefill chunks within the windows or chunks of the group.
    pub prefill_attention_pairs: u64,
    /// Tokens that each decode reads of its context, summed.
    pub decode_context_tokens: u64,
}

/// The engine whose steps are priced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// GPUs that share each layer.
    pub tensor_parallel_size: u32,
    /// Stages that the layers are spread over.
    pub pipeline_parallel_size: u32,
    /// KV blocks that requests can use in all.
    pub kv_total_blocks: u64,
    /// Tokens in a KV block.
    pub block_size_tokens: u64,
    /// Groups of layers; none if all have full attention.
    pub kv_groups: Vec<KvGroup>,
}

/// An engine for tries and tests.
impl Default for EngineInfo {
    fn default() -> Self {
        Self {
            tensor_parallel_size: 1,
            pipeline_parallel_size: 1,
            kv_total_blocks: 20_000,
            block_size_tokens: 16,
            kv_groups: Vec::new(),
        }
    }
}

/// The part of a step's prefill chunks that computes outputs again, after a
/// preemption. Dynamo charges nothing for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecomputeShape {
    /// Output tokens in prefill chunks.
    pub output_tokens: u64,
    /// Chunks without any prompt token.
    pub promptless_chunks: u64,
    /// Tokens already computed or cached before each such chunk, summed.
    pub promptless_context_tokens: u64,
    /// Requests with outputs whose chunk reaches the end of their known tokens because they continue decoding.
    pub completions: u64,
    /// Context length of each such request at the end of its chunk, summed.
    pub completion_context_tokens: u64,
}

/// The encoder's part of a step: multimodal items computed before the tokens that need them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderShape {
    /// Items computed.
    pub items: u64,
    /// Embeddings computed for them, in tokens of a prompt.
    pub embeds: u64,
}

/// The size of one engine step, summed over its requests.
///
/// All fields are sums or counts, never per-request lists. A *prefill chunk* is a piece of a sequence that is
/// not yet in the KV cache: a prompt, or a preempted sequence being recomputed. A *decode* appends to a
/// sequence whose known tokens are all cached except the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Requests with a prefill chunk in this step.
    pub prefill_requests: u64,
    /// New tokens over all prefill chunks.
    pub prefill_tokens: u64,
    /// Tokens already computed or cached before each prefill chunk, summed.
    pub prefill_context_tokens: u64,
    /// Query-key pairs of all prefill chunks under causal attention: a chunk of
    /// `n` tokens at depth `c` adds `n * c + n * (n + 1) / 2`.
    pub prefill_attention_pairs: u64,
    /// Requests whose prefill chunk reaches the end of their known tokens.
    pub prefill_completions: u64,
    /// Context length of each such request at the end of its chunk, summed.
    pub prefill_completion_context_tokens: u64,
    /// Requests that decode in this step.
    pub decode_requests: u64,
    /// Tokens over all decodes; more than `decode_requests` with speculation.
    pub decode_tokens: u64,
    /// Context length of each decode including the tokens of this step, summed.
    pub decode_context_tokens: u64,
    /// Requests that emit at least one output token at the end of this step.
    pub sampled_requests: u64,
    /// Distinct KV blocks referenced by at least one request during the step.
    pub kv_active_blocks: u64,
    /// KV blocks that requests can use in all (the null block not counted).
    pub kv_total_blocks: u64,
    /// Tokens per KV block.
    pub block_size_tokens: u64,
    /// Requests waiting for admission after the step was scheduled.
    pub waiting_requests: u64,
    /// Distinct adapters of the requests in the step.
    pub adapter_count: u64,
    /// Tokens that are computed with an adapter.
    pub adapter_tokens: u64,
    /// Outputs among the prefill work.
    pub recompute: RecomputeShape,
    /// Multimodal items that the encoder computes.
    pub encoder: EncoderShape,
}

impl StepShape {
    /// Requests in the step, prefilling or decoding.
    #[must_use]
    pub fn batch_requests(&self) -> u64 {
        self.prefill_requests + self.decode_requests
    }

    /// Tokens that the step computes.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.prefill_tokens + self.decode_tokens
    }

    /// Whether the step only decodes.
    #[must_use]
    pub fn is_pure_decode(&self) -> bool {
        let others = Self {
            decode_requests: 0,
            decode_tokens: 0,
            decode_context_tokens: 0,
            sampled_requests: 0,
            kv_active_blocks: 0,
            kv_total_blocks: 0,
            block_size_tokens: 0,
            waiting_requests: 0,
            adapter_count: 0,
            adapter_tokens: 0,
            ..*self
        };
        others == Self::default()
    }

    /// The step at `index` in a row of decode steps that starts with `self`: the same requests,
    /// each context one token longer per step, and this number of blocks in use.
    #[must_use]
    #[inline]
    pub fn decode_step(&self, index: u64, kv_active_blocks: u64) -> Self {
        let decode_context_tokens = self.decode_context_tokens + self.decode_requests * index;
        Self { decode_context_tokens, kv_active_blocks, ..*self }
    }
}
