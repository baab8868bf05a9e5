//! Token times of requests in an engine's steady decode.
//!
//! An engine does not list the outputs of these requests ([`vcr_core::DrawnOutputs`]). Each of them got its latest
//! token at the end of the engine's latest step, so a step only counts them by workload. The tokens of a request
//! are added to its record when it leaves the steady decode.

#[derive(Debug, Default)]
pub(super) struct SteadyDecode {
    /// End of the engine's latest step.
    last_end_ns: u64,
    /// Requests that have one token and get their second token in the steady decode.
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

    /// Adds requests with one token.
    pub(super) fn join(&mut self, tags: &[u64]) {
        self.with_one_token.extend_from_slice(tags);
    }

    /// Removes a request that leaves before its second token.
    pub(super) fn leave(&mut self, tag: u64) {
        self.with_one_token.retain(|&other| other != tag);
    }

    /// Takes the requests that get their second token now.
    pub(super) fn take_with_one_token(&mut self) -> impl Iterator<Item = u64> {
        self.with_one_token.drain(..)
    }
}
