//! Intervals of the metrics of a run whose latency models are uncertain.

use std::collections::BTreeMap;

use serde::Serialize;
use vcr_base::percentile::at_share;

use super::MetricsReport;

/// The share of draws within an interval: from the 5th to the 95th percentile.
const CONFIDENCE: f64 = 0.9;

/// Intervals of the metrics of a run that was simulated several times. Each time, the coefficients of its latency
/// models were drawn from the uncertainty of their fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uncertainty {
    /// Number of simulations with drawn coefficients.
    pub draws: usize,
    /// The share of draws within each interval. The draws outside are split equally between both sides.
    pub confidence: f64,
    /// Intervals by metric, as in reports, and by statistic. Values that no draw has are omitted.
    pub metrics: BTreeMap<String, BTreeMap<String, Interval>>,
}

/// An interval that contains most draws, in the unit of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The 5th percentile.
    pub low: f64,
    /// The 95th percentile.
    pub high: f64,
}

impl Interval {
    /// The interval of the drawn values; None without draws.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        let tail = (1.0 - CONFIDENCE) / 2.0;
        Some(Self { low: quantile(&mut values, tail)?, high: quantile(&mut values, 1.0 - tail)? })
    }
}

/// The value of rank `round((n - 1) * share)`; None without values. Sorts the values.
#[must_use]
pub fn quantile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    at_share(values, share)
}

impl Uncertainty {
    /// The intervals of metrics in these draws.
    #[must_use]
    pub fn of(draws: &[&MetricsReport]) -> Self {
        let mut values: BTreeMap<String, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
        let mut add = |metric: &str, statistic: &str, value: f64| {
            let statistics = values.entry(metric.to_owned()).or_default();
            statistics.entry(statistic.to_owned()).or_default().push(value);
        };
        for metrics in draws {
            for (name, trend) in &metrics.trends {
                add(name, "mean", trend.mean);
                add(name, "p50", trend.p50);
                add(name, "p90", trend.p90);
                add(name, "p95", trend.p95);
                add(name, "p99", trend.p99);
            }
            metrics.counters.iter().for_each(|(name, &count)| add(name, "count", count as f64));
            metrics.rates_per_s.iter().for_each(|(name, &rate)| add(name, "rate", rate));
            metrics.gauges.iter().for_each(|(name, &value)| add(name, "value", value));
        }
        let intervals = |statistics: BTreeMap<String, Vec<f64>>| {
            let of = |(name, values)| Some((name, Interval::of(values)?));
            statistics.into_iter().filter_map(of).collect()
        };
        let metrics = values.into_iter().map(|(metric, statistics)| (metric, intervals(statistics))).collect();
        Self { draws: draws.len(), confidence: CONFIDENCE, metrics }
    }

    /// Adds the interval of a value that the run's report does not list.
    pub fn add(&mut self, metric: &str, statistic: &str, values: Vec<f64>) {
        if let Some(interval) = Interval::of(values) {
            self.metrics.entry(metric.to_owned()).or_default().insert(statistic.to_owned(), interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_leave_out_a_twentieth_on_either_side() {
        let hundred: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(Interval::of(hundred), Some(Interval { low: 5.0, high: 95.0 }));
        assert_eq!(Interval::of(vec![3.0]), Some(Interval { low: 3.0, high: 3.0 }));
        assert_eq!(Interval::of(Vec::new()), None);
        assert_eq!(quantile(&mut [2.0, 1.0, 4.0], 1.0), Some(4.0));
    }
}
