//! Times of single requests, for engines that do not price steps.
//!
//! A latency model prices a step, and all requests of the step wait for its end. A
//! source of request times says instead when each request has its next token, whatever
//! else the engine does. See [`crate::Engine::set_request_times`].

/// A token that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextToken {
    /// Number of the request among those submitted to its engine.
    pub request: u64,
    /// Known tokens before it: with `request` the identity of the token.
    pub position: u32,
    /// Tokens to compute before it, if it ends a prefill: a prompt, or what a
    /// preemption has lost.
    pub prefill_tokens: Option<u32>,
    /// Running requests, this one included.
    pub running_requests: u32,
}

/// Says how long requests wait for their tokens.
///
/// One instance belongs to one engine. The answer depends on the token alone, not on
/// earlier calls: what is asked when a request cannot be admitted is asked again.
pub trait RequestTimes: Send + std::fmt::Debug {
    /// Nanoseconds to this token: from the admission of the request if it is the first
    /// since then, otherwise from the token before it.
    fn until_next_ns(&self, token: &NextToken) -> u64;
}
