//! Distributions: exact quantiles and a histogram instead of all samples.

use serde::{Deserialize, Serialize};
use vcr_base::percentile::percentile_rank;

const BINS: usize = 48;
/// The bins have equal ratios instead of equal widths if the largest value is at least this many times the
/// smallest.
const LOGARITHMIC_FROM: f64 = 20.0;

/// The percentiles that are listed: every whole percent, and more near 100.
pub const PERCENTS: [f64; 106] = {
    let mut percents = [0.0; 106];
    let mut index = 0;
    while index <= 100 {
        percents[index] = index as f64;
        index += 1;
    }
    // The 100th percentile is the last entry.
    percents[100] = 99.5;
    percents[101] = 99.9;
    percents[102] = 99.95;
    percents[103] = 99.99;
    percents[104] = 99.999;
    percents[105] = 100.0;
    percents
};

/// The samples of a metric, summarised for charts.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Distribution {
    /// Name of the metric, as in assertions.
    pub metric: String,
    /// Name of the workload; None for the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Unit of the samples: `ms`, or nothing for counts.
    pub unit: String,
    /// Number of samples.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// The samples of rank `round((n - 1) * p / 100)` for each `p` of [`PERCENTS`].
    pub quantiles: Vec<f64>,
    /// Number of samples by size.
    pub histogram: Histogram,
}

/// The number of samples between each two neighbouring bounds.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Histogram {
    /// Ascending bounds. Bin `i` includes bound `i` and excludes bound `i + 1`; only the last bin includes both.
    pub bounds: Vec<f64>,
    /// Number of samples of each bin.
    pub counts: Vec<u64>,
}

/// The metric and workload of a distribution.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// Name of the metric.
    pub metric: &'a str,
    /// Name of the workload; None for the whole run.
    pub workload: Option<&'a str>,
    /// Unit of the samples: `ms`, or nothing for counts.
    pub unit: &'a str,
}

impl Distribution {
    /// Summarises samples, given as (value, number of samples) in any order. `bounds` are the bounds of the
    /// histogram; workloads get those of the whole run, so that they can be compared. None for `bounds` computes
    /// them. Returns None without samples.
    #[must_use]
    pub fn of(scope: Scope<'_>, mut runs: Vec<(f64, u64)>, bounds: Option<&[f64]>) -> Option<Self> {
        runs.retain(|(value, times)| *times > 0 && value.is_finite());
        runs.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
        let (&(min, _), &(max, _)) = (runs.first()?, runs.last()?);
        let count: u64 = runs.iter().map(|(_, times)| times).sum();
        let sum: f64 = runs.iter().map(|(value, times)| value * *times as f64).sum();
        let bounds = bounds.map_or_else(|| bounds_between(min, max), <[f64]>::to_vec);
        Some(Self {
            metric: scope.metric.to_owned(),
            workload: scope.workload.map(str::to_owned),
            unit: scope.unit.to_owned(),
            count,
            mean: sum / count as f64,
            quantiles: quantiles(&runs, count),
            histogram: Histogram { counts: counts(&runs, &bounds), bounds },
        })
    }
}

/// Quantiles of samples that are given as (value, number of samples), by ascending value.
fn quantiles(runs: &[(f64, u64)], count: u64) -> Vec<f64> {
    let (mut index, mut below) = (0, 0);
    let quantile = |percent: &f64| {
        let rank = percentile_rank(count, *percent).unwrap_or(0);
        while below + runs[index].1 <= rank {
            below += runs[index].1;
            index += 1;
        }
        runs[index].0
    };
    PERCENTS.iter().map(quantile).collect()
}

fn bounds_between(min: f64, max: f64) -> Vec<f64> {
    if min >= max {
        return vec![min, max];
    }
    let bound = |index: usize| {
        let share = index as f64 / BINS as f64;
        match index {
            0 => min,
            BINS => max,
            _ if min > 0.0 && max / min >= LOGARITHMIC_FROM => min * (max / min).powf(share),
            _ => min + (max - min) * share,
        }
    };
    (0..=BINS).map(bound).collect()
}

fn counts(runs: &[(f64, u64)], bounds: &[f64]) -> Vec<u64> {
    let bins = bounds.len().saturating_sub(1);
    let mut counts = vec![0; bins];
    for (value, times) in runs {
        let bin = bounds.partition_point(|bound| bound <= value).saturating_sub(1);
        if let Some(count) = counts.get_mut(bin.min(bins.saturating_sub(1))) {
            *count += times;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTFT: Scope<'_> = Scope { metric: "ttft", workload: None, unit: "ms" };

    fn of(runs: Vec<(f64, u64)>) -> Distribution {
        Distribution::of(TTFT, runs, None).expect("there are samples")
    }

    #[test]
    fn quantiles_are_samples_by_rounded_rank() {
        let distribution = of((0..1000).rev().map(|value| (f64::from(value), 2)).collect());
        let samples: Vec<f64> = (0..2000).map(|rank| f64::from(rank / 2)).collect();
        for (percent, quantile) in PERCENTS.iter().zip(&distribution.quantiles) {
            assert_eq!(*quantile, samples[(1999.0 * percent / 100.0).round() as usize], "p{percent}");
        }
        assert_eq!((distribution.count, distribution.mean), (2000, 499.5));
        assert!(PERCENTS.is_sorted());
    }

    #[test]
    fn histograms_count_every_sample_once() {
        for top in [3.0, 1e6] {
            let runs: Vec<(f64, u64)> =
                (0..=500).map(|index| (1.0 + (top - 1.0) * f64::from(index) / 500.0, 3)).collect();
            let Histogram { bounds, counts } = of(runs.clone()).histogram;
            assert!(bounds.is_sorted() && bounds.len() == BINS + 1);
            assert_eq!(counts.iter().sum::<u64>(), 501 * 3);
            for (bin, count) in counts.iter().enumerate() {
                let is_in = |value: f64| bounds[bin] <= value && (value < bounds[bin + 1] || bin == BINS - 1);
                assert_eq!(*count, runs.iter().filter(|(value, _)| is_in(*value)).map(|(_, times)| times).sum::<u64>());
            }
        }
    }

    #[test]
    fn equal_samples_and_none_have_no_width() {
        let one = of(vec![(7.0, 4)]);
        assert_eq!((one.histogram.bounds, one.histogram.counts), (vec![7.0, 7.0], vec![4]));
        assert_eq!(Distribution::of(TTFT, vec![(1.0, 0), (f64::NAN, 1)], None), None);
    }

    #[test]
    fn samples_outside_of_given_bounds_are_counted_at_the_ends() {
        let bounds = [1.0, 2.0, 3.0];
        let distribution = Distribution::of(TTFT, vec![(0.5, 1), (2.0, 1), (9.0, 1)], Some(&bounds));
        assert_eq!(distribution.expect("samples").histogram.counts, [1, 2]);
    }
}
