//! Reasons for which requests are refused.

/// Why a request was not accepted, or would never end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum RejectReason {
    /// There is nothing to compute.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// vLLM refuses a prompt that leaves no room for an output token.
    #[error("the prompt leaves no room for output within `max_model_len`")]
    PromptTooLong,
    /// Prompt and output exceed the whole pool.
    #[error("prompt and output together need more KV blocks than the engine has")]
    ExceedsKvPool,
    /// The prompt and what is reserved for its output leave nothing of the pool:
    /// SGLang's scheduler would never admit it.
    #[error("the prompt and the reserve for its output together need all KV pages of the engine or more")]
    ExceedsKvReserve,
    /// Without chunking prompt and output must fit into one step, in which they
    /// are computed again after a preemption.
    #[error("prompt and output together exceed `max_num_batched_tokens` and chunked prefill is off")]
    ExceedsTokenBudget,
    /// The step that computes a later chunk of a prompt leaves the last position of
    /// the model's length free, so a prompt without output that fills it never ends
    /// (vLLM issue 47971, open in 0.33).
    #[error("the prompt fills `max_model_len` and has no output: chunked prefill never computes its last token")]
    LastTokenNeverComputed,
    /// The scheduler admits no part of a prompt.
    #[error("the prompt exceeds `prefill_tokens_per_tick`, and prompts are not split")]
    ExceedsPrefillBudget,
    /// The scheduler has no KV of other engines.
    #[error("the request's KV comes from another engine or goes there, which this scheduler cannot do")]
    KvTransfersOff,
    /// vLLM's engine core stops with an assertion here; this one goes on with
    /// the request it has.
    #[error("a request of the same number is under way")]
    DuplicateRequest,
    /// The request names an adapter, but `max_loras` is 0.
    #[error("the request names an adapter, but the engine has none")]
    AdaptersOff,
}
