//! Percentiles of samples.
//!
//! The percentile `p` of `n` samples is the sample of rank `round((n - 1) p / 100)`, from 0, in ascending order. It
//! is not interpolated, so it is always a measured value. Reports, captures, comparisons and fits use this rule.

/// The rank, from 0, of a percentile of `count` samples; none without samples.
#[must_use]
pub fn percentile_rank(count: u64, percent: f64) -> Option<u64> {
    let last = count.checked_sub(1)?;
    // The cast saturates.
    Some(((last as f64 * percent / 100.0).round() as u64).min(last))
}

/// Rank, from 0, of the sample at the share `share` (0 to 1) of `count` samples; none without samples.
#[must_use]
pub fn share_rank(count: usize, share: f64) -> Option<usize> {
    let last = count.checked_sub(1)?;
    Some(((last as f64 * share).round() as usize).min(last))
}

/// The sample at a share of ascending samples; none without samples.
#[must_use]
pub fn at_share<T: Copy>(ascending: &[T], share: f64) -> Option<T> {
    Some(ascending[share_rank(ascending.len(), share)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_rounded_and_stay_among_the_samples() {
        let ranks = |count, percents: [f64; 5]| percents.map(|percent| percentile_rank(count, percent));
        assert_eq!(ranks(0, [0.0, 1.0, 50.0, 99.0, 100.0]), [None; 5]);
        assert_eq!(ranks(1, [0.0, 1.0, 50.0, 99.0, 100.0]), [Some(0); 5]);
        // 0.5 and 49.5 are rounded up.
        assert_eq!(ranks(100, [0.0, 1.0, 50.0, 99.0, 100.0]), [0, 1, 50, 98, 99].map(Some));
        assert_eq!(ranks(3, [-5.0, 24.0, 26.0, 400.0, f64::NAN]), [0, 0, 1, 2, 0].map(Some));
    }

    #[test]
    fn shares_have_the_same_rule() {
        assert_eq!(at_share::<u64>(&[], 0.5), None);
        let samples: Vec<u64> = (10..30).collect();
        for percent in 0..=100_u32 {
            let rank = percentile_rank(20, f64::from(percent)).expect("there are samples");
            assert_eq!(at_share(&samples, f64::from(percent) / 100.0), Some(10 + rank), "{percent}");
        }
    }
}
