//! Distributions of durations and lengths.

use crate::random::Stream;

/// A distribution of non-negative values.
///
/// The user of a distribution defines its unit, such as milliseconds or tokens. Mean and standard deviation are those
/// of the values, also for log-normal distributions. Draws are neither rounded nor limited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Always the same value.
    Constant {
        /// The value.
        value: f64,
    },
    /// Uniform between `min` and `max`.
    Uniform {
        /// Smallest value.
        min: f64,
        /// Largest value.
        max: f64,
    },
    /// Normal; draws below zero are repeated, which raises the mean slightly if `std` is more than a third of it.
    Normal {
        /// Mean before redrawing. It is at least 0, so at least half of all draws are accepted.
        mean: f64,
        /// Standard deviation before redrawing.
        std: f64,
    },
    /// Log-normal.
    LogNormal {
        /// Mean; above 0.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Exponential.
    Exponential {
        /// Mean; above 0.
        mean: f64,
    },
    /// Gamma.
    Gamma {
        /// Mean; above 0.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
}

/// A problem of a [`Distribution`]'s parameters.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DistributionProblem {
    /// A parameter is not a finite number in its range.
    #[error("invalid `{parameter}`: expected a finite number {range}, got {}", short(*value))]
    OutOfRange {
        /// Name of the parameter.
        parameter: &'static str,
        /// Its value.
        value: f64,
        /// Allowed values.
        range: String,
    },
    /// The range is empty.
    #[error("`min` ({min}) must not exceed `max` ({max})")]
    EmptyRange {
        /// Lower end.
        min: f64,
        /// Upper end.
        max: f64,
    },
}

/// Formats a number without hundreds of digits.
fn short(value: f64) -> String {
    if value.abs() < 1e16 { value.to_string() } else { format!("{value:e}") }
}

impl Distribution {
    /// The log-normal distribution of values whose logarithms have mean `mu` and standard deviation `sigma`.
    #[must_use]
    pub fn log_normal_of_logarithms(mu: f64, sigma: f64) -> Self {
        let mean = libm::exp(mu + sigma * sigma / 2.0);
        Self::LogNormal { mean, std: mean * libm::expm1(sigma * sigma).sqrt() }
    }

    /// All problems of the parameters. `most` is the largest valid parameter.
    #[must_use]
    pub fn problems(&self, most: f64) -> Vec<DistributionProblem> {
        let mut problems = Vec::new();
        let mut check = |parameter, value: f64, positive: bool| {
            let fits = value.is_finite() && value <= most && if positive { value > 0.0 } else { value >= 0.0 };
            if !fits {
                let range = match (positive, value > most) {
                    (_, true) => format!("of at most {}", short(most)),
                    (true, _) => "above 0".to_owned(),
                    (false, _) => "of at least 0".to_owned(),
                };
                problems.push(DistributionProblem::OutOfRange { parameter, value, range });
            }
        };
        match *self {
            Self::Constant { value } => check("value", value, false),
            Self::Uniform { min, max } => {
                check("min", min, false);
                check("max", max, false);
                if min > max {
                    problems.push(DistributionProblem::EmptyRange { min, max });
                }
            }
            Self::Normal { mean, std } => {
                check("mean", mean, false);
                check("std", std, false);
            }
            // The formulas divide by the mean.
            Self::LogNormal { mean, std } | Self::Gamma { mean, std } => {
                check("mean", mean, true);
                check("std", std, false);
            }
            Self::Exponential { mean } => check("mean", mean, false),
        }
        problems
    }

    /// Draws a value. The distribution must have no [`Distribution::problems`].
    pub fn draw(&self, stream: &mut Stream) -> f64 {
        match *self {
            Self::Constant { value } => value,
            Self::Uniform { min, max } => min + (max - min) * stream.unit(),
            Self::Normal { mean, std } => loop {
                let value = mean + std * stream.normal();
                if value >= 0.0 {
                    return value;
                }
            },
            Self::LogNormal { mean, std } => {
                let spread = std / mean;
                let variance = libm::log1p(spread * spread);
                let location = libm::log(mean) - variance / 2.0;
                libm::exp(location + variance.sqrt() * stream.normal())
            }
            Self::Exponential { mean } => mean * stream.exponential(),
            Self::Gamma { std: 0.0, mean } => mean,
            Self::Gamma { mean, std } => {
                let ratio = mean / std;
                let shape = ratio * ratio;
                stream.gamma(shape) * (mean / shape)
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
        let draws: Vec<f64> = (0..DRAWS).map(|_| distribution.draw(&mut stream)).collect();
        assert!(draws.iter().all(|value| value.is_finite() && *value >= 0.0));
        let mean = draws.iter().sum::<f64>() / DRAWS as f64;
        let variance = draws.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / DRAWS as f64;
        (mean, variance.sqrt())
    }

    #[test]
    fn samples_have_the_mean_and_spread_that_were_asked_for() {
        let (mean, std) = (12.0, 3.0);
        let half_normal = ((2.0 / std::f64::consts::PI).sqrt(), (1.0 - 2.0 / std::f64::consts::PI).sqrt());
        let cases = [
            (Distribution::Constant { value: 12.0 }, 12.0, 0.0),
            (Distribution::Normal { mean, std }, 12.0, 3.0),
            (Distribution::LogNormal { mean, std }, 12.0, 3.0),
            (Distribution::Gamma { mean, std }, 12.0, 3.0),
            // The shape is below 1, so the boost is used.
            (Distribution::Gamma { mean, std: 20.0 }, 12.0, 20.0),
            (Distribution::Exponential { mean }, 12.0, 12.0),
            (Distribution::Uniform { min: 0.0, max: 24.0 }, 12.0, 24.0 / 12f64.sqrt()),
            (Distribution::Normal { mean: 0.0, std: 1.0 }, half_normal.0, half_normal.1),
        ];
        for (distribution, mean, std) in cases {
            let (actual_mean, actual_std) = moments(distribution);
            assert!((actual_mean - mean).abs() <= 0.02 * mean, "{distribution:?}: {actual_mean}");
            assert!((actual_std - std).abs() <= 0.03 * std, "{distribution:?}: {actual_std}");
        }
    }

    #[test]
    fn a_log_normal_may_be_given_by_its_logarithms() {
        let Distribution::LogNormal { mean, std } = Distribution::log_normal_of_logarithms(2.0, 0.5) else {
            panic!("another distribution");
        };
        let mut stream = Stream::new(7, "test");
        let drawn = Distribution::LogNormal { mean, std };
        let logs: Vec<f64> = (0..DRAWS).map(|_| drawn.draw(&mut stream).ln()).collect();
        let average = logs.iter().sum::<f64>() / DRAWS as f64;
        let variance = logs.iter().map(|log| (log - average).powi(2)).sum::<f64>() / DRAWS as f64;
        assert!((average - 2.0).abs() < 0.01 && (variance.sqrt() - 0.5).abs() < 0.01, "{average} {variance}");
    }

    #[test]
    fn draws_are_frozen() {
        // A change here changes every recorded fingerprint.
        let mut stream = Stream::new(42, "frozen");
        let (mean, std) = (10.0, 2.5);
        let distributions = [
            Distribution::Uniform { min: 1.0, max: 2.0 },
            Distribution::Normal { mean, std },
            Distribution::LogNormal { mean, std },
            Distribution::Exponential { mean },
            Distribution::Gamma { mean, std },
        ];
        let bits = distributions.map(|distribution| distribution.draw(&mut stream).to_bits());
        let frozen = [
            4_611_530_375_350_964_309,
            4_620_194_113_846_511_618,
            4_624_880_218_062_120_334,
            4_623_681_392_870_073_048,
            4_625_585_130_411_459_102,
        ];
        assert_eq!(bits, frozen);
    }

    #[test]
    fn problems_name_parameter_and_value() {
        let texts = |d: Distribution| d.problems(1e9).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            texts(Distribution::LogNormal { mean: 0.0, std: f64::NAN }),
            [
                "invalid `mean`: expected a finite number above 0, got 0",
                "invalid `std`: expected a finite number of at least 0, got NaN"
            ]
        );
        assert_eq!(texts(Distribution::Uniform { min: 3.0, max: 2.0 }), ["`min` (3) must not exceed `max` (2)"]);
        assert_eq!(
            texts(Distribution::Exponential { mean: 1e308 }),
            ["invalid `mean`: expected a finite number of at most 1000000000, got 1e308"]
        );
        assert!(texts(Distribution::Exponential { mean: 4.0 }).is_empty());
    }
}
