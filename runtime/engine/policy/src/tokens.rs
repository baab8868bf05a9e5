//! Requests, as token sources see them, and the tokens that are wanted.

/// A request that a source will be asked for outputs of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenRequest<'a> {
    /// Names the request among those of the source: a dense number that another
    /// request gets after this one has ended.
    pub slot: u32,
    /// Derived from what the request contains, so that the same request gets
    /// the same output wherever it runs.
    pub seed: u64,
    /// The prompt's tokens.
    pub prompt: &'a [u32],
    /// The output ends with this many tokens at the latest.
    pub max_tokens: u32,
    /// Before it has this many tokens nothing ends the output.
    pub min_tokens: u32,
    /// The token that ends the output, where one does.
    pub eos_token: Option<u32>,
    /// Further tokens that end the output.
    pub stop_tokens: &'a [u32],
    /// The frontend's structured-output request as JSON, empty where there is
    /// none.
    pub structured_output: &'a str,
    /// Tokens after which reasoning must end, where the request limits them.
    pub thinking_token_budget: Option<u32>,
}

/// Output tokens wanted: `count` of them from `first_index` on.
///
/// A request is asked for each of its tokens once and in order: its first want
/// is from index 0, each further one from where the last ended.
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
    /// The first drafts of each step that verifies some, from the step of the answer
    /// on; all of them where it verifies fewer.
    pub count: u32,
}
