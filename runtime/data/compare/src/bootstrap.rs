//! Confidence intervals by resampling requests.
//!
//! A resample draws as many pairs as the sample has, with replacement. It is stored as the number of times that
//! each pair was drawn. The values are sorted once; one walk over them computes all statistics of a resample.

use serde::Serialize;
use vcr_base::percentile::at_share;
use vcr_base::random::Stream;

use crate::metric::Statistic;
use crate::pairs::relative_error;

/// Share of the resampled values that lie within an interval.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// A range that contains 95 % of the resampled values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end of the range.
    pub low: f64,
    /// Upper end of the range.
    pub high: f64,
}

impl Interval {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| at_share(&values, share).expect("there are values");
        let outside = (1.0 - CONFIDENCE) / 2.0;
        Self { low: at(outside), high: at(1.0 - outside) }
    }
}

pub(crate) struct Intervals {
    /// The interval of each statistic's relative error, in the caller's order of statistics.
    pub(crate) errors: Vec<Interval>,
    pub(crate) ks: Interval,
    pub(crate) wasserstein_ms: Interval,
}

/// Resamples `pairs` (reference, compared) of milliseconds. None without resamples or with fewer than two pairs.
pub(crate) fn intervals(
    pairs: &[(f64, f64)],
    statistics: &[Statistic],
    resamples: usize,
    seed: u64,
    purpose: &str,
) -> Option<Intervals> {
    if resamples == 0 || pairs.len() < 2 {
        return None;
    }
    let count = pairs.len();
    let order = |of: fn(&(f64, f64)) -> f64| {
        let mut order: Vec<u32> = (0..count as u32).collect();
        order.sort_by(|a, b| of(&pairs[*a as usize]).total_cmp(&of(&pairs[*b as usize])));
        order
    };
    let (left, right) = (order(|pair| pair.0), order(|pair| pair.1));
    let ranks: Vec<usize> = statistics.iter().filter_map(|statistic| statistic.rank(count)).collect();
    let mut by_rank: Vec<usize> = ranks.clone();
    by_rank.sort_unstable();
    by_rank.dedup();
    let mut stream = Stream::new(seed, purpose);
    let mut times = vec![0_u32; count];
    let mut errors: Vec<Vec<f64>> = statistics.iter().map(|_| Vec::with_capacity(resamples)).collect();
    let (mut ks, mut wasserstein) = (Vec::with_capacity(resamples), Vec::with_capacity(resamples));
    for _ in 0..resamples {
        times.fill(0);
        for _ in 0..count {
            let drawn = (stream.unit() * count as f64) as usize;
            times[drawn.min(count - 1)] += 1;
        }
        let mean = |of: fn(&(f64, f64)) -> f64| {
            pairs.iter().zip(&times).map(|(pair, times)| of(pair) * f64::from(*times)).sum::<f64>() / count as f64
        };
        let (lefts, rights) =
            (at_ranks(&left, &times, &by_rank, pairs, |p| p.0), at_ranks(&right, &times, &by_rank, pairs, |p| p.1));
        for (statistic, errors) in statistics.iter().zip(&mut errors) {
            let (reference, compared) = match statistic.rank(count) {
                None => (mean(|pair| pair.0), mean(|pair| pair.1)),
                Some(rank) => {
                    let at = by_rank.binary_search(&rank).expect("every rank is looked up");
                    (lefts[at], rights[at])
                }
            };
            errors.push(relative_error(reference, compared));
        }
        let (largest, area) = distances(pairs, &left, &right, &times);
        ks.push(largest);
        wasserstein.push(area);
    }
    Some(Intervals {
        errors: errors.into_iter().map(Interval::of).collect(),
        ks: Interval::of(ks),
        wasserstein_ms: Interval::of(wasserstein),
    })
}

/// Returns the values that have these ascending ranks in a resample.
fn at_ranks(
    order: &[u32],
    times: &[u32],
    ranks: &[usize],
    pairs: &[(f64, f64)],
    of: fn(&(f64, f64)) -> f64,
) -> Vec<f64> {
    let mut found = Vec::with_capacity(ranks.len());
    let mut passed = 0;
    for index in order {
        passed += times[*index as usize] as usize;
        while ranks.get(found.len()).is_some_and(|rank| *rank < passed) {
            found.push(of(&pairs[*index as usize]));
        }
    }
    found
}

fn distances(pairs: &[(f64, f64)], left: &[u32], right: &[u32], times: &[u32]) -> (f64, f64) {
    let count = pairs.len() as f64;
    let left_at = |i: usize| left.get(i).map(|index| pairs[*index as usize].0);
    let right_at = |j: usize| right.get(j).map(|index| pairs[*index as usize].1);
    let next = |i: usize, j: usize| match (left_at(i), right_at(j)) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let (mut i, mut j, mut difference) = (0, 0, 0_i64);
    let (mut largest, mut area) = (0_i64, 0.0);
    while let Some(value) = next(i, j) {
        while left_at(i).is_some_and(|sample| sample <= value) {
            difference += i64::from(times[left[i] as usize]);
            i += 1;
        }
        while right_at(j).is_some_and(|sample| sample <= value) {
            difference -= i64::from(times[right[j] as usize]);
            j += 1;
        }
        largest = largest.max(difference.abs());
        area += difference.unsigned_abs() as f64 * next(i, j).map_or(0.0, |next| next - value);
    }
    (largest as f64 / count, area / count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distance;

    fn pairs() -> Vec<(f64, f64)> {
        let mut stream = Stream::new(7, "test");
        (0..400).map(|_| (100.0 + 10.0 * stream.normal(), 110.0 + 10.0 * stream.normal())).collect()
    }

    #[test]
    fn intervals_hold_the_truth_and_repeat() {
        let of = |seed| intervals(&pairs(), &[Statistic::Mean, Statistic::P50], 400, seed, "ttft").expect("pairs");
        let found = of(1);
        for interval in &found.errors {
            assert!(interval.low < 0.1 && 0.1 < interval.high && interval.high - interval.low < 0.06, "{interval:?}");
        }
        assert!(found.wasserstein_ms.low < 10.0 && 10.0 < found.wasserstein_ms.high, "{:?}", found.wasserstein_ms);
        assert_eq!(found.errors, of(1).errors);
        assert_ne!(found.errors, of(2).errors);
    }

    /// A resample that draws every pair once equals the sample.
    #[test]
    fn one_of_each_has_the_distances_of_the_sample() {
        let pairs = pairs();
        let order = |of: fn(&(f64, f64)) -> f64| {
            let mut order: Vec<u32> = (0..pairs.len() as u32).collect();
            order.sort_by(|a, b| of(&pairs[*a as usize]).total_cmp(&of(&pairs[*b as usize])));
            order
        };
        let (ks, wasserstein) = distances(&pairs, &order(|p| p.0), &order(|p| p.1), &vec![1; pairs.len()]);
        let (left, right): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        assert!((ks - distance::ks(&left, &right)).abs() < 1e-12);
        assert!((wasserstein - distance::wasserstein(&left, &right).expect("samples")).abs() < 1e-9);
    }

    #[test]
    fn too_little_has_no_interval() {
        assert!(intervals(&[(1.0, 1.0)], &[Statistic::Mean], 100, 1, "ttft").is_none());
        assert!(intervals(&pairs(), &[Statistic::Mean], 0, 1, "ttft").is_none());
    }
}
