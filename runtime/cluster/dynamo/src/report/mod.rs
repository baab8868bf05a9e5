//! Results with Dynamo's names and definitions.
//!
//! [`Summary::of`] summarises a run. [`json`] writes the summary as the flat object of 1.4 or in the layout of 1.6,
//! with further results in an object `vcr`. [`rows`] writes a line per request. [`table`] is the table that Dynamo
//! prints. Results depend only on the run, so equal runs give equal bytes. Host times are reported only if they are
//! given.

mod distribution;
pub mod json;
pub mod rows;
mod summary;
pub mod table;
mod time;

use std::collections::BTreeMap;

pub use distribution::Distribution;
pub use summary::{Goodput, ReportSettings, Summary};
pub use time::{Phase, TimeSpent};

use vcr_cluster::Report;
use vcr_cluster::record::{Outcome, RequestRecord};

/// Layout of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportFormat {
    /// The flat object of 1.4.
    Flat1_4,
    /// The object of 1.6, with these keys and others under `summary`.
    #[default]
    Nested1_6,
}

impl std::str::FromStr for ReportFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1.4" => Ok(Self::Flat1_4),
            "1.6" => Ok(Self::Nested1_6),
            _ => Err("write 1.4 or 1.6".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;

/// Latency limits of goodput. All requests meet a limit that is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sla {
    /// Maximum milliseconds to the first token.
    pub ttft_ms: Option<f64>,
    /// Maximum mean milliseconds between the tokens of a request.
    pub itl_ms: Option<f64>,
    /// Maximum milliseconds to the last token.
    pub e2e_ms: Option<f64>,
}

impl Sla {
    /// Whether any limit is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.ttft_ms.is_some() || self.itl_ms.is_some() || self.e2e_ms.is_some()
    }

    fn is_kept_by(&self, record: &RequestRecord) -> bool {
        let keeps = |value_ms: f64, bound_ms: Option<f64>| bound_ms.is_none_or(|bound_ms| value_ms <= bound_ms);
        let since_ms = |ns: u64| (ns - record.arrival_ns) as f64 / 1e6;
        let (Some(first_ns), Some(last_ns)) = (record.first_token_ns, record.last_token_ns) else {
            // Without a token, only the limit of the end applies.
            let end_ms = record.end_ns.map(since_ms);
            let about_tokens = self.ttft_ms.is_some() || self.itl_ms.is_some();
            return !about_tokens && end_ms.is_some_and(|end_ms| keeps(end_ms, self.e2e_ms));
        };
        let gaps = record.output_tokens.saturating_sub(1);
        let itl_ms = (last_ns - first_ns) as f64 / 1e6 / f64::from(gaps.max(1));
        keeps(since_ms(first_ns), self.ttft_ms)
            && keeps(since_ms(last_ns), self.e2e_ms)
            && (gaps == 0 || keeps(itl_ms, self.itl_ms))
    }
}

/// Sums over completed requests, unless stated otherwise.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    completed: u64,
    prompt_tokens: u64,
    output_tokens: u64,
    /// Prompt tokens found cached at the first admission.
    cached_tokens: u64,
    /// Sum over requests of the maximum of cached tokens at any admission.
    most_cached_tokens: u64,
    decode_cached_tokens: u64,
    host_cached_tokens: u64,
    disk_cached_tokens: u64,
    /// Number of requests with cached tokens at the first admission.
    with_a_hit: u64,
    good: u64,
    good_output_tokens: u64,
    /// When the last request ended, completed or not.
    end_ns: u64,
    /// Number of requests that each worker served, completed or not.
    by_worker: BTreeMap<u32, u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Times {
    ttft_ns: Vec<u64>,
    ttst_ns: Vec<u64>,
    e2e_ns: Vec<u64>,
    tpot_ms: Vec<f64>,
}

impl Sums {
    fn of(report: &Report, sla: &Sla) -> Self {
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
    fn of(report: &Report, completed: u64) -> Self {
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

fn tpot_ms(record: &RequestRecord) -> Option<f64> {
    let gaps = record.output_tokens.checked_sub(1).filter(|&gaps| gaps > 0)?;
    Some((record.last_token_ns? - record.first_token_ns?) as f64 / 1e6 / f64::from(gaps))
}
