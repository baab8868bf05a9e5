//! Matches, compares and judges two sets of requests.
//!
//! One side is the reference, such as a measurement; the other side is compared with it. [`join`] matches requests,
//! [`Pairs`] holds one metric's times on both sides, [`compare`] computes statistics with confidence intervals, and
//! a [`Gate`] limits an error. [`Figures`] hold a side of which only summary figures are known. [`captures`] lists
//! the fields in which two captures of the same traffic differ. This crate opens no files and prints nothing.

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
