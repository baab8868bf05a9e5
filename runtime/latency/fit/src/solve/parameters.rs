//! The parameters of a fit, and measured times as sums of them.

use vcr_fitted::TERM_COUNT;

/// Fitted parameters: a coefficient for each term, then launches and other overheads.
pub(crate) const PARAMETERS: usize = TERM_COUNT + 5;
/// Assumed spread of launch times, because means do not show it. The H100 recordings have a standard deviation of 20 %.
pub(crate) const LAUNCH_SPREAD_PERMILLE: u32 = 350;
pub(crate) const PREFILL_LAUNCH: usize = TERM_COUNT;
/// Index of the launch of a step without a CUDA graph.
pub(crate) const LARGE_LAUNCH: usize = TERM_COUNT + 1;
/// Index of the launch time that each request adds to a prefill or large step.
pub(crate) const LAUNCH_REQUEST: usize = TERM_COUNT + 2;
pub(crate) const ARRIVAL: usize = TERM_COUNT + 3;
pub(crate) const ARRIVAL_TOKEN: usize = TERM_COUNT + 4;

pub(crate) type Row = [f64; PARAMETERS];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub(crate) row: Row,
    pub(crate) measured_ns: f64,
    /// The time to which errors are relative.
    pub(crate) scale_ns: f64,
    pub(crate) weight: f64,
}
