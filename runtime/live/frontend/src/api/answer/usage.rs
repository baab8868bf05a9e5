//! Counts of tokens in answers.

use serde::Serialize;

/// Tokens of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(in crate::api) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

impl Usage {
    pub(in crate::api) fn new(prompt_tokens: usize, completion_tokens: usize, cached_tokens: Option<usize>) -> Self {
        Self {
            prompt_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            completion_tokens,
            prompt_tokens_details: cached_tokens.map(|cached_tokens| PromptDetails { cached_tokens }),
            completion_tokens_details: CompletionDetails { reasoning_tokens: 0 },
        }
    }

    /// The same with this many of its output tokens as reasoning.
    pub(in crate::api) fn with_reasoning(self, reasoning_tokens: usize) -> Self {
        Self { completion_tokens_details: CompletionDetails { reasoning_tokens }, ..self }
    }
}
