//! Compact, exact samples of one metric, and their summary.
//!
//! The requests of a batch share their token times, so samples are stored as runs of equal values. Memory therefore
//! grows with the number of steps, not of tokens. No result depends on the order of the samples.

mod moments;
mod parts;
mod selection;

use serde::Serialize;
use vcr_base::percentile::percentile_rank;

pub use moments::Moments;
use parts::Parts;
use selection::Sizes;

/// Values below this limit are counted by value instead of listed. Batch sizes and zero gaps are typical.
const COUNTED_VALUES: u64 = 1 << 12;

/// Maximum length of a run of equal values that is stored in one word with its value.
const MAX_PACKED: u64 = (1 << PACKED_COUNT_BITS) - 1;
const PACKED_COUNT_BITS: u32 = 20;
/// The smallest value that leaves no room for a count in the same word.
const LEAST_WIDE: u64 = 1 << (u64::BITS - PACKED_COUNT_BITS);

/// Samples of one trend, stored exactly as runs of equal values.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Count of each value below `COUNTED_VALUES`.
    counts: Vec<u64>,
    /// Larger values that occurred once. With small batches, most values are here.
    single: Parts<u32>,
    /// Runs of larger values: the value, with the length of the run in the lowest bits.
    packed: Parts<u64>,
    /// Runs whose value or length is too large for `packed`.
    wide: Vec<(u64, u64)>,
}

impl Samples {
    /// Adds `times` equal samples.
    #[inline]
    pub fn push(&mut self, value: u64, times: u64) {
        match self.packed.last_mut() {
            // Consecutive samples are often equal, because a step's requests share their gaps.
            Some(last) if *last >> PACKED_COUNT_BITS == value && (*last & MAX_PACKED) + times <= MAX_PACKED => {
                *last += times;
            }
            _ if times == 1 => self.push_single(value),
            _ => self.push_run(value, times),
        }
    }

    fn push_single(&mut self, value: u64) {
        match u32::try_from(value) {
            // A repeated value begins a run.
            Ok(narrow) if self.single.last() == Some(narrow) => {
                self.single.pop();
                self.push_run(value, 2);
            }
            Ok(narrow) if value >= COUNTED_VALUES => self.single.push(narrow),
            _ => self.push_run(value, 1),
        }
    }

    /// Adds each of `values` `times` times.
    pub fn push_each(&mut self, values: &[u64], times: u64) {
        let are_below = |limit: u64| {
            let mut beyond = values.iter().map(|value| value.wrapping_sub(COUNTED_VALUES));
            values.first() != values.last() && beyond.all(|beyond| beyond < limit - COUNTED_VALUES)
        };
        if times == 1 && are_below(1 << u32::BITS) {
            self.single.extend(values.iter().map(|&value| value as u32));
        } else if times <= MAX_PACKED && are_below(LEAST_WIDE) {
            self.packed.extend(values.iter().map(|value| value << PACKED_COUNT_BITS | times));
        } else {
            values.iter().for_each(|&value| self.push(value, times));
        }
    }

    fn push_run(&mut self, value: u64, times: u64) {
        if value < COUNTED_VALUES {
            if self.counts.len() <= value as usize {
                self.counts.resize(value as usize + 1, 0);
            }
            self.counts[value as usize] += times;
        } else if value < LEAST_WIDE && times <= MAX_PACKED {
            self.packed.push(value << PACKED_COUNT_BITS | times);
        } else {
            self.wide.push((value, times));
        }
    }

    /// Whether there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.single.is_empty()
            && self.packed.is_empty()
            && self.wide.is_empty()
            && self.counts.iter().all(|&count| count == 0)
    }

    /// Upper bound of the number of different values.
    fn num_runs(&self) -> usize {
        self.counts.len() + self.single.len() + self.packed.len() + self.wide.len()
    }

    pub(crate) fn absorb(&mut self, other: Self) {
        let most = self.counts.len().max(other.counts.len());
        self.counts.resize(most, 0);
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.single.absorb(other.single);
        self.packed.absorb(other.packed);
        self.wide.extend(other.wide);
    }

    /// Calls `give` with each value and its number of occurrences. The order is arbitrary and a value may come
    /// several times, so results must not depend on either.
    #[inline]
    pub(crate) fn for_each(&self, mut give: impl FnMut(u64, u64)) {
        for (value, &times) in (0..).zip(&self.counts) {
            if times > 0 {
                give(value, times);
            }
        }
        self.single.for_each(|value| give(value.into(), 1));
        self.packed.for_each(|run| give(run >> PACKED_COUNT_BITS, run & MAX_PACKED));
        self.wide.iter().for_each(|&(value, times)| give(value, times));
    }
}

/// A complete set of samples, counted by size for fast percentiles.
#[derive(Clone, Debug)]
pub struct CountedSamples {
    samples: Samples,
    moments: Moments,
    sizes: Sizes,
}

impl From<Samples> for CountedSamples {
    fn from(samples: Samples) -> Self {
        let mut moments = Moments::default();
        let mut sizes = Sizes::for_samples(&samples);
        if sizes.are_counted() {
            samples.for_each(|value, times| {
                moments.add(value, times);
                sizes.count(value, times);
            });
        } else {
            samples.for_each(|value, times| moments.add(value, times));
        }
        Self { samples, moments, sizes }
    }
}

impl Default for CountedSamples {
    fn default() -> Self {
        Samples::default().into()
    }
}

impl CountedSamples {
    /// Number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.moments.count()
    }

    pub(crate) fn into_samples(self) -> Samples {
        self.samples
    }

    /// The sample of rank `round((n - 1) * percent / 100)`, as in a [`Summary`]; None without samples.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        Some(self.at_ranks([percentile_rank(self.count(), percent)?])[0])
    }

    /// Number of samples that are 0.
    #[must_use]
    pub fn zeros(&self) -> u64 {
        self.samples.counts.first().copied().unwrap_or(0)
    }

    /// Calls `give` with each value and its number of occurrences. The order is arbitrary and a value may come
    /// several times, so results must not depend on either.
    #[inline]
    pub fn for_each(&self, give: impl FnMut(u64, u64)) {
        self.samples.for_each(give);
    }

    /// The samples at these ascending ranks; rank 0 is the smallest sample.
    ///
    /// # Panics
    /// If ranks descend, or a rank is not below the number of samples.
    #[must_use]
    pub fn at_ranks<const N: usize>(&self, ranks: [u64; N]) -> [u64; N] {
        self.sizes.at_ranks(&self.samples, ranks)
    }

    /// The summary of the samples; None without samples.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let count = self.count();
        let last = count.checked_sub(1)?;
        let [p50, p75, p90, p95, p99] = PERCENTILES.map(|percent| percentile_rank(count, percent).unwrap_or(last));
        let [min, p50, p75, p90, p95, p99, max] = self.at_ranks([0, p50, p75, p90, p95, p99, last]);
        let (mean, std) = (self.moments.mean(), self.moments.std(min));
        Some(Summary { count, mean, min, max, std, p50, p75, p90, p95, p99 })
    }
}

const PERCENTILES: [f64; 5] = [50.0, 75.0, 90.0, 95.0, 99.0];

/// The summary of a trend. Times are in nanoseconds. Percentile `p` is the sample of rank `round((n - 1) * p /
/// 100)`, without interpolation, as Dynamo's replay reports it.
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
mod tests;
