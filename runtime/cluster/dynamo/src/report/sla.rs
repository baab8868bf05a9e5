//! Latency limits that requests keep or miss.

use vcr_cluster::record::RequestRecord;

/// Latency limits of goodput; a limit that is not set is met by all requests.
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

    pub(super) fn is_kept_by(&self, record: &RequestRecord) -> bool {
        let keeps = |value_ms: f64, bound_ms: Option<f64>| bound_ms.is_none_or(|bound_ms| value_ms <= bound_ms);
        let since_ms = |ns: u64| (ns - record.arrival_ns) as f64 / 1e6;
        let (Some(first_ns), Some(last_ns)) = (record.first_token_ns, record.last_token_ns) else {
            // Without a token only the limit of the end applies.
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
