//! Steps in flight, and what becomes of them.

use vcr_core::latency::StepShape;
use vcr_wire::IterationDetails;

use crate::stepping::results::StepResults;

/// A step on the imagined GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) shape: StepShape,
    /// Whether its end is right for the host's launches, if they take time.
    pub(super) is_paced: bool,
}

impl Flight {
    pub(super) fn new(start_ns: u64, duration_ns: u64, shape: StepShape) -> Self {
        Self { start_ns, end_ns: start_ns.saturating_add(duration_ns), shape, is_paced: false }
    }

    /// The step before it ends so much later, or earlier.
    pub(super) fn shift(&mut self, by_ns: i64) {
        self.start_ns = self.start_ns.saturating_add_signed(by_ns);
        self.end_ns = self.end_ns.saturating_add_signed(by_ns);
    }
}

/// A step that has ended and is to be applied.
pub(crate) struct DueStep {
    pub(super) flight: Flight,
    pub(super) details: Option<IterationDetails>,
}

/// A step whose outputs have been gathered.
pub(crate) struct AppliedStep {
    pub(super) flight: Flight,
    pub(crate) details: Option<IterationDetails>,
    pub(crate) results: StepResults,
}

impl AppliedStep {
    /// Its duration on the clock of the latency model.
    pub(crate) fn duration_ns(&self) -> u64 {
        self.flight.end_ns - self.flight.start_ns
    }
}
