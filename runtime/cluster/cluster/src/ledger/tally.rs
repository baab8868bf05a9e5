//! Request counts for autoscalers.

use super::record::RequestRecord;

/// Requests of the cluster's clients and their outputs so far, without those that are
/// answered as recorded: they are not a load of any engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) arrived_requests: u64,
    pub(crate) arrived_prompt_tokens: u64,
    pub(crate) arrived_output_tokens: u64,
    pub(crate) completed_requests: u64,
    pub(crate) ttft_count: u64,
    pub(crate) ttft_sum_ns: u128,
    pub(crate) token_gap_count: u64,
    pub(crate) token_gap_sum_ns: u128,
}

impl Tally {
    pub(super) fn arrived(&mut self, record: &RequestRecord) {
        self.arrived_requests += 1;
        self.arrived_prompt_tokens += u64::from(record.prompt_tokens);
        self.arrived_output_tokens += u64::from(record.max_tokens);
    }

    pub(super) fn completed(&mut self, record: &RequestRecord) {
        self.completed_requests += u64::from(record.prefill_worker.is_some());
    }

    pub(super) fn add_first_token(&mut self, after_ns: u64) {
        self.ttft_count += 1;
        self.ttft_sum_ns += u128::from(after_ns);
    }

    pub(super) fn add_gaps(&mut self, gap_ns: u64, times: u64) {
        self.add_gap_sum(gap_ns, 1, times);
    }

    /// `gaps` gaps, which sum up to `sum_ns`, of each of `requests`.
    pub(super) fn add_gap_sum(&mut self, sum_ns: u64, gaps: u64, requests: u64) {
        self.token_gap_count += gaps * requests;
        self.token_gap_sum_ns += u128::from(sum_ns) * u128::from(requests);
    }
}
