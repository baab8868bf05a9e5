//! Requests, as token sources see them, and the tokens that are wanted.

/// A request that a source will be asked for outputs of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenRequest<'a> {
    /// Index of the request in the source: a dense number that is reused after the request has
    /// ended.
    pub slot: u32,
    /// Derived from the request's contents, so the same request gets the same output on every
    /// engine.
    pub seed: u64,
    /// The prompt's tokens.
    pub prompt: &'a [u32],
    /// The output ends with this many tokens at the latest.
    pub max_tokens: u32,
    /// Before it has this many tokens nothing ends the output.
    pub min_tokens: u32,
    /// The token that ends the output, if there is one.
    pub eos_token: Option<u32>,
    /// Further tokens that end the output.
    pub stop_tokens: &'a [u32],
    /// The frontend's structured-output request as JSON, or empty.
    pub structured_output: &'a str,
    /// The most reasoning tokens, if the request limits them.
    pub thinking_token_budget: Option<u32>,
}

/// Wanted output tokens: `count` of them from `first_index` on.
///
/// Each token of a request is wanted once and in order: its first want starts at index 0, each further one at
/// the end of the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenWant {
    /// The request, started in this call or before and not ended.
    pub slot: u32,
    /// Index of the first of them in the request's output.
    pub first_index: u32,
    /// Their number; at least one.
    pub count: u32,
}

/// Drafts of a request that its source has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedDrafts {
    /// The request, started in this call or before and not ended.
    pub slot: u32,
    /// The first drafts of each step that verifies some, from the step of the answer on; all drafts if it
    /// verifies fewer.
    pub count: u32,
}
