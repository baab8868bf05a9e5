//! Limits on the errors of a comparison.

use std::fmt;
use std::str::FromStr;

use crate::metric::{Metric, Statistic};

/// The quantity that a gate limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Subject {
    /// The relative error of a statistic.
    Statistic(Metric, Statistic),
    /// The mean absolute error of single requests, relative.
    Mape(Metric),
    /// Pearson's correlation over single requests.
    Pearson(Metric),
    /// The Kolmogorov-Smirnov statistic.
    Ks(Metric),
    /// The Wasserstein distance, relative to the mean of the reference.
    Wasserstein(Metric),
    /// The relative error of the throughput.
    Throughput,
    /// The share of the step time that was extrapolated.
    Outside,
}

impl FromStr for Subject {
    type Err = String;

    /// Reads a subject such as `ttft p50`, `ttft p50 error`, `itl pearson` or `throughput`.
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "invalid subject `{text}`: expected a metric (ttft, itl, e2e, queue) with a statistic (mean, p50, p99 or \
                 any percentile, mape, pearson, ks, wasserstein), `throughput` or `outside`, such as `ttft p50 error`"
            )
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let of = |metric: &str| Metric::parse(metric).ok_or_else(invalid);
        match words[..] {
            ["throughput"] | ["throughput", "error"] => Ok(Self::Throughput),
            ["outside"] => Ok(Self::Outside),
            [metric, "mape"] => Ok(Self::Mape(of(metric)?)),
            [metric, "pearson"] => Ok(Self::Pearson(of(metric)?)),
            [metric, "ks"] => Ok(Self::Ks(of(metric)?)),
            [metric, "wasserstein"] => Ok(Self::Wasserstein(of(metric)?)),
            [metric, statistic] | [metric, statistic, "error"] => {
                Ok(Self::Statistic(of(metric)?, Statistic::parse(statistic).ok_or_else(invalid)?))
            }
            _ => Err(invalid()),
        }
    }
}

impl Subject {
    /// Whether the value is shown as a plain number, not as a percentage.
    fn is_plain(self) -> bool {
        matches!(self, Self::Pearson(_) | Self::Ks(_))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Statistic(metric, statistic) => write!(f, "{} {statistic}", metric.name()),
            Self::Mape(metric) => write!(f, "{} mape", metric.name()),
            Self::Pearson(metric) => write!(f, "{} pearson", metric.name()),
            Self::Ks(metric) => write!(f, "{} ks", metric.name()),
            Self::Wasserstein(metric) => write!(f, "{} wasserstein", metric.name()),
            Self::Throughput => f.write_str("throughput"),
            Self::Outside => f.write_str("outside"),
        }
    }
}

/// A limit, such as `ttft p50 < 10%` or `itl pearson > 0.9`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    subject: Subject,
    is_upper: bool,
    limit: f64,
}

impl Gate {
    /// The limited quantity.
    #[must_use]
    pub fn subject(&self) -> Subject {
        self.subject
    }

    /// Whether a value is within the limit.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        if self.is_upper { value < self.limit } else { value > self.limit }
    }

    /// Formats a value of the limited quantity for people.
    #[must_use]
    pub fn value_text(&self, value: f64) -> String {
        if self.subject.is_plain() { format!("{value:.3}") } else { format!("{:.2} %", value * 100.0) }
    }
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "invalid gate `{text}`: expected a metric (ttft, itl, e2e, queue) with a statistic (mean, p50, p99 or \
                 any percentile, mape, pearson, ks, wasserstein), `throughput` or `outside`, then < or > and a limit, \
                 such as `ttft p50 < 10%`"
            )
        };
        let is_upper = text.contains('<');
        let (subject, limit) = text.split_once(['<', '>']).ok_or_else(invalid)?;
        let limit = limit.trim();
        let (number, divisor) = limit.strip_suffix('%').map_or((limit, 1.0), |number| (number.trim(), 100.0));
        let limit = number.parse().ok().filter(|limit: &f64| limit.is_finite()).ok_or_else(invalid)?;
        let subject = subject.parse().map_err(|_| invalid())?;
        Ok(Self { subject, is_upper, limit: limit / divisor })
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_upper { '<' } else { '>' };
        if self.subject.is_plain() {
            return write!(f, "{} {sign} {}", self.subject, self.limit);
        }
        write!(f, "{} {sign} {} %", self.subject, (self.limit * 1e6).round() / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_from_text() {
        let gate = |text: &str| text.parse::<Gate>();
        assert!(gate("ttft p50 < 10%").expect("valid").holds(0.09));
        assert_eq!(gate("ttft p50 error < 10%"), gate("ttft p50 < 0.1"));
        assert!(!gate("itl mean<0.05").expect("valid").holds(0.06));
        assert!(gate("e2e pearson > 0.9").expect("valid").holds(0.95));
        assert_eq!(gate("tpot ks < 0.2").expect("valid").to_string(), "itl ks < 0.2");
        assert_eq!(gate("queue p99.9 < 3%").expect("valid").to_string(), "queue p99.9 < 3 %");
        for text in [
            "ttft",
            "ttft p101 < 3%",
            "speed mean < 1",
            "ttft p50 < many",
            "ttft p50 99 < 1",
            "ttft p50 < nan",
            "itl mean < inf",
        ] {
            let error = gate(text).expect_err("invalid");
            assert!(error.starts_with("invalid gate") && error.ends_with("such as `ttft p50 < 10%`"), "{error}");
        }
    }
}
