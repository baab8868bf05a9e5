//! The samples of one metric: kept exactly, in little room, and summed up.
//!
//! The requests of one batch share their token times, so samples are kept as runs
//! of equal values: a run of millions of tokens costs little more than its steps.

use serde::Serialize;

/// Values below this are counted and not listed: sizes of batches, gaps of 0.
const COUNTED_VALUES: u64 = 1 << 12;

/// A run of up to this many equal values fits into one word with its value.
const MOST_PACKED: u64 = (1 << PACKED_COUNT_BITS) - 1;
const PACKED_COUNT_BITS: u32 = 20;
/// Values from here on have no place for a count beside them.
const LEAST_WIDE: u64 = 1 << (u64::BITS - PACKED_COUNT_BITS);

/// Samples of one trend, exact, as runs of equal values.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// How often each small value came.
    counts: Vec<u64>,
    /// Runs of larger ones: the value, and in the lowest bits how often.
    packed: Vec<u64>,
    /// Runs of values, or lengths, that are too large for that.
    wide: Vec<(u64, u64)>,
}

impl Samples {
    /// Adds `times` equal samples.
    #[inline]
    pub fn push(&mut self, value: u64, times: u64) {
        match self.packed.last_mut() {
            // A step's requests share their gaps.
            Some(last) if *last >> PACKED_COUNT_BITS == value && (*last & MOST_PACKED) + times <= MOST_PACKED => {
                *last += times;
            }
            _ => self.push_run(value, times),
        }
    }

    /// Adds each of `values` so many times.
    pub fn push_each(&mut self, values: &[u64], times: u64) {
        self.packed.reserve(values.len());
        let mut before = None;
        for &value in values {
            let packs = value.wrapping_sub(COUNTED_VALUES) < LEAST_WIDE - COUNTED_VALUES && times <= MOST_PACKED;
            if packs && before != Some(value) {
                self.packed.push(value << PACKED_COUNT_BITS | times);
            } else {
                self.push(value, times);
            }
            before = Some(value);
        }
    }

    fn push_run(&mut self, value: u64, times: u64) {
        if value < COUNTED_VALUES {
            if self.counts.len() <= value as usize {
                self.counts.resize(value as usize + 1, 0);
            }
            self.counts[value as usize] += times;
        } else if value < LEAST_WIDE && times <= MOST_PACKED {
            self.packed.push(value << PACKED_COUNT_BITS | times);
        } else {
            self.wide.push((value, times));
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty() && self.wide.is_empty() && self.counts.iter().all(|&count| count == 0)
    }

    /// Adds those of `other`.
    pub(crate) fn append(&mut self, other: &Self) {
        let most = self.counts.len().max(other.counts.len());
        self.counts.resize(most, 0);
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.packed.extend_from_slice(&other.packed);
        self.wide.extend_from_slice(&other.wide);
    }

    /// Puts them in order.
    #[must_use]
    pub fn sorted(mut self) -> SortedSamples {
        sort_packed(&mut self.packed);
        self.wide.sort_unstable();
        let packed: u64 = self.packed.iter().map(|run| run & MOST_PACKED).sum();
        let wide: u64 = self.wide.iter().map(|(_, times)| times).sum();
        let count = self.counts.iter().sum::<u64>() + packed + wide;
        SortedSamples { samples: self, count }
    }
}

/// Samples in order.
#[derive(Clone, Debug, Default)]
pub struct SortedSamples {
    samples: Samples,
    count: u64,
}

impl SortedSamples {
    /// Gives the values in ascending order, each with how often it came.
    pub fn for_each(&self, mut give: impl FnMut(u64, u64)) {
        let Samples { counts, packed, wide } = &self.samples;
        for (value, &times) in (0..).zip(counts) {
            if times > 0 {
                give(value, times);
            }
        }
        // Pieces of one value are joined: how they came must not show.
        let mut joined = (0, 0);
        let mut join = |value, times| {
            if value == joined.0 {
                joined.1 += times;
            } else {
                if joined.1 > 0 {
                    give(joined.0, joined.1);
                }
                joined = (value, times);
            }
        };
        let mut wide = wide.iter().peekable();
        for run in packed {
            let value = run >> PACKED_COUNT_BITS;
            while let Some(&(other, times)) = wide.next_if(|(other, _)| *other < value) {
                join(other, times);
            }
            join(value, run & MOST_PACKED);
        }
        wide.for_each(|&(value, times)| join(value, times));
        if joined.1 > 0 {
            give(joined.0, joined.1);
        }
    }

    /// Number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many of them are 0.
    #[must_use]
    pub fn zeros(&self) -> u64 {
        self.samples.counts.first().copied().unwrap_or(0)
    }

    /// Sums the samples up; `None` without samples.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let count = self.count.checked_sub(1)? + 1;
        let ranks = PERCENTILES.map(|percent| ((count - 1) as f64 * percent / 100.0).round() as u64);
        let mut percentiles = [0; PERCENTILES.len()];
        let (mut reached, mut next) = (0, 0);
        let (mut least, mut max) = (None, 0);
        // Sums are of what is beyond the least, so that squares keep their digits. The
        // values come in order, so the order of summation is fixed.
        let (mut sum, mut squares) = (0u128, 0.0);
        self.for_each(|value, times| {
            let beyond = value - *least.get_or_insert(value);
            max = value;
            squares += beyond as f64 * beyond as f64 * times as f64;
            sum += u128::from(beyond) * u128::from(times);
            reached += times;
            while next < ranks.len() && ranks[next] < reached {
                percentiles[next] = value;
                next += 1;
            }
        });
        let min = least?;
        let beyond = sum as f64 / count as f64;
        let mean = (sum + u128::from(min) * u128::from(count)) as f64 / count as f64;
        let variance = (squares / count as f64 - beyond * beyond).max(0.0);
        let [p50, p75, p90, p95, p99] = percentiles;
        Some(Summary { count, mean, min, max, std: variance.sqrt(), p50, p75, p90, p95, p99 })
    }
}

/// Puts runs into the order of their values, least significant digits first: a run's
/// step costs a few reads of memory, however many there are.
fn sort_packed(packed: &mut Vec<u64>) {
    const DIGIT_BITS: u32 = 11;
    const FEW: usize = 2048;
    if packed.len() < FEW {
        packed.sort_unstable();
        return;
    }
    let differing = packed.iter().fold(0, |bits, run| bits | (run ^ packed[0])) >> PACKED_COUNT_BITS;
    let mut sorted = vec![0; packed.len()];
    let mut shift = PACKED_COUNT_BITS;
    while shift < u64::BITS && differing >> (shift - PACKED_COUNT_BITS) > 0 {
        let digit = |run: u64| (run >> shift) as usize & ((1 << DIGIT_BITS) - 1);
        let mut places = [0u32; 1 << DIGIT_BITS];
        packed.iter().for_each(|&run| places[digit(run)] += 1);
        let mut next = 0;
        for place in &mut places {
            next += std::mem::replace(place, next);
        }
        for &run in packed.iter() {
            let place = &mut places[digit(run)];
            sorted[*place as usize] = run;
            *place += 1;
        }
        std::mem::swap(packed, &mut sorted);
        shift += DIGIT_BITS;
    }
}

const PERCENTILES: [f64; 5] = [50.0, 75.0, 90.0, 95.0, 99.0];

/// A trend summed up. Values are in the metric's inner unit (nanoseconds for
/// times). A percentile `p` is the sample of rank `round((n - 1) * p / 100)`,
/// without interpolation, as Dynamo's replay reports it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of samples.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest sample.
    pub min: u64,
    /// Largest sample.
    pub max: u64,
    /// Population standard deviation.
    pub std: f64,
    /// Median.
    pub p50: u64,
    /// 75th percentile.
    pub p75: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn summary(values: impl IntoIterator<Item = u64>) -> Summary {
        let mut samples = Samples::default();
        values.into_iter().for_each(|value| samples.push(value, 1));
        samples.sorted().summary().unwrap()
    }

    #[test]
    fn percentiles_are_samples_by_rounded_rank() {
        let all = summary(1..=100);
        assert_eq!((all.p50, all.p90, all.p99), (51, 90, 99));
        assert_eq!((all.min, all.max, all.count), (1, 100, 100));
        assert!((all.mean - 50.5).abs() < 1e-12);
    }

    #[test]
    fn order_and_runs_do_not_matter() {
        assert_eq!(summary([3, 3, 1, 2, 3]), summary([1, 3, 2, 3, 3]));
        assert_eq!(summary([7]).p99, 7);
    }

    #[test]
    fn no_samples_have_no_summary() {
        assert_eq!(Samples::default().sorted().summary(), None);
    }

    proptest! {
        #[test]
        fn runs_are_the_samples_in_order(
            runs in prop::collection::vec(
                (prop_oneof![0u64..5000, 4000u64..6000, any::<u64>()], prop_oneof![1u64..4, 1u64..3_000_000]),
                0..300,
            ),
            copies in prop_oneof![4 => 1usize..12, 1 => 20usize..60],
        ) {
            let mut samples = Samples::default();
            let mut model: Vec<(u64, u64)> = Vec::new();
            for (copy, &(value, times)) in (0..copies as u64).flat_map(|copy| runs.iter().map(move |run| (copy, run))) {
                // Many distinct ones.
                let value = value.wrapping_add(copy * 1_000_003);
                samples.push(value, times);
                model.push((value, times));
            }
            model.sort_unstable();
            let mut expected: Vec<(u64, u64)> = Vec::new();
            for (value, times) in model {
                match expected.last_mut() {
                    Some(last) if last.0 == value => last.1 += times,
                    _ => expected.push((value, times)),
                }
            }
            let mut got = Vec::new();
            samples.sorted().for_each(|value, times| got.push((value, times)));
            prop_assert_eq!(got, expected);
        }
    }
}
