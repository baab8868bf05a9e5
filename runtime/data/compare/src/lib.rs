//! Two sets of requests: joined, compared, judged.
//!
//! One side is the reference, such as what was measured; the other side is compared with it.
//! [`join`] says which request is which, [`Pairs`] holds the times of both sides of a metric,
//! [`compare`] sums them up with intervals, and a [`Gate`] limits an error. [`Figures`] are
//! for sides that are known only by sums. [`captures`] lists the fields in which two captures of
//! the same traffic differ. This crate opens no files and prints nothing.

mod bootstrap;
pub mod captures;
mod comparison;
mod distance;
mod figures;
mod gate;
mod join;
mod metric;
mod pairs;
mod percentile;
mod request;

pub use bootstrap::Interval;
pub use comparison::{
    CompareError, CompareOptions, Compared, Estimate, MetricComparison, ThroughputComparison, compare,
};
pub use distance::{ks, wasserstein};
pub use figures::{Change, Figures, MaxRegression};
pub use gate::{Gate, Subject};
pub use join::{Identity, Joined, MatchRule, join};
pub use metric::{Metric, Statistic};
pub use pairs::{Comparison, NEAR_ZERO_MS, Pairs, pearson};
pub use percentile::{PercentileChange, percentile_change};
pub use request::{Request, Requests};
