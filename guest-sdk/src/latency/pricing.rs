use alloc::string::String;
use alloc::vec::Vec;

use crate::{Batch, LatencyGuest, WORDS_PER_STEP};

/// A model as the interface calls it, and what its calls keep between them.
pub struct Pricing<G> {
    model: G,
    /// Buffer for the price of a single step; kept, so that pricing allocates once.
    durations_ns: Vec<f64>,
    trouble: String,
}

impl<G: LatencyGuest> Pricing<G> {
    /// A model that has priced nothing.
    #[must_use]
    pub fn new(model: G) -> Self {
        Self { model, durations_ns: Vec::new(), trouble: String::new() }
    }

    /// Prices the steps of a flat list.
    ///
    /// # Errors
    /// What the guest says, or that the host does not keep to the interface.
    pub fn price(&mut self, start_ns: u64, horizon_ns: u64, shapes: &[u64]) -> Result<Vec<f64>, String> {
        let batch = Batch::new(start_ns, horizon_ns, shapes)?;
        let mut durations_ns = Vec::with_capacity(batch.len());
        self.model.price_batch(&batch, &mut durations_ns)?;
        Ok(durations_ns)
    }

    /// Prices one step, by way of the guest's `price_batch` like any other: a
    /// guest need not know which call the host made. Whatever goes wrong makes a
    /// NaN and leaves its words with [`trouble`](Self::trouble).
    #[inline]
    pub fn price_step(&mut self, start_ns: u64, words: &[u64; WORDS_PER_STEP]) -> f64 {
        self.durations_ns.clear();
        let result = self.model.price_batch(&Batch::of_step(start_ns, words), &mut self.durations_ns);
        match (result, self.durations_ns.as_slice()) {
            (Ok(()), [duration_ns]) => *duration_ns,
            (result, _) => self.in_trouble(result),
        }
    }

    /// The words of what went wrong in the last step; empty where there are
    /// none.
    pub fn trouble(&mut self) -> String {
        core::mem::take(&mut self.trouble)
    }

    #[cold]
    fn in_trouble(&mut self, result: Result<(), String>) -> f64 {
        self.trouble = match result {
            Err(words) => words,
            Ok(()) => alloc::format!("`price_batch` answered {} durations for 1 step", self.durations_ns.len()),
        };
        f64::NAN
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;
    use crate::Step;

    /// Counts its steps in its prices, and has trouble with the third.
    struct Counting {
        factor: f64,
        steps: u32,
    }

    impl LatencyGuest for Counting {
        type Config = f64;

        fn configure(factor: f64, _seed: u64) -> Result<Self, String> {
            Ok(Self { factor, steps: 0 })
        }

        fn price(&mut self, step: &Step) -> f64 {
            self.steps += 1;
            self.factor * f64::from(self.steps) + step.start_ns as f64 + step.waiting_requests as f64
        }

        fn price_batch(&mut self, batch: &Batch<'_>, durations_ns: &mut Vec<f64>) -> Result<(), String> {
            batch.price_each(durations_ns, |step| {
                let duration_ns = self.price(step);
                if self.steps == 3 { Err(format!("step {} is one too many", self.steps)) } else { Ok(duration_ns) }
            })
        }
    }

    fn counting() -> Pricing<Counting> {
        Pricing::new(Counting { factor: 100.0, steps: 0 })
    }

    #[test]
    fn a_step_is_priced_as_a_batch_of_one() {
        let words: [u64; WORDS_PER_STEP] = core::array::from_fn(|index| index as u64);
        let (mut single, mut listed) = (counting(), counting());
        for start_ns in [1_000, 2_000] {
            assert_eq!(listed.price(start_ns, 0, &words), Ok(alloc::vec![single.price_step(start_ns, &words)]));
        }
        let error = listed.price(0, 0, &words).expect_err("the third step");
        assert!(single.price_step(0, &words).is_nan());
        assert_eq!(single.trouble(), error);
        assert_eq!(error, "step 3 is one too many");
        assert_eq!(single.trouble(), "", "it was reported");
    }

    struct Silent;

    impl LatencyGuest for Silent {
        type Config = ();

        fn configure(_config: (), _seed: u64) -> Result<Self, String> {
            Ok(Self)
        }

        fn price(&mut self, _step: &Step) -> f64 {
            0.0
        }

        fn price_batch(&mut self, _batch: &Batch<'_>, _durations_ns: &mut Vec<f64>) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn no_duration_is_trouble() {
        let mut pricing = Pricing::new(Silent);
        assert!(pricing.price_step(0, &[0; WORDS_PER_STEP]).is_nan());
        assert_eq!(pricing.trouble(), "`price_batch` answered 0 durations for 1 step");
    }
}
