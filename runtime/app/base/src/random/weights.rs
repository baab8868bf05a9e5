//! Weighted draws.

use crate::random::Stream;

/// Draws indices in proportion to their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Cumulative sums of the weights.
    sums: Vec<f64>,
}

/// Error of a list of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsProblem {
    /// The list is empty.
    #[error("there is nothing to draw from")]
    Empty,
    /// The weight at this index is negative or not finite.
    #[error("invalid weight {0}: expected a finite number of at least 0")]
    OutOfRange(usize),
    /// All weights are 0.
    #[error("the weights are all 0")]
    AllZero,
}

impl Weights {
    /// Makes choices with these weights. Their sum need not be 1.
    ///
    /// # Errors
    /// Without a weight above 0, or with an invalid weight.
    pub fn new(weights: impl IntoIterator<Item = f64>) -> Result<Self, WeightsProblem> {
        let mut sums = Vec::new();
        let mut sum = 0.0;
        for (index, weight) in weights.into_iter().enumerate() {
            if !(weight.is_finite() && weight >= 0.0) {
                return Err(WeightsProblem::OutOfRange(index + 1));
            }
            sum += weight;
            sums.push(sum);
        }
        match sums.last() {
            None => Err(WeightsProblem::Empty),
            Some(0.0) => Err(WeightsProblem::AllZero),
            Some(sum) if !sum.is_finite() => Err(WeightsProblem::OutOfRange(sums.len())),
            Some(_) => Ok(Self { sums }),
        }
    }

    /// `count` choices by Zipf's law: choice `k`, from 1, has weight `1 / k^skew`. With skew 0 all are equally
    /// likely. A `count` of 0 is taken as 1.
    #[must_use]
    pub fn zipf(count: u32, skew: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count.max(1)).map(|rank| {
            sum += libm::pow(f64::from(rank), -skew);
            sum
        });
        Self { sums: sums.collect() }
    }

    /// Number of choices.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sums.len()
    }

    /// Draws an index.
    pub fn draw(&self, stream: &mut Stream) -> usize {
        let total = self.sums.last().copied().unwrap_or(0.0);
        let at = stream.unit() * total;
        // Entries with weight 0 have the previous entry's sum, so they are never found.
        self.sums.partition_point(|sum| *sum <= at).min(self.sums.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(weights: &Weights) -> Vec<f64> {
        const DRAWS: usize = 100_000;
        let mut stream = Stream::new(3, "test");
        let mut counts = vec![0u32; weights.count()];
        (0..DRAWS).for_each(|_| counts[weights.draw(&mut stream)] += 1);
        counts.into_iter().map(|count| f64::from(count) / DRAWS as f64).collect()
    }

    fn are_near(found: &[f64], wanted: &[f64]) -> bool {
        found.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 0.01)
    }

    #[test]
    fn things_are_drawn_by_weight_and_those_without_never() {
        let found = shares(&Weights::new([1.0, 0.0, 3.0]).unwrap());
        assert!(are_near(&found, &[0.25, 0.0, 0.75]) && found[1] == 0.0, "{found:?}");
        assert_eq!(Weights::new([]), Err(WeightsProblem::Empty));
        assert_eq!(Weights::new([0.0]), Err(WeightsProblem::AllZero));
        assert_eq!(Weights::new([1.0, -1.0]), Err(WeightsProblem::OutOfRange(2)));
        assert_eq!(Weights::new([f64::NAN]), Err(WeightsProblem::OutOfRange(1)));
    }

    #[test]
    fn zipf_falls_with_the_rank() {
        let harmonic = 1.0 + 0.5 + 1.0 / 3.0 + 0.25;
        let wanted = [1.0, 0.5, 1.0 / 3.0, 0.25].map(|weight| weight / harmonic);
        assert!(are_near(&shares(&Weights::zipf(4, 1.0)), &wanted));
        assert!(are_near(&shares(&Weights::zipf(4, 0.0)), &[0.25; 4]));
    }
}
