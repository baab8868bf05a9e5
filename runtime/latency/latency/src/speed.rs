//! Scales a model's times by a speed.

use crate::duration::divided_ns;
use crate::problem::Problems;
use vcr_core::latency::LatencyError;

/// Divisors of modelled times, as in Dynamo. Dynamo treats a ratio of 0 or less as 1; here it is an error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedInput {
    /// Divides all times; above 0.
    pub speedup_ratio: f64,
    /// Also divides decode times; above 0.
    pub decode_speedup_ratio: f64,
}

impl Default for SpeedInput {
    fn default() -> Self {
        SpeedInput { speedup_ratio: 1.0, decode_speedup_ratio: 1.0 }
    }
}

impl SpeedInput {
    pub(crate) fn check(&self, problems: &mut Problems) {
        problems.positive("speedup_ratio", self.speedup_ratio);
        problems.positive("decode_speedup_ratio", self.decode_speedup_ratio);
    }

    #[inline]
    pub(crate) fn prefill_ns(&self, model: &str, ms: f64) -> Result<u64, LatencyError> {
        divided_ns(model, "prefill", ms, self.speedup_ratio)
    }

    #[inline]
    pub(crate) fn decode_ns(&self, model: &str, ms: f64) -> Result<u64, LatencyError> {
        let ratio = self.speedup_ratio * self.decode_speedup_ratio;
        divided_ns(model, "decode", ms, ratio)
    }
}
