//! Steps of engines in real time, in a ledger that has not followed them.

use super::Ledger;
use super::metrics::{Counter, Samples, Trend};

/// The steps of engines that are not those of virtual time.
#[derive(Clone, Debug, Default)]
pub struct StepFacts {
    /// Duration of each, in nanoseconds.
    pub durations_ns: Samples,
    /// Requests in each.
    pub batches: Samples,
    /// Stalls of engines.
    pub stalls: u64,
}

impl Ledger {
    /// Takes the steps of engines whose run this ledger has not followed.
    pub(crate) fn take_steps(&mut self, steps: StepFacts) {
        let StepFacts { durations_ns, batches, stalls } = steps;
        self.step_metrics.take(Trend::StepTime, durations_ns);
        self.step_metrics.take(Trend::BatchSize, batches);
        self.step_metrics.add(Counter::Stalls, stalls);
    }
}
