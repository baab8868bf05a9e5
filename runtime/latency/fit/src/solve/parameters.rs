//! The parameters of a fit, and measured times as sums of them.

use vcr_fitted::TERM_COUNT;

/// Fitted parameters: a coefficient for each term, then launches and other overheads.
pub(crate) const PARAMETERS: usize = TERM_COUNT + 5;
/// Spread of launches, which means alone cannot show: a standard deviation of 20 % in the H100 recordings.
pub(crate) const LAUNCH_SPREAD_PERMILLE: u32 = 350;
/// Index of the launch of a step with prefill chunks.
pub(crate) const PREFILL_LAUNCH: usize = TERM_COUNT;
/// Index of the launch of a step without a CUDA graph.
pub(crate) const LARGE_LAUNCH: usize = TERM_COUNT + 1;
/// Index of the time that each request adds to these launches.
pub(crate) const LAUNCH_REQUEST: usize = TERM_COUNT + 2;
/// Index of the constant overhead of an arrival.
pub(crate) const ARRIVAL: usize = TERM_COUNT + 3;
/// Index of the overhead of each prompt token.
pub(crate) const ARRIVAL_TOKEN: usize = TERM_COUNT + 4;

/// A value for each parameter.
pub(crate) type Row = [f64; PARAMETERS];

/// A measured time as a sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// Amount of each parameter in it.
    pub(crate) row: Row,
    /// The measured time in nanoseconds.
    pub(crate) measured_ns: f64,
    /// The time to which errors are relative, in nanoseconds.
    pub(crate) scale_ns: f64,
    /// Its weight.
    pub(crate) weight: f64,
}
