//! Names and definitions of request metrics and statistics.

use std::fmt;

use serde::{Serialize, Serializer};

/// A request's time that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Time from arrival to the first token.
    Ttft,
    /// Mean time between two tokens of the answer.
    Itl,
    /// Time from arrival to the last token.
    E2e,
    /// Time from arrival to admission.
    Queue,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Self; 4] = [Self::Ttft, Self::Itl, Self::E2e, Self::Queue];

    /// The metric's name in reports and gates.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Itl => "itl",
            Self::E2e => "e2e",
            Self::Queue => "queue",
        }
    }

    /// The metric's name in run reports. There, `itl` means every single gap, and `tpot` a request's mean gap.
    #[must_use]
    pub const fn name_in_runs(self) -> &'static str {
        match self {
            Self::Itl => "tpot",
            other => other.name(),
        }
    }

    /// Finds a metric by name. `tpot` is another name of `itl`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let name = if name == "tpot" { "itl" } else { name };
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }
}

/// A statistic of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Statistic {
    /// Arithmetic mean.
    Mean,
    /// A percentile, in thousandths of a percent.
    Percentile(u32),
}

impl Statistic {
    /// Median.
    pub const P50: Self = Self::Percentile(50_000);
    /// 90th percentile.
    pub const P90: Self = Self::Percentile(90_000);
    /// 95th percentile.
    pub const P95: Self = Self::Percentile(95_000);
    /// 99th percentile.
    pub const P99: Self = Self::Percentile(99_000);

    /// The statistics by which predictions are judged.
    pub const ALL: [Self; 4] = [Self::Mean, Self::P50, Self::P90, Self::P99];

    /// Reads the name of a statistic, such as `mean` or `p99.9`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if name == "mean" {
            return Some(Self::Mean);
        }
        let digits = name.strip_prefix('p').filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit()))?;
        let percent = digits.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent))?;
        Some(Self::Percentile((percent * 1e3).round() as u32))
    }

    /// The rank (from 0) of a percentile among `count` sorted samples; None for the mean.
    pub(crate) fn rank(self, count: usize) -> Option<usize> {
        match self {
            Self::Mean => None,
            Self::Percentile(thousandths) => {
                Some((count.saturating_sub(1) as f64 * f64::from(thousandths) / 100_000.0).round() as usize)
            }
        }
    }

    /// Computes the statistic of `samples`; 0 if there are none. A percentile is the sample of rank `round((n - 1)
    /// * p / 100)`, as in a run's report.
    #[must_use]
    pub fn of(self, mut samples: Vec<f64>) -> f64 {
        let Some(rank) = self.rank(samples.len()) else {
            return samples.iter().sum::<f64>() / samples.len().max(1) as f64;
        };
        if samples.is_empty() {
            return 0.0;
        }
        *samples.select_nth_unstable_by(rank, f64::total_cmp).1
    }
}

impl fmt::Display for Statistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mean => f.write_str("mean"),
            Self::Percentile(thousandths) => write!(f, "p{}", f64::from(*thousandths) / 1e3),
        }
    }
}

impl Serialize for Statistic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_known_by_their_names() {
        for name in ["mean", "p50", "p99", "p99.9", "p0", "p100"] {
            assert_eq!(Statistic::parse(name).expect(name).to_string(), name);
        }
        for name in ["p101", "p", "p-1", "pinf", "q50", "Mean", ""] {
            assert_eq!(Statistic::parse(name), None, "{name}");
        }
        assert_eq!(Statistic::P50.of(vec![3.0, 1.0, 2.0, 10.0]), 3.0);
        assert_eq!(Statistic::P99.of(Vec::new()), 0.0);
        assert_eq!(Metric::parse("tpot"), Some(Metric::Itl));
    }
}
