//! Shapes of steps, which latency models price.

use alloc::vec::Vec;

/// The KV of a sequence that the layers of a group keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvGroupKind {
    /// KV of the whole sequence.
    #[default]
    FullAttention,
    /// KV of the whole sequence, compressed.
    LatentAttention,
    /// KV of the latest tokens.
    SlidingWindow,
    /// KV of the chunk that contains the next token.
    ChunkedLocal,
    /// KV of the encoder's output.
    CrossAttention,
    /// A state instead of KV.
    Mamba,
}

impl KvGroupKind {
    /// The name in `wit/`.
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

/// A group of layers that share block tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvGroup {
    /// The kind of the group's layers.
    pub kind: KvGroupKind,
    /// Tokens per block of the group.
    pub block_size_tokens: u32,
    /// Window size or chunk length in tokens.
    pub window_tokens: Option<u32>,
}

/// The part of a step's shape that differs between groups. It is 0 for states and for cross attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvGroupShape {
    /// Query-key pairs of all prefill chunks, within the group's windows or chunks.
    pub prefill_attention_pairs: u64,
    /// Sum of the context tokens that each decode reads.
    pub decode_context_tokens: u64,
}

/// Properties of the engine whose steps are priced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// Number of GPUs that share each layer.
    pub tensor_parallel_size: u32,
    /// Number of pipeline stages.
    pub pipeline_parallel_size: u32,
    /// Total number of KV blocks that requests can use.
    pub kv_total_blocks: u64,
    /// Tokens per KV block.
    pub block_size_tokens: u64,
    /// Groups of layers. Empty if all layers have full attention.
    pub kv_groups: Vec<KvGroup>,
}

/// An engine for trying out a model, and for tests.
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

/// The part of a step's prefill chunks that recomputes outputs after a preemption. Dynamo does not charge for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecomputeShape {
    /// Output tokens in prefill chunks.
    pub output_tokens: u64,
    /// Number of chunks without any prompt token.
    pub promptless_chunks: u64,
    /// Sum of the tokens that were computed or cached before each such chunk.
    pub promptless_context_tokens: u64,
    /// Number of requests with outputs whose chunk reaches the end of their known tokens, so that they decode next.
    pub completions: u64,
    /// Sum of the context lengths of the requests in `completions`, at the end of their chunks.
    pub completion_context_tokens: u64,
}

/// The encoder's part of a step: multimodal items computed before the tokens that need them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderShape {
    /// Number of items computed.
    pub items: u64,
    /// Number of embeddings computed.
    pub embeds: u64,
}

/// The size of one engine step, summed over its requests.
///
/// All fields are sums or counts, never per-request lists. A *prefill chunk* is a piece of a sequence that is
/// not yet in the KV cache: a prompt, or a preempted sequence being recomputed. A *decode* appends to a
/// sequence whose known tokens are all cached except the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Number of requests with a prefill chunk in this step.
    pub prefill_requests: u64,
    /// Number of new tokens in all prefill chunks.
    pub prefill_tokens: u64,
    /// Sum of the tokens that were computed or cached before each prefill chunk.
    pub prefill_context_tokens: u64,
    /// Query-key pairs of all prefill chunks under causal attention: a chunk of
    /// `n` tokens at depth `c` adds `n * c + n * (n + 1) / 2`.
    pub prefill_attention_pairs: u64,
    /// Number of requests whose prefill chunk reaches the end of their known tokens.
    pub prefill_completions: u64,
    /// Sum of the context lengths of the requests in `prefill_completions`, at the end of their chunks.
    pub prefill_completion_context_tokens: u64,
    /// Number of requests that decode in this step.
    pub decode_requests: u64,
    /// Number of tokens in all decodes. This is more than `decode_requests` with speculative decoding.
    pub decode_tokens: u64,
    /// Sum of the context lengths of all decodes, including the tokens of this step.
    pub decode_context_tokens: u64,
    /// Number of requests that emit at least one output token at the end of this step.
    pub sampled_requests: u64,
    /// Number of distinct KV blocks that requests reference during the step.
    pub kv_active_blocks: u64,
    /// Total number of KV blocks that requests can use, without the null block.
    pub kv_total_blocks: u64,
    /// Tokens per KV block.
    pub block_size_tokens: u64,
    /// Number of requests that wait for admission after the step was scheduled.
    pub waiting_requests: u64,
    /// Number of distinct adapters in the step.
    pub adapter_count: u64,
    /// Number of tokens computed with an adapter.
    pub adapter_tokens: u64,
    /// The part of the prefill work that recomputes outputs.
    pub recompute: RecomputeShape,
    /// The encoder's part of the step.
    pub encoder: EncoderShape,
}

impl StepShape {
    /// Number of requests in the step, prefilling or decoding.
    #[must_use]
    pub fn batch_requests(&self) -> u64 {
        self.prefill_requests + self.decode_requests
    }

    /// Number of tokens that the step computes.
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

    /// The step at `index` in a row of decode steps that starts with `self`. It has the same requests,
    /// with contexts that are `index` tokens longer, and uses `kv_active_blocks` blocks.
    #[must_use]
    #[inline]
    pub fn decode_step(&self, index: u64, kv_active_blocks: u64) -> Self {
        let decode_context_tokens = self.decode_context_tokens + self.decode_requests * index;
        Self { decode_context_tokens, kv_active_blocks, ..*self }
    }
}
