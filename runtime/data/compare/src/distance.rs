//! Distances of two distributions.

/// Calls `visit(difference, length)` for each stretch between neighbouring values of both sets: the difference of
/// the two empirical distribution functions, and the length of the stretch.
fn walk(left: &[f64], right: &[f64], mut visit: impl FnMut(f64, f64)) {
    let sorted = |samples: &[f64]| {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let (left, right) = (sorted(left), sorted(right));
    let (mut i, mut j) = (0, 0);
    let value_at = |i: usize, j: usize| match (left.get(i), right.get(j)) {
        (Some(a), Some(b)) => Some(a.min(*b)),
        (Some(a), None) => Some(*a),
        (None, b) => b.copied(),
    };
    while let Some(value) = value_at(i, j) {
        while left.get(i).is_some_and(|sample| *sample <= value) {
            i += 1;
        }
        while right.get(j).is_some_and(|sample| *sample <= value) {
            j += 1;
        }
        let difference = i as f64 / left.len() as f64 - j as f64 / right.len() as f64;
        visit(difference.abs(), value_at(i, j).map_or(0.0, |next| next - value));
    }
}

/// The Kolmogorov-Smirnov statistic of two sets of samples: the largest difference of their distribution functions,
/// from 0 to 1. It is 1 if a set is empty.
#[must_use]
pub fn ks(left: &[f64], right: &[f64]) -> f64 {
    if left.is_empty() || right.is_empty() {
        return 1.0;
    }
    let mut largest: f64 = 0.0;
    walk(left, right, |difference, _| largest = largest.max(difference));
    largest
}

/// The Wasserstein distance of two sets of samples, in the samples' unit: the average distance by which samples
/// must be moved to turn one distribution into the other. None if a set is empty.
#[must_use]
pub fn wasserstein(left: &[f64], right: &[f64]) -> Option<f64> {
    if left.is_empty() || right.is_empty() {
        return None;
    }
    let mut sum = 0.0;
    walk(left, right, |difference, length| sum += difference * length);
    Some(sum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn distances_are_those_of_the_textbook() {
        assert_eq!(ks(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]), 0.0);
        assert_eq!(ks(&[1.0, 2.0], &[3.0, 4.0]), 1.0);
        assert_eq!(ks(&[1.0, 2.0, 3.0, 4.0], &[3.0, 4.0, 5.0, 6.0]), 0.5);
        assert_eq!(ks(&[], &[1.0]), 1.0);
        assert_eq!(wasserstein(&[0.0, 1.0, 3.0], &[5.0, 6.0, 8.0]), Some(5.0));
        assert_eq!(wasserstein(&[0.0], &[0.0, 2.0]), Some(1.0));
        assert_eq!(wasserstein(&[0.0], &[]), None);
    }

    proptest! {
        /// If every sample moves by the same amount, the distance is that amount.
        #[test]
        fn a_shift_is_its_own_distance(samples in prop::collection::vec(0u32..1000, 1..50), by in 0u32..500) {
            let left: Vec<f64> = samples.iter().map(|sample| f64::from(*sample)).collect();
            let right: Vec<f64> = left.iter().map(|sample| sample + f64::from(by)).collect();
            let found = wasserstein(&left, &right).expect("there are samples");
            prop_assert!((found - f64::from(by)).abs() < 1e-6, "{found}");
            prop_assert!((0.0..=1.0).contains(&ks(&left, &right)));
        }
    }
}
