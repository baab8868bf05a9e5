//! Token counts of responses.

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) completion_tokens: usize,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

impl Usage {
    pub(crate) fn new(prompt_tokens: usize, completion_tokens: usize, cached_tokens: Option<usize>) -> Self {
        Self {
            prompt_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            completion_tokens,
            prompt_tokens_details: cached_tokens.map(|cached_tokens| PromptDetails { cached_tokens }),
            completion_tokens_details: CompletionDetails { reasoning_tokens: 0 },
        }
    }

    /// Sets how many output tokens are reasoning.
    pub(crate) fn with_reasoning(self, reasoning_tokens: usize) -> Self {
        Self { completion_tokens_details: CompletionDetails { reasoning_tokens }, ..self }
    }
    /// The number of cached prompt tokens, if the response contains it.
    pub(crate) fn cached_tokens(self) -> usize {
        self.prompt_tokens_details.map_or(0, |details| details.cached_tokens)
    }

    pub(crate) fn reasoning_tokens(self) -> usize {
        self.completion_tokens_details.reasoning_tokens
    }
}
