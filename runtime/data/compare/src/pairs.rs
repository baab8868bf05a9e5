//! The values of one metric on both sides, request by request.

use serde::Serialize;

use crate::metric::{Metric, Statistic};

/// One metric of all requests in which it is known on both sides, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs {
    /// The metric.
    pub metric: Metric,
    /// Times (measured, simulated), in order of the requests' arrival.
    pub pairs: Vec<(f64, f64)>,
}

impl Pairs {
    /// Computes a statistic of both sides.
    #[must_use]
    pub fn compare(&self, statistic: Statistic) -> Comparison {
        let side = |side: fn(&(f64, f64)) -> f64| statistic.of(self.pairs.iter().map(side).collect());
        let (measured_ns, simulated_ns) = (side(|pair| pair.0), side(|pair| pair.1));
        Comparison { metric: self.metric, statistic, measured_ms: measured_ns / 1e6, simulated_ms: simulated_ns / 1e6 }
    }

    /// Mean of the absolute errors of single requests, relative to the measured time. Measured times below
    /// [`NEAR_ZERO_MS`] count as [`NEAR_ZERO_MS`], as in [`Comparison::error`].
    #[must_use]
    pub fn mape(&self) -> f64 {
        let errors =
            self.pairs.iter().map(|(measured, simulated)| relative_error(measured / 1e6, simulated / 1e6).abs());
        errors.sum::<f64>() / self.pairs.len().max(1) as f64
    }

    /// Pearson's correlation over single requests; None if a side does not vary.
    #[must_use]
    pub fn pearson(&self) -> Option<f64> {
        pearson(&self.pairs)
    }

    /// The measured times and the simulated times.
    #[must_use]
    pub fn sides(&self) -> (Vec<f64>, Vec<f64>) {
        self.pairs.iter().copied().unzip()
    }
}

/// Pearson's correlation of pairs; None if a side does not vary.
#[must_use]
pub fn pearson(pairs: &[(f64, f64)]) -> Option<f64> {
    let count = pairs.len() as f64;
    let mean = |side: fn(&(f64, f64)) -> f64| pairs.iter().map(side).sum::<f64>() / count;
    let (mean_m, mean_s) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let (mut mm, mut ss, mut ms) = (0.0, 0.0, 0.0);
    for (m, s) in pairs {
        mm += (m - mean_m) * (m - mean_m);
        ss += (s - mean_s) * (s - mean_s);
        ms += (m - mean_m) * (s - mean_s);
    }
    (mm > 0.0 && ss > 0.0).then(|| ms / (mm * ss).sqrt())
}

/// Measured times below this limit count as this limit in relative errors. Admission from an empty queue takes
/// about a hundredth of a millisecond, and users do not notice if it takes twice as long.
pub const NEAR_ZERO_MS: f64 = 0.5;

/// One statistic of a metric on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The metric.
    pub metric: Metric,
    /// The statistic.
    pub statistic: Statistic,
    /// The measured value.
    pub measured_ms: f64,
    /// The simulated value.
    pub simulated_ms: f64,
}

impl Comparison {
    /// The metric and the statistic, such as `ttft p50`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} {}", self.metric.name(), self.statistic)
    }

    /// Whether the measured time is too short for a meaningful relative error.
    #[must_use]
    pub fn is_near_zero(&self) -> bool {
        self.measured_ms.abs() < NEAR_ZERO_MS
    }

    /// The error for people: in percent, or in milliseconds if the measured time is near zero.
    #[must_use]
    pub fn error_text(&self) -> String {
        if self.is_near_zero() {
            return format!("{:+.2} ms", self.difference_ms());
        }
        format!("{:+.1} %", self.error() * 100.0)
    }

    /// The simulated value minus the measured value, in milliseconds.
    #[must_use]
    pub fn difference_ms(&self) -> f64 {
        self.simulated_ms - self.measured_ms
    }

    /// The error relative to the measured value; negative if the simulated value is lower. Measured times below
    /// [`NEAR_ZERO_MS`] count as [`NEAR_ZERO_MS`], so that a small difference stays a small error.
    #[must_use]
    pub fn error(&self) -> f64 {
        relative_error(self.measured_ms, self.simulated_ms)
    }
}

/// The relative error of a time. Both arguments are in milliseconds.
pub(crate) fn relative_error(reference_ms: f64, value_ms: f64) -> f64 {
    (value_ms - reference_ms) / reference_ms.max(NEAR_ZERO_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_compared_by_the_same_rule() {
        let pairs = (0..100).map(|index| (f64::from(index) * 1e6, f64::from(index) * 1.1e6)).collect();
        let pairs = Pairs { metric: Metric::Ttft, pairs };
        let p90 = pairs.compare(Statistic::P90);
        assert_eq!((p90.name().as_str(), p90.measured_ms), ("ttft p90", 89.0));
        assert!((p90.error() - 0.1).abs() < 1e-9);
        assert!((pairs.mape() - 0.099).abs() < 1e-9, "the first of 100 requests took no time on either side");
        let empty_queue = Pairs { metric: Metric::Queue, pairs: vec![(0.01e6, 0.0), (0.02e6, 0.0)] };
        assert!((empty_queue.mape() - 0.03).abs() < 1e-9, "a wait of microseconds is near zero, not an error of 100 %");
        assert!((pairs.pearson().expect("they vary") - 1.0).abs() < 1e-9);
        let queue = |measured_ms, simulated_ms| Comparison {
            metric: Metric::Queue,
            statistic: Statistic::P50,
            measured_ms,
            simulated_ms,
        };
        assert!((queue(0.01, 0.0).error() + 0.02).abs() < 1e-9, "not -100 %");
        assert_eq!(queue(0.01, 0.0).error_text(), "-0.01 ms");
        assert_eq!(queue(10.0, 5.0).error_text(), "-50.0 %");
        assert!((queue(0.0, 5.0).error() - 10.0).abs() < 1e-9 && queue(0.0, 0.0).error() == 0.0);
        assert!((queue(10.0, 5.0).error() + 0.5).abs() < 1e-9);
    }
}
