//! Random durations.
//!
//! Samplers are written here over `rand_pcg` and `libm`, not taken from
//! `rand_distr`: that crate reaches its logarithms through `num-traits`, which
//! uses the platform's as soon as any crate of the build (here `ndarray`)
//! switches on its `std` feature, and those differ in the last bit between
//! machines. Its algorithms may also change between releases, while a draw here
//! is part of a recorded fingerprint.

use crate::problem::{ConfigProblem, Problems};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng as _;
use vcr_core::seed;

/// A distribution of durations in milliseconds, never below zero.
///
/// Means and standard deviations are those of the durations themselves, also
/// for the log-normal and gamma distributions. Nothing is rounded to whole
/// milliseconds and no tail is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Always the same.
    Constant {
        /// The duration.
        ms: f64,
    },
    /// Equally likely from `min_ms` up to `max_ms`.
    Uniform {
        /// The shortest.
        min_ms: f64,
        /// The longest.
        max_ms: f64,
    },
    /// Normal; a draw below zero is drawn again. The mean is therefore a little
    /// above `mean_ms` where `std_ms` is more than a third of it.
    Normal {
        /// Mean before redrawing; at least 0, so that half of all draws stand.
        mean_ms: f64,
        /// Standard deviation before redrawing.
        std_ms: f64,
    },
    /// Log-normal.
    LogNormal {
        /// Mean.
        mean_ms: f64,
        /// Standard deviation.
        std_ms: f64,
    },
    /// Exponential.
    Exponential {
        /// Mean.
        mean_ms: f64,
    },
    /// Gamma.
    Gamma {
        /// Mean.
        mean_ms: f64,
        /// Standard deviation.
        std_ms: f64,
    },
}

impl Distribution {
    /// Reports every problem under the names `field.ms`, `field.mean_ms` and so on.
    pub(crate) fn check(&self, field: &str, problems: &mut Problems) {
        match *self {
            Distribution::Constant { ms } => problems.step_ms(&format!("{field}.ms"), ms),
            Distribution::Uniform { min_ms, max_ms } => {
                problems.step_ms(&format!("{field}.min_ms"), min_ms);
                problems.step_ms(&format!("{field}.max_ms"), max_ms);
                if min_ms > max_ms {
                    problems.0.push(ConfigProblem::EmptyRange {
                        field: field.to_owned(),
                        min_ms,
                        max_ms,
                    });
                }
            }
            Distribution::Normal { mean_ms, std_ms } => {
                problems.step_ms(&format!("{field}.mean_ms"), mean_ms);
                problems.step_ms(&format!("{field}.std_ms"), std_ms);
            }
            Distribution::LogNormal { mean_ms, std_ms }
            | Distribution::Gamma { mean_ms, std_ms } => {
                let name = format!("{field}.mean_ms");
                problems.step_ms(&name, mean_ms);
                // The logarithm and the shape divide by the mean.
                if mean_ms == 0.0 {
                    problems.positive(&name, mean_ms);
                }
                problems.step_ms(&format!("{field}.std_ms"), std_ms);
            }
            Distribution::Exponential { mean_ms } => {
                problems.step_ms(&format!("{field}.mean_ms"), mean_ms);
            }
        }
    }

    /// Draws one duration in milliseconds from a checked distribution.
    pub(crate) fn draw_ms(&self, stream: &mut Stream) -> f64 {
        match *self {
            Distribution::Constant { ms } => ms,
            Distribution::Uniform { min_ms, max_ms } => min_ms + (max_ms - min_ms) * stream.unit(),
            Distribution::Normal { mean_ms, std_ms } => loop {
                let ms = mean_ms + std_ms * stream.normal();
                if ms >= 0.0 {
                    return ms;
                }
            },
            Distribution::LogNormal { mean_ms, std_ms } => {
                let spread = std_ms / mean_ms;
                let variance = libm::log1p(spread * spread);
                let mean = libm::log(mean_ms) - variance / 2.0;
                libm::exp(mean + variance.sqrt() * stream.normal())
            }
            Distribution::Exponential { mean_ms } => mean_ms * stream.exponential(),
            Distribution::Gamma {
                std_ms: 0.0,
                mean_ms,
            } => mean_ms,
            Distribution::Gamma { mean_ms, std_ms } => {
                let ratio = mean_ms / std_ms;
                let shape = ratio * ratio;
                stream.gamma(shape) * (mean_ms / shape)
            }
        }
    }
}

/// One stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Stream(Pcg64Mcg);

impl Stream {
    /// The stream of a purpose. The state is made of two words of our own
    /// derivation, since how a library expands a seed is not ours to freeze.
    pub(crate) fn new(seed: u64, purpose: &str) -> Self {
        let word = |index| u128::from(seed::derive(seed, purpose, index));
        Stream(Pcg64Mcg::new(word(0) << 64 | word(1)))
    }

    /// Uniform in [0, 1), on a grid of 2^-53.
    fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1u64 << 53) as f64;
        (self.0.next_u64() >> 11) as f64 * STEP
    }

    /// Uniform in (0, 1], fit for a logarithm.
    fn unit_above_zero(&mut self) -> f64 {
        1.0 - self.unit()
    }

    /// Exponential with mean 1, by inversion.
    fn exponential(&mut self) -> f64 {
        -libm::log(self.unit_above_zero())
    }

    /// Standard normal, by Box and Muller. The second of the pair is dropped,
    /// so that every draw takes the same two numbers.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * libm::log(self.unit_above_zero())).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }

    /// Gamma with scale 1, by Marsaglia and Tsang, "A simple method for
    /// generating gamma variables" (2000), with their boost for shapes below 1.
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = libm::pow(self.unit_above_zero(), 1.0 / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let root = 1.0 + c * x;
            if root <= 0.0 {
                continue;
            }
            let v = root * root * root;
            if libm::log(self.unit_above_zero()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    fn moments(distribution: Distribution) -> (f64, f64) {
        let mut stream = Stream::new(7, "test");
        let draws: Vec<f64> = (0..DRAWS)
            .map(|_| distribution.draw_ms(&mut stream))
            .collect();
        assert!(draws.iter().all(|ms| ms.is_finite() && *ms >= 0.0));
        let mean = draws.iter().sum::<f64>() / DRAWS as f64;
        let variance = draws.iter().map(|ms| (ms - mean).powi(2)).sum::<f64>() / DRAWS as f64;
        (mean, variance.sqrt())
    }

    #[test]
    fn samples_have_the_mean_and_spread_that_were_asked_for() {
        let (mean_ms, std_ms) = (12.0, 3.0);
        let cases = [
            (Distribution::Constant { ms: 12.0 }, 12.0, 0.0),
            (Distribution::Normal { mean_ms, std_ms }, 12.0, 3.0),
            (Distribution::LogNormal { mean_ms, std_ms }, 12.0, 3.0),
            (Distribution::Gamma { mean_ms, std_ms }, 12.0, 3.0),
            // A shape below 1, where the boost is used.
            (
                Distribution::Gamma {
                    mean_ms,
                    std_ms: 20.0,
                },
                12.0,
                20.0,
            ),
            (Distribution::Exponential { mean_ms }, 12.0, 12.0),
            (
                Distribution::Uniform {
                    min_ms: 0.0,
                    max_ms: 24.0,
                },
                12.0,
                24.0 / 12f64.sqrt(),
            ),
            // Half a normal distribution.
            (
                Distribution::Normal {
                    mean_ms: 0.0,
                    std_ms: 1.0,
                },
                (2.0 / std::f64::consts::PI).sqrt(),
                (1.0 - 2.0 / std::f64::consts::PI).sqrt(),
            ),
        ];
        for (distribution, mean, std) in cases {
            let (actual_mean, actual_std) = moments(distribution);
            assert!(
                (actual_mean - mean).abs() <= 0.02 * mean,
                "{distribution:?}: {actual_mean}"
            );
            assert!(
                (actual_std - std).abs() <= 0.03 * std,
                "{distribution:?}: {actual_std}"
            );
        }
    }

    #[test]
    fn draws_are_frozen() {
        // A change here changes every recorded fingerprint.
        let mut stream = Stream::new(42, "frozen");
        let mean_ms = 10.0;
        let std_ms = 2.5;
        let bits: Vec<u64> = [
            Distribution::Uniform {
                min_ms: 1.0,
                max_ms: 2.0,
            },
            Distribution::Normal { mean_ms, std_ms },
            Distribution::LogNormal { mean_ms, std_ms },
            Distribution::Exponential { mean_ms },
            Distribution::Gamma { mean_ms, std_ms },
        ]
        .iter()
        .map(|distribution| distribution.draw_ms(&mut stream).to_bits())
        .collect();
        assert_eq!(bits, FROZEN);
    }

    const FROZEN: [u64; 5] = [
        4_611_530_375_350_964_309,
        4_620_194_113_846_511_618,
        4_624_880_218_062_120_334,
        4_623_681_392_870_073_048,
        4_625_585_130_411_459_102,
    ];
}
