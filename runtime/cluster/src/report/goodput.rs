//! Goodput: the requests that completed within latency limits.

use super::Report;
use crate::ledger::record::{Outcome, RequestRecord};

/// A latency of one request that a limit can be set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SloMetric {
    /// From arrival to the first output token.
    Ttft,
    /// Mean gap between its output tokens; a request with a single token has none
    /// and keeps every limit.
    Tpot,
    /// From arrival to the last output token.
    E2e,
    /// From reaching the queue to the first step with the request in it.
    Queue,
}

impl SloMetric {
    /// The latency of a completed request in nanoseconds, if it has it.
    fn of(self, record: &RequestRecord) -> Option<u64> {
        let since_arrival = |at_ns: Option<u64>| Some(at_ns? - record.arrival_ns);
        match self {
            Self::Ttft => since_arrival(record.first_token_ns),
            Self::E2e => since_arrival(record.last_token_ns),
            Self::Queue => Some(record.scheduled_ns? - record.queued_ns),
            Self::Tpot => {
                let gaps = u64::from(record.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?);
                Some((record.last_token_ns? - record.first_token_ns?) / gaps)
            }
        }
    }
}

/// How many requests completed within all limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goodput {
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that completed within all limits.
    pub good: u64,
}

impl Report {
    /// Counts the requests, of all workloads or of one, that completed and kept
    /// every limit as `keeps` says of a latency in nanoseconds.
    #[must_use]
    pub fn goodput(&self, workload: Option<&str>, limits: &[(SloMetric, &dyn Fn(u64) -> bool)]) -> Goodput {
        let index = workload.map(|name| self.workload_names.iter().position(|known| known == name));
        let is_of = |record: &&RequestRecord| index.is_none_or(|index| index == Some(record.workload as usize));
        let mut goodput = Goodput::default();
        for record in self.requests.iter().filter(is_of) {
            goodput.arrived += 1;
            let keeps_all = || limits.iter().all(|(metric, keeps)| metric.of(record).is_none_or(keeps));
            goodput.good += u64::from(record.outcome == Outcome::Completed && keeps_all());
        }
        goodput
    }
}
