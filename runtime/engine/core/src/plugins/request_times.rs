//! Times of single requests, for engines that do not price steps.
//!
//! A latency model prices a step, and all requests of the step wait for its end. A source of
//! request times instead gives the time of each request's next token, independent of the other
//! requests. See [`crate::Engine::set_request_times`].

/// A token that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextToken {
    /// Number of the request within its engine.
    pub request: u64,
    /// Known tokens before it: with `request` the identity of the token.
    pub position: u32,
    /// Tokens to compute before it, if it ends a prefill: a prompt, or tokens lost in a preemption.
    pub prefill_tokens: Option<u32>,
    /// Running requests, this one included.
    pub running_requests: u32,
}

/// Returns how long requests wait for their tokens.
///
/// One instance belongs to one engine. The answer depends only on the token, not on earlier calls:
/// a question about a request that cannot be admitted is repeated.
pub trait RequestTimes: Send + std::fmt::Debug {
    /// Nanoseconds to this token: from the admission of the request if it is the first
    /// since then, otherwise from the token before it.
    fn until_next_ns(&self, token: &NextToken) -> u64;
}
