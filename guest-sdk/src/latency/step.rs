/// Words of one step in the flat list of the interface.
pub const WORDS_PER_STEP: usize = 14;

/// One engine step: when it starts and what it computes, summed over its
/// requests.
///
/// A *prefill chunk* is a piece of a sequence that is not yet in the KV cache;
/// a *decode* appends to a sequence whose tokens are all cached but the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Virtual time at which the step starts, in nanoseconds. Between the end of
    /// the last step and this the engine was idle.
    pub start_ns: u64,
    /// Requests with a prefill chunk in this step.
    pub prefill_requests: u64,
    /// New tokens over all prefill chunks.
    pub prefill_tokens: u64,
    /// Tokens computed or cached before each prefill chunk, summed.
    pub prefill_context_tokens: u64,
    /// Query-key pairs of all prefill chunks under causal attention.
    pub prefill_attention_pairs: u64,
    /// Prefill chunks that reach the end of their request's known tokens.
    pub prefill_completions: u64,
    /// Context length of each such request at the end of its chunk, summed.
    pub prefill_completion_context_tokens: u64,
    /// Requests that decode.
    pub decode_requests: u64,
    /// Tokens over all decodes; more than `decode_requests` with speculation.
    pub decode_tokens: u64,
    /// Context length of each decode including this step's tokens, summed.
    pub decode_context_tokens: u64,
    /// Requests that emit at least one output token at the end of the step.
    pub sampled_requests: u64,
    /// Distinct KV blocks that at least one request refers to.
    pub kv_active_blocks: u64,
    /// KV blocks that requests can use in all.
    pub kv_total_blocks: u64,
    /// Tokens in a KV block.
    pub block_size_tokens: u64,
    /// Requests still waiting for admission after the step was scheduled.
    pub waiting_requests: u64,
}

impl Step {
    /// Reads the words of one step, in the order of the interface.
    #[must_use]
    #[inline]
    pub fn from_words(start_ns: u64, words: &[u64; WORDS_PER_STEP]) -> Self {
        let [
            prefill_requests,
            prefill_tokens,
            prefill_context_tokens,
            prefill_attention_pairs,
            prefill_completions,
            prefill_completion_context_tokens,
            decode_requests,
            decode_tokens,
            decode_context_tokens,
            sampled_requests,
            kv_active_blocks,
            kv_total_blocks,
            block_size_tokens,
            waiting_requests,
        ] = *words;
        Self {
            start_ns,
            prefill_requests,
            prefill_tokens,
            prefill_context_tokens,
            prefill_attention_pairs,
            prefill_completions,
            prefill_completion_context_tokens,
            decode_requests,
            decode_tokens,
            decode_context_tokens,
            sampled_requests,
            kv_active_blocks,
            kv_total_blocks,
            block_size_tokens,
            waiting_requests,
        }
    }

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
}
