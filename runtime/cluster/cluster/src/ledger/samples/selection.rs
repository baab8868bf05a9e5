//! Finds the samples of given ranks without sorting.
//!
//! Samples are counted by size class. Only the classes that contain a requested rank are examined further, so any
//! number of samples takes two passes.

use super::{PACKED_COUNT_BITS, Samples};

/// A value and its number of occurrences.
type Run = (u64, u64);

/// Number of size classes per power of two.
const SIZES_PER_OCTAVE: usize = 1 << SIZE_BITS;
const SIZE_BITS: u32 = 7;
/// One class for samples below the origin, one for samples equal to it, the classes of 64 powers of two, and one
/// for samples that are rounded up to the next class.
const NUM_SIZES: usize = 2 + u64::BITS as usize * SIZES_PER_OCTAVE + 1;

/// Up to this many runs are sorted.
const FEW: usize = 64;
/// Up to this many runs are not counted by size, because the counts would take more memory and time than the runs.
const FEW_COUNTED: usize = 512;

/// Number of samples in each size class. A sample's class depends on its distance from the origin `least`.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    least: u64,
    /// Counts by class; empty if there are few samples, which then share one class.
    counts: Vec<u64>,
}

impl Sizes {
    /// Makes empty counts. The origin is one of the smallest samples, so that samples close to each other still get
    /// different classes.
    pub(super) fn for_samples(samples: &Samples) -> Self {
        const LOOKED_AT: usize = 512;
        if samples.num_runs() <= FEW_COUNTED {
            return Self { least: 0, counts: Vec::new() };
        }
        let every = (samples.single.len() + samples.packed.len()) / LOOKED_AT + 1;
        let single = samples.single.iter().step_by(every).map(|&value| value.into());
        let packed = samples.packed.iter().step_by(every).map(|run| run >> PACKED_COUNT_BITS);
        let mut some: Vec<u64> = single.chain(packed).collect();
        some.sort_unstable();
        Self { least: some.get(some.len() / 64).copied().unwrap_or(0), counts: vec![0; NUM_SIZES] }
    }

    /// The size class of a value. It never decreases with the value.
    #[inline]
    fn size_of(&self, value: u64) -> usize {
        const SHIFT: u32 = f64::MANTISSA_DIGITS - 1 - SIZE_BITS;
        const OF_ONE: u64 = 1f64.to_bits() >> SHIFT;
        let Some(distance) = value.checked_sub(self.least) else { return 0 };
        // The conversion of a signed number to a double takes one instruction.
        let double = i64::try_from(distance).map_or(distance as f64, |distance| distance as f64);
        (double.to_bits() >> SHIFT).saturating_sub(OF_ONE - 1) as usize + 1
    }

    /// Whether samples must be counted.
    pub(super) fn are_counted(&self) -> bool {
        !self.counts.is_empty()
    }

    #[inline]
    pub(super) fn count(&mut self, value: u64, times: u64) {
        let size = self.size_of(value);
        self.counts[size] += times;
    }

    /// The samples of `ranks`; all of `samples` must have been counted. See [`super::CountedSamples::at_ranks`].
    pub(super) fn at_ranks<const N: usize>(&self, samples: &Samples, ranks: [u64; N]) -> [u64; N] {
        assert!(ranks.is_sorted(), "ranks ascend: {ranks:?}");
        if !self.are_counted() {
            let mut runs = Vec::with_capacity(samples.num_runs());
            samples.for_each(|value, times| runs.push((value, times)));
            runs.sort_unstable();
            return ranks.map(|rank| at_rank_in_order(&runs, rank));
        }
        // The runs of each requested class, and the number of samples in smaller classes.
        let mut asked: Vec<(u64, Vec<Run>)> = Vec::new();
        let mut place_of = vec![u8::MAX; NUM_SIZES];
        let mut places = [0; N];
        let (mut smaller, mut next) = (0, 0);
        for (&times, place) in self.counts.iter().zip(&mut place_of) {
            while next < N && ranks[next] < smaller + times {
                if *place == u8::MAX {
                    *place = asked.len() as u8;
                    asked.push((smaller, Vec::new()));
                }
                places[next] = asked.len() - 1;
                next += 1;
            }
            smaller += times;
        }
        assert_eq!(next, N, "ranks {ranks:?} of {smaller} samples");
        samples.for_each(|value, times| {
            let place = place_of[self.size_of(value)];
            if place != u8::MAX {
                asked[usize::from(place)].1.push((value, times));
            }
        });
        std::array::from_fn(|index| {
            let (smaller, runs) = &asked[places[index]];
            at_rank(runs.clone(), ranks[index] - smaller)
        })
    }
}

/// The sample of a rank among `runs`, which may be in any order.
fn at_rank(mut runs: Vec<Run>, mut rank: u64) -> u64 {
    const PARTS: usize = 1 << 11;
    while runs.len() > FEW {
        let (least, most) =
            runs.iter().fold((u64::MAX, 0), |(least, most), &(value, _)| (least.min(value), most.max(value)));
        if least == most {
            return least;
        }
        let shift = (u64::BITS - (most - least).leading_zeros()).saturating_sub(PARTS.ilog2());
        let part_of = |value: u64| ((value - least) >> shift) as usize;
        let mut counts = [0; PARTS];
        runs.iter().for_each(|&(value, times)| counts[part_of(value)] += times);
        let mut part = 0;
        while counts[part] <= rank {
            rank -= counts[part];
            part += 1;
        }
        runs.retain(|&(value, _)| part_of(value) == part);
    }
    runs.sort_unstable();
    at_rank_in_order(&runs, rank)
}

/// The sample of a rank among ascending `runs`.
fn at_rank_in_order(runs: &[Run], mut rank: u64) -> u64 {
    for &(value, times) in runs {
        match rank.checked_sub(times) {
            Some(left) => rank = left,
            None => return value,
        }
    }
    unreachable!("the rank is one of theirs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_with_values() {
        for least in [0, 5, 1_000_000, u64::MAX] {
            let sizes = Sizes { least, counts: Vec::new() };
            let around = (0..u64::BITS).flat_map(|bit| [(1 << bit) - 1, 1 << bit]);
            let mut values: Vec<u64> = around.flat_map(|far| [far, least.saturating_add(far)]).collect();
            values.extend([u64::MAX - 1, u64::MAX]);
            values.sort_unstable();
            assert!(values.windows(2).all(|pair| sizes.size_of(pair[0]) <= sizes.size_of(pair[1])));
            assert!(sizes.size_of(u64::MAX) < NUM_SIZES);
            assert_eq!(sizes.size_of(least), 1);
        }
    }
}
