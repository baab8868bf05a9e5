//! The clock of a run in real time.

use vcr_wire::monotonic_ns;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin_ns: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin_ns: monotonic_ns() }
    }

    pub(crate) fn now_ns(self) -> u64 {
        monotonic_ns() - self.origin_ns
    }

    /// Converts a time of the run to the system's monotonic clock, in nanoseconds.
    pub(crate) fn monotonic_ns(self, at_ns: u64) -> u64 {
        self.origin_ns.saturating_add(at_ns)
    }

    /// Converts nanoseconds on the system's monotonic clock to a time of the run.
    pub(crate) fn of_monotonic_ns(self, ns: u64) -> u64 {
        ns.saturating_sub(self.origin_ns)
    }

    /// Converts seconds on the system's monotonic clock to a time of the run.
    pub(crate) fn of_monotonic_s(self, seconds: f64) -> u64 {
        self.of_monotonic_ns((seconds * 1e9) as u64)
    }
}
