//! Sums of samples, from which mean and deviation are computed.

/// Number, sum and sum of squares of whole numbers. They are exact, so they do not depend on the order of the
/// samples. For up to 2^40 samples below 2^44 (five hours in nanoseconds), derived values are exact except for
/// their last rounding.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    count: u64,
    sum: u128,
    squares: u128,
    /// Sum of the squares that are too large for `squares`, in units of `COARSE` squared.
    coarse_squares: u128,
}

const LEAST_COARSE: u64 = 1 << 44;
const COARSE: u64 = 1 << 20;

impl Moments {
    /// Adds `times` equal samples.
    #[inline]
    pub fn add(&mut self, value: u64, times: u64) {
        self.count += times;
        match value.checked_mul(times) {
            // Each sum needs a single multiplication of words.
            Some(sum) if value < LEAST_COARSE => {
                self.sum += u128::from(sum);
                self.squares += u128::from(sum) * u128::from(value);
            }
            _ => self.add_large(u128::from(value), u128::from(times)),
        }
    }

    #[cold]
    fn add_large(&mut self, value: u128, times: u128) {
        self.sum += value * times;
        if value < LEAST_COARSE.into() {
            self.squares += value * value * times;
        } else {
            let value = value / u128::from(COARSE);
            self.coarse_squares += value * value * times;
        }
    }

    /// Number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Arithmetic mean; NaN without samples.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count as f64
    }

    /// Population standard deviation. `least` must be the smallest sample.
    #[must_use]
    pub fn std(&self, least: u64) -> f64 {
        let (count, count_f64) = (u128::from(self.count), self.count as f64);
        let least = u128::from(least);
        let (beyond, squares) = if self.coarse_squares == 0 {
            // Subtracting the smallest sample preserves precision if squares are large. Intermediate values may
            // wrap, but the result is in range.
            let twice = self.sum.wrapping_mul(2 * least);
            let squares = self.squares.wrapping_sub(twice).wrapping_add(count.wrapping_mul(least * least));
            (self.sum - count * least, squares as f64)
        } else {
            let coarse = self.coarse_squares as f64 * COARSE as f64 * COARSE as f64;
            (self.sum, self.squares as f64 + coarse)
        };
        let beyond = beyond as f64 / count_f64;
        (squares / count_f64 - beyond * beyond).max(0.0).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(samples: &[(u64, u64)]) -> Moments {
        let mut moments = Moments::default();
        samples.iter().for_each(|&(value, times)| moments.add(value, times));
        moments
    }

    proptest! {
        #[test]
        fn they_are_those_of_single_samples(
            samples in prop::collection::vec(
                (prop_oneof![0u64..100, (1u64 << 43)..(1 << 45), any::<u64>()], 1u64..4),
                1..40,
            ),
        ) {
            let moments = of(&samples);
            let least = samples.iter().map(|sample| sample.0).min().unwrap_or(0);
            let count: u64 = samples.iter().map(|sample| sample.1).sum();
            let sum: f64 = samples.iter().map(|&(value, times)| value as f64 * times as f64).sum();
            let mean = sum / count as f64;
            let off = |value: u64| (value as f64 - mean) * (value as f64 - mean);
            let variance = samples.iter().map(|&(value, times)| off(value) * times as f64).sum::<f64>() / count as f64;
            prop_assert_eq!(moments.count(), count);
            prop_assert!((moments.mean() - mean).abs() <= 1e-9 * mean, "{} {mean}", moments.mean());
            let std = moments.std(least);
            // Squares of large samples have a relative precision of 2^-23.
            let off_by = (std * std - variance).abs();
            prop_assert!(off_by <= 2e-7 * (mean * mean + variance) + 1e-9, "{std} {}", variance.sqrt());
        }
    }

    #[test]
    fn equal_samples_do_not_deviate() {
        for value in [0, 3, 1_000_000_007, LEAST_COARSE - 1] {
            let moments = of(&[(value, 5), (value, 1 << 30)]);
            assert_eq!((moments.mean(), moments.std(value)), (value as f64, 0.0));
        }
    }

    #[test]
    fn what_is_small_beside_the_values_is_kept() {
        let far = LEAST_COARSE - 10;
        assert_eq!(of(&[(far, 1), (far + 2, 1)]).std(far), 1.0);
    }
}
