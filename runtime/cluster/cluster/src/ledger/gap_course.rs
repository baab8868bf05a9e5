//! Gaps between output tokens over time: percentiles by interval, in bounded memory.

use std::collections::BTreeMap;

use super::Ledger;

/// The maximum number of intervals. Beyond it, pairs of intervals are joined, so intervals become twice as long.
const MAX_INTERVALS: usize = 120;
const FIRST_INTERVAL_NS: u64 = 1_000_000;
/// Number of leading bits of a gap that are kept: a percentile is at most 0.05 % off.
const KEPT_BITS: u32 = 11;

/// The gaps between consecutive output tokens of a run, by the interval in which they ended.
#[derive(Clone, Debug)]
pub struct GapCourse {
    interval_ns: u64,
    /// For each interval, the number of gaps by their rounded value in nanoseconds.
    intervals: Vec<BTreeMap<u64, u64>>,
}

impl Default for GapCourse {
    fn default() -> Self {
        Self { interval_ns: FIRST_INTERVAL_NS, intervals: Vec::new() }
    }
}

impl GapCourse {
    /// Length of an interval in nanoseconds; the first interval begins at 0.
    #[must_use]
    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// A percentile of the gaps of each interval; None for an interval without gaps.
    pub fn percentile_ns(&self, percent: f64) -> impl Iterator<Item = Option<u64>> {
        self.intervals.iter().map(move |gaps| {
            let rank = vcr_base::percentile::percentile_rank(gaps.values().sum(), percent)?;
            let mut before = 0;
            gaps.iter().find_map(|(gap_ns, times)| {
                before += times;
                (before > rank).then_some(*gap_ns)
            })
        })
    }

    fn add(&mut self, at_ns: u64, gap_ns: u64, times: u64) {
        while at_ns / self.interval_ns >= MAX_INTERVALS as u64 {
            self.join_pairs();
        }
        let index = (at_ns / self.interval_ns) as usize;
        if self.intervals.len() <= index {
            self.intervals.resize_with(index + 1, BTreeMap::new);
        }
        *self.intervals[index].entry(rounded(gap_ns)).or_default() += times;
    }

    fn join_pairs(&mut self) {
        self.interval_ns *= 2;
        let mut halves = std::mem::take(&mut self.intervals).into_iter();
        while let Some(mut first) = halves.next() {
            for (gap_ns, times) in halves.next().unwrap_or_default() {
                *first.entry(gap_ns).or_default() += times;
            }
            self.intervals.push(first);
        }
    }
}

/// Rounds a gap to its leading bits: the middle of the gaps that share these bits.
fn rounded(gap_ns: u64) -> u64 {
    let lost_bits = (u64::BITS - gap_ns.leading_zeros()).saturating_sub(KEPT_BITS);
    if lost_bits == 0 {
        return gap_ns;
    }
    (gap_ns >> lost_bits << lost_bits) + (1 << (lost_bits - 1))
}

impl Ledger {
    pub(crate) fn keep_gap_course(&mut self) {
        self.gap_course = Some(Box::default());
    }

    pub(crate) fn take_gap_course(&mut self) -> Option<GapCourse> {
        self.gap_course.take().map(|course| *course)
    }

    /// Records consecutive gaps of each of `requests` requests; the first gap ended at `first_end_ns`.
    #[inline]
    pub(super) fn note_gaps(&mut self, first_end_ns: u64, gaps_ns: &[u64], requests: u64) {
        let Some(course) = &mut self.gap_course else { return };
        let mut end_ns = first_end_ns;
        for (index, &gap_ns) in gaps_ns.iter().enumerate() {
            if index > 0 {
                end_ns = end_ns.saturating_add(gap_ns);
            }
            course.add(end_ns, gap_ns, requests);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_intervals_however_long_the_run() {
        let mut course = GapCourse::default();
        for step in 0..100_000_u64 {
            let gap_ns = if step < 50_000 { 10_000_000 } else { 20_000_000 + step % 100 * 1_000 };
            course.add(step * 10_000_000, gap_ns, 3);
        }
        assert!(course.intervals.len() <= MAX_INTERVALS && course.interval_ns() * 120 >= 1_000_000_000_000);
        let known: Vec<u64> = course.percentile_ns(99.0).flatten().collect();
        assert_eq!(known.len(), course.intervals.len(), "each interval has gaps");
        let is_near = |value: u64, expected: f64| (value as f64 / expected - 1.0).abs() < 0.0005;
        assert!(is_near(known[0], 10e6) && is_near(known[known.len() - 1], 20.098e6), "{known:?}");
        let gaps: u64 = course.intervals.iter().flat_map(BTreeMap::values).sum();
        assert_eq!(gaps, 300_000);
    }

    #[test]
    fn an_interval_without_gaps_has_no_percentile() {
        let mut course = GapCourse::default();
        course.add(2_500_000, 100, 1);
        assert_eq!(course.percentile_ns(50.0).collect::<Vec<_>>(), [None, None, Some(100)]);
    }
}
