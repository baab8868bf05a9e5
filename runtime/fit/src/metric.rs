//! Metrics of requests, and statistics of them: names and definitions.

use serde::Serialize;

/// A time of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// To the first token.
    Ttft,
    /// Mean time between tokens.
    Itl,
    /// To the last token.
    E2e,
    /// To the admission.
    Queue,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ttft, Self::Itl, Self::E2e, Self::Queue];

    /// Its name in reports and gates.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Itl => "itl",
            Self::E2e => "e2e",
            Self::Queue => "queue",
        }
    }
}

/// A number that stands for many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// Arithmetic mean.
    Mean,
    /// Median.
    P50,
    /// 90th percentile.
    P90,
    /// 99th percentile.
    P99,
}

impl Statistic {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Mean, Self::P50, Self::P90, Self::P99];

    /// Its name in reports and gates.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
        }
    }

    /// Of samples; 0 of none. A percentile is the sample of rank
    /// `round((n - 1) * p / 100)`, as in a run's report.
    #[must_use]
    pub fn of(self, mut samples: Vec<f64>) -> f64 {
        let percent = match self {
            Self::Mean => return samples.iter().sum::<f64>() / samples.len().max(1) as f64,
            Self::P50 => 50.0,
            Self::P90 => 90.0,
            Self::P99 => 99.0,
        };
        if samples.is_empty() {
            return 0.0;
        }
        let rank = ((samples.len() - 1) as f64 * percent / 100.0).round() as usize;
        *samples.select_nth_unstable_by(rank, f64::total_cmp).1
    }
}
