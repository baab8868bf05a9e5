//! Requests that token sources receive, and the tokens that are wanted from them.

/// A request for which a source will choose outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenRequest<'a> {
    /// Slot of the request. Slots are dense numbers, which are reused after a request has
    /// ended.
    pub slot: u32,
    /// Seed derived from the request's contents, so that the same request gets the same output on every
    /// engine.
    pub seed: u64,
    /// The prompt's tokens.
    pub prompt: &'a [u32],
    /// Maximum number of output tokens.
    pub max_tokens: u32,
    /// Number of output tokens before which nothing ends the output.
    pub min_tokens: u32,
    /// The end-of-sequence token, if there is one.
    pub eos_token: Option<u32>,
    /// Further tokens that end the output.
    pub stop_tokens: &'a [u32],
    /// The frontend's structured-output request as JSON, or empty.
    pub structured_output: &'a str,
    /// Maximum number of reasoning tokens, if the request limits it.
    pub thinking_token_budget: Option<u32>,
}

/// Output tokens that are wanted from a source: `count` tokens from `first_index` on.
///
/// Each token of a request is wanted once and in order. The first want of a request starts at index 0, and each further
/// one at the end of the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenWant {
    /// Slot of the request, which started in this call or before and has not ended.
    pub slot: u32,
    /// Index of the first wanted token in the request's output.
    pub first_index: u32,
    /// Number of wanted tokens, at least one.
    pub count: u32,
}

/// Number of drafts of a request that its source accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedDrafts {
    /// Slot of the request, which started in this call or before and has not ended.
    pub slot: u32,
    /// Number of first drafts that are accepted in each step that verifies drafts, from the step of this answer on. If
    /// a step verifies fewer drafts, all are accepted.
    pub count: u32,
}
