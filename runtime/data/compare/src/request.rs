//! Requests in the form in which they are compared.

use vcr_trace::capture::{CaptureMeta, RequestRecord};

use crate::join::Identity;
use crate::metric::Metric;

/// One request. Times are in nanoseconds since the arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Keys that match the request with one of the other side.
    pub identity: Identity,
    /// Time of arrival, if known.
    pub arrival_ns: Option<u64>,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Length of the answer.
    pub output_tokens: u32,
    /// Number of prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
    /// Time to the first token.
    pub ttft_ns: Option<u64>,
    /// Time to the last token.
    pub e2e_ns: Option<u64>,
    /// Time to the admission.
    pub queue_ns: Option<u64>,
    /// Whether the answer is complete. Requests with incomplete answers are not compared.
    pub is_whole: bool,
}

impl Request {
    /// Converts a request of a capture.
    #[must_use]
    pub fn of_record(record: &RequestRecord) -> Self {
        let outputs = record.ttft_ns.and_then(|_| record.output_times()).unwrap_or_default();
        // Without gaps, only the time of the first output is known. The time of the last output is then unknown.
        let known_tokens: u64 = outputs.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
        let is_known = known_tokens >= u64::from(record.output_tokens);
        let last_ns = outputs.last().filter(|_| is_known).map(|(after_ns, _)| *after_ns);
        let failed = matches!(record.finish_reason.as_deref(), Some("abort" | "error")) || record.error.is_some();
        Self {
            identity: Identity {
                turn: None,
                prompt_hash: record.prompt_hash.map(|hash| hash.0),
                blocks: (record.prompt_tokens, record.block_hashes.iter().map(|hash| hash.0).collect()),
                lengths: Some((record.prompt_tokens, record.output_tokens)),
                name: record.external_id.clone().or_else(|| record.id.clone()),
            },
            arrival_ns: record.arrival_ns,
            prompt_tokens: record.prompt_tokens,
            output_tokens: record.output_tokens,
            cached_tokens: record.cached_tokens,
            ttft_ns: record.ttft_ns,
            e2e_ns: last_ns.or(record.end_ns),
            queue_ns: record.queue_ns,
            is_whole: record.is_over() && !failed,
        }
    }

    /// The time that a metric measures, in nanoseconds.
    #[must_use]
    pub fn time_ns(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::Ttft => self.ttft_ns.map(|ns| ns as f64),
            Metric::Itl => {
                let gaps = self.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
                Some(self.e2e_ns?.checked_sub(self.ttft_ns?)? as f64 / f64::from(gaps))
            }
            Metric::E2e => self.e2e_ns.map(|ns| ns as f64),
            Metric::Queue => self.queue_ns.map(|ns| ns as f64),
        }
    }
}

/// One side of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    /// Requests in order of arrival. Requests of unknown arrival come last, in their original order.
    requests: Vec<Request>,
    /// Scheme and block size of the prompt hashes; None without hashes.
    hashes: Option<String>,
}

impl Requests {
    /// Takes requests in any order whose prompts have no hashes.
    #[must_use]
    pub fn new(mut requests: Vec<Request>) -> Self {
        requests.sort_by_key(|request| (request.arrival_ns.is_none(), request.arrival_ns));
        Self { requests, hashes: None }
    }

    /// Takes the requests of a capture.
    #[must_use]
    pub fn of_capture(meta: &CaptureMeta, requests: Vec<Request>) -> Self {
        let hashes = Some(format!("{:?} {:?}", meta.hash, meta.block_size_tokens));
        Self { hashes, ..Self::new(requests) }
    }

    /// All requests, in order of arrival.
    #[must_use]
    pub fn all(&self) -> &[Request] {
        &self.requests
    }

    pub(crate) fn has_hashes_of(&self, other: &Self) -> bool {
        self.hashes.is_some() && self.hashes == other.hashes
    }

    /// Time from the first arrival to the last token; None if either is unknown.
    pub(crate) fn duration_ns(&self) -> Option<u64> {
        let first_ns = self.requests.iter().map(|request| request.arrival_ns).min()??;
        let end = |request: &Request| Some(request.arrival_ns? + request.e2e_ns?);
        Some(self.requests.iter().filter_map(end).max()?.saturating_sub(first_ns))
    }

    /// Output tokens of complete answers, divided by [`duration_ns`](Self::duration_ns) in seconds.
    pub(crate) fn tokens_per_s(&self) -> Option<f64> {
        let seconds = self.duration_ns().filter(|ns| *ns > 0)? as f64 / 1e9;
        let whole = self.requests.iter().filter(|request| request.is_whole);
        Some(whole.map(|request| f64::from(request.output_tokens)).sum::<f64>() / seconds)
    }
}
