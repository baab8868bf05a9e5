//! Random numbers of a workload: the same seed gives the same numbers on every machine.

use vcr_core::policy::Slo;
use vcr_core::seed;

pub(super) struct Draw {
    seed: u64,
    purpose: &'static str,
    drawn: u64,
}

impl Draw {
    pub(super) fn new(seed: u64, purpose: &'static str) -> Self {
        Self { seed, purpose, drawn: 0 }
    }

    pub(super) fn bits(&mut self) -> u64 {
        let bits = seed::derive(self.seed, self.purpose, self.drawn);
        self.drawn += 1;
        bits
    }

    /// A uniform number from 0 to `bound - 1`; `bound` is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// A uniform number from `least` to `most`, inclusive.
    pub(super) fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True with probability 1 / `times`.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A length with a long tail: from `least` to `most`, each doubling is equally likely.
    pub(super) fn length(&mut self, least: u64, most: u64) -> u64 {
        let doublings = u64::from((most / least.max(1)).max(1).ilog2());
        let low = least << self.below(doublings + 1);
        self.within(low, (2 * low).min(most).max(low)).min(most)
    }

    /// The latency objectives of a request; most requests have none.
    pub(super) fn slo(&mut self) -> Slo {
        if !self.once_in(4) {
            return Slo::default();
        }
        let limit = |draw: &mut Self, most: u64| draw.once_in(2).then(|| draw.length(1_000_000, most));
        Slo {
            ttft_ns: limit(self, 10_000_000_000),
            tpot_ns: limit(self, 200_000_000),
            e2e_ns: limit(self, 100_000_000_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_stay_in_their_range_and_reach_both_ends() {
        let mut draw = Draw::new(7, "lengths");
        let lengths: Vec<u64> = (0..2_000).map(|_| draw.length(4, 4_096)).collect();
        assert!(lengths.iter().all(|length| (4..=4_096).contains(length)));
        assert!(lengths.iter().any(|length| *length < 8) && lengths.iter().any(|length| *length > 2_048));
    }
}
