//! Samples of given ranks, found without sorting.
//!
//! Samples of about one size are counted together, and only those of the sizes in
//! which a rank lies are looked at closer: two passes, however many samples there are.

use super::{PACKED_COUNT_BITS, Samples};

/// A value and how often it comes.
type Run = (u64, u64);

/// Sizes between that of all smaller values and that of all larger ones.
const MIDDLE_SIZES: usize = 1 << 11;
const NUM_SIZES: usize = MIDDLE_SIZES + 2;

/// Runs of so few values are sorted.
const FEW: usize = 64;

/// Cuts the range in which nearly all values lie into sizes.
#[derive(Clone, Copy, Debug)]
struct Scale {
    least: u64,
    shift: u32,
}

impl Scale {
    /// Of the values from `least` to `most`, and some more.
    fn between(least: u64, most: u64) -> Self {
        let bits = u64::BITS - (most - least).leading_zeros();
        Self { least, shift: bits.saturating_sub(MIDDLE_SIZES.ilog2()) }
    }

    /// The size of a value; larger values are of no smaller size.
    #[inline]
    fn size_of(self, value: u64) -> usize {
        match value.checked_sub(self.least) {
            Some(beyond) => (beyond >> self.shift).min(MIDDLE_SIZES as u64) as usize + 1,
            None => 0,
        }
    }
}

/// How many samples there are of each size.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    scale: Scale,
    counts: Box<[u64; NUM_SIZES]>,
}

impl Sizes {
    /// For what a few of the samples suggest, so that those far off do not matter. None
    /// are counted yet.
    pub(super) fn for_samples(samples: &Samples) -> Self {
        const LOOKED_AT: usize = 512;
        let every = samples.packed.len() / LOOKED_AT + 1;
        let mut some: Vec<u64> = samples.packed.iter().step_by(every).map(|run| run >> PACKED_COUNT_BITS).collect();
        some.sort_unstable();
        let off = some.len() / 64;
        let scale = match (some.get(off), some.iter().nth_back(off)) {
            (Some(&least), Some(&most)) if least <= most => Scale::between(least, most),
            _ => Scale { least: 0, shift: 0 },
        };
        Self { scale, counts: Box::new([0; NUM_SIZES]) }
    }

    /// Counts `times` equal samples.
    #[inline]
    pub(super) fn count(&mut self, value: u64, times: u64) {
        self.counts[self.scale.size_of(value)] += times;
    }

    /// The samples of `ranks`, all of `samples` being counted; see
    /// [`super::CountedSamples::at_ranks`].
    pub(super) fn at_ranks<const N: usize>(&self, samples: &Samples, ranks: [u64; N]) -> [u64; N] {
        assert!(ranks.is_sorted(), "ranks ascend: {ranks:?}");
        // The values of each size that is asked for, and how many samples are smaller.
        let mut asked: Vec<(u64, Vec<Run>)> = Vec::new();
        let mut place_of = [u8::MAX; NUM_SIZES];
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
            let place = place_of[self.scale.size_of(value)];
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

/// The sample of a rank among `runs`.
fn at_rank(mut runs: Vec<Run>, mut rank: u64) -> u64 {
    while runs.len() > FEW {
        let (least, most) =
            runs.iter().fold((u64::MAX, 0), |(least, most), &(value, _)| (least.min(value), most.max(value)));
        if least == most {
            return least;
        }
        let scale = Scale::between(least, most);
        let mut counts = [0; NUM_SIZES];
        runs.iter().for_each(|&(value, times)| counts[scale.size_of(value)] += times);
        let mut size = 0;
        while counts[size] <= rank {
            rank -= counts[size];
            size += 1;
        }
        runs.retain(|&(value, _)| scale.size_of(value) == size);
    }
    runs.sort_unstable();
    for (value, times) in runs {
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
        for (least, most) in [(0, 0), (5, 6), (1000, 1_000_000), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            let scale = Scale::between(least, most);
            let mut values: Vec<u64> = (0..u64::BITS).flat_map(|bit| [(1 << bit) - 1, 1 << bit]).collect();
            values.extend([least, most, u64::MAX]);
            values.sort_unstable();
            assert!(values.windows(2).all(|pair| scale.size_of(pair[0]) <= scale.size_of(pair[1])));
            assert!(1 <= scale.size_of(least) && scale.size_of(most) <= MIDDLE_SIZES, "{scale:?}");
        }
    }
}
