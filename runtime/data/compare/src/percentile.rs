//! Resamples the change of a percentile from one side of pairs to the other.
//!
//! A resample draws as many pairs as the sample has, with replacement. Only pairs near the percentile decide its
//! value. Values whose rank is more than [`WINDOW_DEVIATIONS`] standard deviations away are clamped, and pairs that
//! are then equal form one group. A large group is drawn as a whole, by the normal approximation of the binomial
//! distribution, so that a million pairs cost little more than a thousand.

use vcr_base::random::Stream;

use crate::metric::Statistic;

/// Half the width of the window of ranks, in standard deviations of the percentile's rank.
const WINDOW_DEVIATIONS: f64 = 5.0;
/// Minimum number of pairs of a group that is drawn as a whole.
const LARGE_GROUP: usize = 100;

/// The change of a percentile and its resampled values.
#[derive(Clone, Debug, PartialEq)]
pub struct PercentileChange {
    /// The percentile of the reference.
    pub reference: f64,
    /// The percentile of the compared side.
    pub compared: f64,
    /// The change from the reference to the compared side.
    pub change: f64,
    resampled: Vec<f64>,
}

impl PercentileChange {
    /// The change below which this share of the resampled changes lies; the sample's own change without resamples.
    #[must_use]
    pub fn bound(&self, share: f64) -> f64 {
        let at = (self.resampled.len() as f64 * share) as usize;
        let last = self.resampled.len().saturating_sub(1);
        self.resampled.get(at.min(last)).copied().unwrap_or(self.change)
    }
}

/// Pairs with equal values, which are drawn together.
struct Group {
    left: f64,
    right: f64,
    pairs: usize,
}

/// Resamples the change of a percentile. `change` computes the change between two values. `resamples` takes the
/// sample's change and returns the number of resamples. None without pairs, or if the statistic is not a
/// percentile.
#[must_use]
pub fn percentile_change(
    pairs: &[(f64, f64)],
    percentile: Statistic,
    change: fn(f64, f64) -> f64,
    resamples: impl Fn(f64) -> usize,
    mut stream: Stream,
) -> Option<PercentileChange> {
    let rank = percentile.rank(pairs.len()).filter(|_| !pairs.is_empty())?;
    let reference = percentile.of(pairs.iter().map(|pair| pair.0).collect());
    let compared = percentile.of(pairs.iter().map(|pair| pair.1).collect());
    let observed = change(reference, compared);
    let groups = groups(pairs, rank);
    let order = |of: fn(&Group) -> f64| {
        let mut order: Vec<u32> = (0..groups.len() as u32).collect();
        order.sort_by(|a, b| of(&groups[*a as usize]).total_cmp(&of(&groups[*b as usize])));
        order
    };
    let (left, right) = (order(|group| group.left), order(|group| group.right));
    let draw = Draw::of(&groups);
    let mut times = vec![0_u32; groups.len()];
    let mut resampled: Vec<f64> = (0..resamples(observed))
        .map(|_| {
            draw.again(&mut stream, &mut times);
            let at = |order: &[u32]| at_rank(order, &times, rank);
            change(groups[at(&left)].left, groups[at(&right)].right)
        })
        .collect();
    resampled.sort_by(f64::total_cmp);
    Some(PercentileChange { reference, compared, change: observed, resampled })
}

fn window(mut values: Vec<f64>, rank: usize) -> (f64, f64) {
    let count = values.len() as f64;
    let share = (rank as f64 / count).clamp(1.0 / count, 1.0);
    let width = (WINDOW_DEVIATIONS * (count * share * (1.0 - share)).sqrt()).ceil() as usize + 1;
    let (low, high) = (rank.saturating_sub(width), (rank + width).min(values.len() - 1));
    let low = *values.select_nth_unstable_by(low, f64::total_cmp).1;
    let high = *values.select_nth_unstable_by(high, f64::total_cmp).1;
    (low, high)
}

fn groups(pairs: &[(f64, f64)], rank: usize) -> Vec<Group> {
    let (left_low, left_high) = window(pairs.iter().map(|pair| pair.0).collect(), rank);
    let (right_low, right_high) = window(pairs.iter().map(|pair| pair.1).collect(), rank);
    let clamped =
        pairs.iter().map(|(left, right)| (left.clamp(left_low, left_high), right.clamp(right_low, right_high)));
    let mut clamped: Vec<(f64, f64)> = clamped.collect();
    clamped.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let of_one = |pairs: &[(f64, f64)]| Group { left: pairs[0].0, right: pairs[0].1, pairs: pairs.len() };
    clamped.chunk_by(|a, b| a == b).map(of_one).collect()
}

struct Draw {
    count: usize,
    /// Groups that are drawn as a whole: (index of the group, number of pairs).
    large: Vec<(usize, usize)>,
    /// The group's index for each pair that is drawn by itself.
    single: Vec<u32>,
}

impl Draw {
    fn of(groups: &[Group]) -> Self {
        let mut draw = Self { count: 0, large: Vec::new(), single: Vec::new() };
        for (index, group) in groups.iter().enumerate() {
            draw.count += group.pairs;
            if group.pairs >= LARGE_GROUP {
                draw.large.push((index, group.pairs));
            } else {
                draw.single.extend(std::iter::repeat_n(index as u32, group.pairs));
            }
        }
        draw
    }

    /// Draws one resample, and sets `times` to the number of draws of each group.
    fn again(&self, stream: &mut Stream, times: &mut [u32]) {
        times.fill(0);
        let (mut to_draw, mut left) = (self.count, self.count);
        for (index, pairs) in &self.large {
            let share = *pairs as f64 / left as f64;
            let mean = to_draw as f64 * share;
            let deviation = (mean * (1.0 - share)).sqrt();
            let drawn = if share < 1.0 { mean + deviation * stream.normal() } else { mean };
            let drawn = (drawn.round().max(0.0) as usize).min(to_draw);
            times[*index] = drawn as u32;
            to_draw -= drawn;
            left -= pairs;
        }
        for _ in 0..to_draw {
            let drawn = (stream.unit() * self.single.len() as f64) as usize;
            if let Some(group) = self.single.get(drawn.min(self.single.len().saturating_sub(1))) {
                times[*group as usize] += 1;
            }
        }
    }
}

/// Returns the group at a rank of the resample, with groups in this order.
fn at_rank(order: &[u32], times: &[u32], rank: usize) -> usize {
    let mut passed = 0;
    for index in order {
        passed += times[*index as usize] as usize;
        if passed > rank {
            return *index as usize;
        }
    }
    order.last().map_or(0, |index| *index as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative(reference: f64, compared: f64) -> f64 {
        (compared - reference) / reference
    }

    fn pairs(count: usize, factor: f64) -> Vec<(f64, f64)> {
        let mut stream = Stream::new(7, "test");
        let mut one = || 100.0 * (0.3 * stream.normal()).exp();
        (0..count).map(|_| (one(), factor * one())).collect()
    }

    fn change(pairs: &[(f64, f64)], resamples: usize, seed: u64) -> PercentileChange {
        percentile_change(pairs, Statistic::P95, relative, |_| resamples, Stream::new(seed, "ttft")).expect("pairs")
    }

    #[test]
    fn the_bounds_hold_the_truth_and_repeat() {
        let pairs = pairs(5000, 1.1);
        let found = change(&pairs, 2000, 1);
        assert!(found.bound(0.005) < 0.1 && 0.1 < found.bound(0.995), "{:?}", (found.bound(0.005), found.bound(0.995)));
        assert!(found.bound(0.005) > 0.0, "an increase of a tenth is seen");
        assert_eq!(found, change(&pairs, 2000, 1));
        assert_ne!(found, change(&pairs, 2000, 2));
    }

    /// Compared with plain resampling, clamping, grouping and drawing whole groups change only the noise.
    #[test]
    fn a_window_gives_the_bounds_of_all_pairs() {
        let pairs = pairs(20_000, 1.0);
        let found = change(&pairs, 2000, 1);
        let rank = Statistic::P95.rank(pairs.len()).expect("a percentile");
        let mut stream = Stream::new(3, "plain");
        let mut plain: Vec<f64> = (0..300)
            .map(|_| {
                let drawn: Vec<_> =
                    (0..pairs.len()).map(|_| pairs[(stream.unit() * pairs.len() as f64) as usize]).collect();
                let at = |mut values: Vec<f64>| *values.select_nth_unstable_by(rank, f64::total_cmp).1;
                relative(at(drawn.iter().map(|pair| pair.0).collect()), at(drawn.iter().map(|pair| pair.1).collect()))
            })
            .collect();
        plain.sort_by(f64::total_cmp);
        let spread = |low: f64, high: f64| high - low;
        let (own, other) = (spread(found.bound(0.1), found.bound(0.9)), spread(plain[30], plain[270]));
        assert!((own / other - 1.0).abs() < 0.2, "{own} {other}");
        assert!((found.bound(0.5) - plain[150]).abs() < 0.3 * other);
    }

    #[test]
    fn ties_and_single_pairs_have_a_change() {
        let same = vec![(5.0, 6.0); 1000];
        let found = change(&same, 100, 1);
        assert_eq!((found.change, found.bound(0.0), found.bound(1.0)), (0.2, 0.2, 0.2));
        assert_eq!(change(&[(1.0, 2.0)], 10, 1).bound(0.5), 1.0);
        assert_eq!(change(&[(1.0, 2.0)], 0, 1).bound(0.5), 1.0);
        assert!(percentile_change(&[], Statistic::P95, relative, |_| 10, Stream::new(1, "x")).is_none());
        assert!(percentile_change(&same, Statistic::Mean, relative, |_| 10, Stream::new(1, "x")).is_none());
    }
}
