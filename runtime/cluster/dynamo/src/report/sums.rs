//! Sums over the requests of a run, taken as these are gone through once.

use std::collections::BTreeMap;

use vcr_cluster::Report;
use vcr_cluster::record::{Outcome, RequestRecord};

use super::sla::Sla;

/// Sums over all requests, and over completed ones where nothing else is said.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) completed: u64,
    pub(super) prompt_tokens: u64,
    pub(super) output_tokens: u64,
    /// Prompt tokens found cached at the first admission.
    pub(super) cached_tokens: u64,
    /// The most found at any.
    pub(super) most_cached_tokens: u64,
    pub(super) decode_cached_tokens: u64,
    pub(super) host_cached_tokens: u64,
    pub(super) disk_cached_tokens: u64,
    /// Requests of which any tokens were found at the first admission.
    pub(super) with_a_hit: u64,
    /// Those that kept the SLA.
    pub(super) good: u64,
    /// Output tokens of these.
    pub(super) good_output_tokens: u64,
    /// When the last of all requests ended.
    pub(super) end_ns: u64,
    /// All requests that each worker has served, completed or not.
    pub(super) by_worker: BTreeMap<u32, u64>,
}

/// Times of completed requests.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) ttft_ns: Vec<u64>,
    pub(super) ttst_ns: Vec<u64>,
    pub(super) e2e_ns: Vec<u64>,
    pub(super) tpot_ms: Vec<f64>,
}

impl Sums {
    pub(super) fn of(report: &Report, sla: &Sla) -> Self {
        let mut sums = Self::default();
        report.for_each_request(|record| sums.add(record, sla));
        sums
    }

    fn add(&mut self, record: &RequestRecord, sla: &Sla) {
        self.end_ns = self.end_ns.max(record.end_ns.unwrap_or(0));
        for worker in [record.prefill_worker, record.decode_worker].into_iter().flatten() {
            *self.by_worker.entry(worker).or_insert(0) += 1;
        }
        if record.outcome != Outcome::Completed {
            return;
        }
        let detail = &record.detail;
        self.completed += 1;
        for (sum, tokens) in [
            (&mut self.prompt_tokens, record.prompt_tokens),
            (&mut self.output_tokens, record.output_tokens),
            (&mut self.cached_tokens, record.cached_tokens),
            (&mut self.most_cached_tokens, detail.most_cached_tokens),
            (&mut self.decode_cached_tokens, detail.decode_cached_tokens.unwrap_or(0)),
            (&mut self.host_cached_tokens, detail.host_cached_tokens),
            (&mut self.disk_cached_tokens, detail.disk_cached_tokens),
        ] {
            *sum += u64::from(tokens);
        }
        self.with_a_hit += u64::from(record.cached_tokens > 0);
        if sla.is_set() && sla.is_kept_by(record) {
            self.good += 1;
            self.good_output_tokens += u64::from(record.output_tokens);
        }
    }
}

impl Times {
    pub(super) fn of(report: &Report, completed: u64) -> Self {
        let list = || Vec::with_capacity(completed as usize);
        let mut times =
            Self { ttft_ns: list(), ttst_ns: list(), e2e_ns: list(), tpot_ms: Vec::with_capacity(completed as usize) };
        let since = |from: Option<u64>, to: Option<u64>| Some(to? - from?);
        report.for_each_request(|record| {
            if record.outcome == Outcome::Completed {
                times.ttft_ns.extend(since(Some(record.arrival_ns), record.first_token_ns));
                times.ttst_ns.extend(since(record.first_token_ns, record.detail.second_token_ns));
                times.e2e_ns.extend(since(Some(record.arrival_ns), record.last_token_ns));
                times.tpot_ms.extend(tpot_ms(record));
            }
        });
        times
    }
}

/// Mean gap between the tokens of a request.
pub(super) fn tpot_ms(record: &RequestRecord) -> Option<f64> {
    let gaps = record.output_tokens.checked_sub(1).filter(|&gaps| gaps > 0)?;
    Some((record.last_token_ns? - record.first_token_ns?) as f64 / 1e6 / f64::from(gaps))
}
