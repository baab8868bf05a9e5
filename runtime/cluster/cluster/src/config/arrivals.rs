//! When the requests, or sessions, of a synthetic workload start.

use super::curve::Curve;

/// When the requests (or sessions) of a synthetic workload start.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// `count` of them, spread evenly over `over_ns` (0: all at once).
    Burst {
        /// Their number.
        count: u64,
        /// Over how long.
        over_ns: u64,
    },
    /// At a fixed rate.
    Constant {
        /// Starts per second.
        rate_per_s: f64,
        /// When to stop.
        limit: Limit,
    },
    /// With exponential gaps.
    Poisson {
        /// Mean starts per second.
        rate_per_s: f64,
        /// When to stop.
        limit: Limit,
    },
    /// At a rate that changes over time.
    Varying {
        /// Starts per second.
        rate: Curve,
        /// How regularly they come.
        gaps: Gaps,
        /// When to stop, besides at the end of the curve.
        limit: Limit,
    },
    /// A new one whenever one ends, so that `concurrency` are in flight.
    ClosedLoop {
        /// Number in flight.
        concurrency: u64,
        /// When to stop.
        limit: Limit,
    },
    /// Users who come and go; each starts a new one whenever their last has ended.
    Users {
        /// Their number. Those who are too many leave when their last has ended.
        users: Curve,
        /// When to stop, besides at the end of the curve.
        limit: Limit,
    },
}

/// How regularly starts come, at whatever rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gaps {
    /// Equal gaps.
    Even,
    /// Exponential gaps.
    Exponential,
    /// Gamma-distributed gaps; the shape is what vLLM's benchmark calls burstiness.
    Gamma {
        /// 1 is exponential, below 1 in bursts, above 1 more even.
        shape: f64,
    },
    /// Weibull-distributed gaps.
    Weibull {
        /// 1 is exponential, below 1 in bursts, above 1 more even.
        shape: f64,
    },
}

/// End of a workload: whichever comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// After this many starts.
    pub count: Option<u64>,
    /// No starts at or after this long from the workload's start.
    pub duration_ns: Option<u64>,
}

impl Limit {
    /// Whether start number `index` may be, so long after the workload's own.
    pub(crate) fn allows(self, index: u64, elapsed_ns: u64) -> bool {
        self.count.is_none_or(|count| index < count) && self.duration_ns.is_none_or(|duration| elapsed_ns < duration)
    }
}
