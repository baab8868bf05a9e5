//! The minimum memory of a run, estimated before the run begins.
//!
//! Requests of open workloads are drawn when they arrive, so memory grows with the number of ended requests: their
//! records, and the samples of the metrics. A burst is held as a whole, because all its requests wait at once.

use std::mem::size_of;

use vcr_core::RequestSpec;
use vcr_trace::TraceRequest;

use crate::config::{Arrivals, Limit, RunConfig, SyntheticInput, TracePacing, WorkloadConfig, WorkloadSource};
use crate::in_flight::Live;
use crate::ledger::record::RequestRecord;

/// Samples of the metrics for each request, such as TTFT and queue time, take four to eight bytes each, or fewer if
/// samples are similar. Measured with outputs of one token.
const SAMPLE_BYTES: u64 = 16;

/// The record of an ended request, its slot among the requests in flight, and the seed of its output.
const RECORD_BYTES: u64 = (size_of::<RequestRecord>() + size_of::<Option<Box<Live>>>() + size_of::<u64>()) as u64;
/// Minimum size of a packed record with its slot and seed. Measured sizes: 25 to 35.
const PACKED_BYTES: u64 = 20;

/// Minimum number of requests of a run, and their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The requests.
    pub requests: u64,
    /// Memory for them, in bytes.
    pub bytes: u64,
}

impl MemoryEstimate {
    /// The sum of two estimates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { requests: self.requests.saturating_add(other.requests), bytes: self.bytes.saturating_add(other.bytes) }
    }

    fn ended(requests: u64) -> Self {
        Self { requests, bytes: requests.saturating_mul(RECORD_BYTES + SAMPLE_BYTES) }
    }

    /// The same number of requests, with packed records.
    fn packed(self) -> Self {
        Self { bytes: self.bytes.saturating_sub(self.requests.saturating_mul(RECORD_BYTES - PACKED_BYTES)), ..self }
    }

    fn waiting(requests: u64) -> Self {
        let each = (size_of::<Live>() + size_of::<RequestSpec>()) as u64;
        let ended = Self::ended(requests);
        Self { bytes: ended.bytes.saturating_add(requests.saturating_mul(each)), ..ended }
    }
}

impl RunConfig {
    /// The minimum memory of the run, without its engines. Later turns of sessions and closed loops with a time
    /// limit may need more.
    #[must_use]
    pub fn memory_estimate(&self) -> MemoryEstimate {
        let each = self.workloads.iter().map(|workload| workload.memory_estimate(self.max_time_ns));
        let estimate = each.fold(MemoryEstimate::default(), MemoryEstimate::plus);
        if self.packs_records_of(estimate.requests) { estimate.packed() } else { estimate }
    }
}

impl WorkloadConfig {
    fn memory_estimate(&self, max_time_ns: Option<u64>) -> MemoryEstimate {
        // The time from the workload's start to the end of the run.
        let time_ns = max_time_ns.map_or(u64::MAX, |max| max.saturating_sub(self.start_ns));
        match &self.source {
            WorkloadSource::Synthetic { arrivals, .. } => match arrivals {
                Arrivals::Burst { count, over_ns } => {
                    let share = if time_ns >= *over_ns { 1.0 } else { time_ns as f64 / *over_ns as f64 };
                    let arriving = (*count as f64 * share) as u64;
                    if *over_ns == 0 { MemoryEstimate::waiting(arriving) } else { MemoryEstimate::ended(arriving) }
                }
                Arrivals::Constant { rate_per_s, limit } | Arrivals::Poisson { rate_per_s, limit } => {
                    MemoryEstimate::ended(limit.starts(*rate_per_s, time_ns))
                }
                Arrivals::Varying { rate, limit, .. } => {
                    let time_ns = limit.duration_ns.unwrap_or(u64::MAX).min(time_ns);
                    let time_ns = rate.duration_ns().unwrap_or(u64::MAX).min(time_ns);
                    // A workload without a time limit has a limit on its number of starts.
                    let by_time = if time_ns == u64::MAX { u64::MAX } else { rate.area(time_ns) as u64 };
                    MemoryEstimate::ended(limit.count.unwrap_or(u64::MAX).min(by_time))
                }
                Arrivals::Users { limit, .. } => MemoryEstimate::ended(limit.count.unwrap_or(0).min(1)),
                Arrivals::ClosedLoop { concurrency, limit } => {
                    let count = limit.count.unwrap_or(u64::MAX);
                    let at_once = MemoryEstimate::waiting((*concurrency).min(count));
                    // If time ends the workload, the number of further arrivals depends on the engines.
                    let all = limit.count.filter(|_| limit.duration_ns.is_none() && max_time_ns.is_none());
                    let later = all.map_or(0, |count| count.saturating_sub(at_once.requests));
                    at_once.plus(MemoryEstimate::ended(later))
                }
            },
            WorkloadSource::Generated(input) => input.memory_estimate(max_time_ns, time_ns),
            WorkloadSource::Trace { trace, pacing, copies, .. } => {
                let rows = match (max_time_ns, pacing) {
                    (_, TracePacing::Profile(profile)) if profile.duration_ns.is_some() => 0,
                    (None, _) => trace.requests.len(),
                    (Some(_), TracePacing::ClosedLoop { .. } | TracePacing::Profile(_)) => 0,
                    (Some(_), TracePacing::Recorded { .. }) => {
                        let arrives = |request: &&TraceRequest| {
                            request.dependencies.len == 0
                                && request.arrival_ns.is_some_and(|at_ns| pacing.scale(at_ns) <= time_ns)
                        };
                        trace.requests.iter().filter(arrives).count()
                    }
                };
                MemoryEstimate::ended((rows as u64).saturating_mul(u64::from(*copies)))
            }
        }
    }
}

impl Limit {
    /// The mean number of starts at a constant rate within a time.
    fn starts(self, rate_per_s: f64, time_ns: u64) -> u64 {
        let time_ns = self.duration_ns.unwrap_or(u64::MAX).min(time_ns);
        let by_time = (rate_per_s * (time_ns as f64 / 1e9)) as u64;
        self.count.unwrap_or(u64::MAX).min(by_time)
    }
}

impl SyntheticInput {
    /// Minimum memory of the workload in a run that ends at `time_ns`.
    fn memory_estimate(&self, max_time_ns: Option<u64>, time_ns: u64) -> MemoryEstimate {
        let count = u64::from(self.request_count);
        let speedup = self.arrival_speedup_ratio;
        match (max_time_ns, self.replay_concurrency) {
            (None, None) => MemoryEstimate::ended(self.num_requests()),
            (None, Some(concurrency)) => {
                let at_once = MemoryEstimate::waiting(concurrency.min(count));
                at_once.plus(MemoryEstimate::ended(self.num_requests().saturating_sub(at_once.requests)))
            }
            // If time ends the workload, the number of further arrivals depends on the engines.
            (Some(_), Some(concurrency)) => MemoryEstimate::waiting(concurrency.min(count)),
            (Some(_), None) => {
                let rate_per_s = match (self.request_rate, self.arrival_interval_ms) {
                    (Some(rate_per_s), _) => rate_per_s,
                    (None, Some(interval_ms)) => 1e3 / interval_ms,
                    (None, None) => f64::INFINITY,
                };
                MemoryEstimate::ended(((rate_per_s * speedup * (time_ns as f64 / 1e9)) as u64).min(count))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vcr_base::random::Distribution;

    use super::*;
    use crate::config::RequestMix;

    fn requests(arrivals: Arrivals, max_time_ns: Option<u64>) -> u64 {
        let one = Distribution::Constant { value: 1.0 };
        let source = WorkloadSource::Synthetic { arrivals, classes: RequestMix::new(one, one).into() };
        let workload = WorkloadConfig { start_ns: 1_000_000_000, ..WorkloadConfig::new("w", source) };
        let estimate = workload.memory_estimate(max_time_ns);
        assert!(estimate.bytes >= estimate.requests * 300, "{estimate:?}");
        estimate.requests
    }

    #[test]
    fn only_what_is_sure_to_arrive_is_counted() {
        const S: u64 = 1_000_000_000;
        let limit = |count, seconds: Option<u64>| Limit { count, duration_ns: seconds.map(|s| s * S) };
        let poisson = |limit| Arrivals::Poisson { rate_per_s: 1e6, limit };
        assert_eq!(requests(poisson(limit(None, Some(3600))), None), 3_600_000_000);
        assert_eq!(requests(poisson(limit(Some(10), Some(3600))), None), 10);
        assert_eq!(requests(poisson(limit(None, Some(3600))), Some(3 * S)), 2_000_000);
        assert_eq!(requests(poisson(limit(None, Some(3600))), Some(S / 2)), 0);
        assert_eq!(requests(Arrivals::Burst { count: 100, over_ns: 0 }, None), 100);
        assert_eq!(requests(Arrivals::Burst { count: 100, over_ns: 10 * S }, Some(2 * S)), 10);
        let closed = |limit| Arrivals::ClosedLoop { concurrency: 8, limit };
        assert_eq!(requests(closed(limit(Some(100), None)), None), 100);
        assert_eq!(requests(closed(limit(Some(100), None)), Some(S)), 8);
        assert_eq!(requests(closed(limit(None, Some(1))), None), 8);
    }
}
