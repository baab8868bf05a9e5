//! Token times of requests that an engine decodes steadily.
//!
//! An engine does not list their outputs ([`vcr_core::DrawnOutputs`]). All of them got
//! their latest token at the end of the engine's latest step, so a step counts them by
//! workload; a request's tokens are entered into its record when it leaves.

/// Times of one engine's steady decode.
#[derive(Debug, Default)]
pub(super) struct SteadyDecode {
    /// End of the engine's latest step.
    last_end_ns: u64,
    /// Requests that have one token and get the second one here.
    with_one_token: Vec<u64>,
}

impl SteadyDecode {
    pub(super) fn last_end_ns(&self) -> u64 {
        self.last_end_ns
    }

    /// Records that the engine's latest step ends at `end_ns`. Returns the end of the step before.
    pub(super) fn advance(&mut self, end_ns: u64) -> u64 {
        std::mem::replace(&mut self.last_end_ns, end_ns)
    }

    /// Requests with one token join.
    pub(super) fn join(&mut self, tags: &[u64]) {
        self.with_one_token.extend_from_slice(tags);
    }

    /// A request leaves before its second token.
    pub(super) fn leave(&mut self, tag: u64) {
        self.with_one_token.retain(|&other| other != tag);
    }

    /// The requests that get their second token now.
    pub(super) fn take_with_one_token(&mut self) -> impl Iterator<Item = u64> {
        self.with_one_token.drain(..)
    }
}
