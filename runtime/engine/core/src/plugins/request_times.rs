//! Per-request times, for engines that do not price steps.
//!
//! With a latency model, all requests of a step wait for the end of the step. A source of request times instead gives
//! the time of each request's next token, independent of the other requests. See
//! [`crate::Engine::set_request_times`].

/// A token that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextToken {
    /// Number of the request within its engine.
    pub request: u64,
    /// Number of known tokens before it. With `request`, this identifies the token.
    pub position: u32,
    /// Number of tokens to compute before it, if it ends a prefill: a prompt, or tokens lost in a preemption.
    pub prefill_tokens: Option<u32>,
    /// Number of running requests, including this one.
    pub running_requests: u32,
}

/// Returns how long requests wait for their tokens.
///
/// One instance belongs to one engine. The answer must depend only on the token, not on earlier calls, because
/// the call is repeated for a request that cannot be admitted.
pub trait RequestTimes: Send + std::fmt::Debug {
    /// Nanoseconds until this token. If it is the first token since the request's admission, the time counts from the
    /// admission, otherwise from the previous token.
    fn until_next_ns(&self, token: &NextToken) -> u64;
}
