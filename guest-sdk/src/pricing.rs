use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use crate::{Batch, LatencyGuest, WORDS_PER_STEP, parse_config};

/// The one model of an instance, and what its calls keep between them.
///
/// It is a static of the guest, because the functions of the interface take no
/// `self`: passing a handle would cost more than pricing a step does.
pub struct ModelSlot<G> {
    model: RefCell<Option<G>>,
    /// Where a single step is priced to; kept, so that pricing allocates once.
    durations_ns: RefCell<Vec<f64>>,
    trouble: Cell<String>,
}

// SAFETY: without atomics a module of wasm32 has no threads, so nothing is ever
// shared between any.
#[cfg(all(target_arch = "wasm32", not(target_feature = "atomics")))]
#[expect(unsafe_code, reason = "a static must be `Sync`, even where there is one thread")]
unsafe impl<G> Sync for ModelSlot<G> {}

impl<G: LatencyGuest> ModelSlot<G> {
    /// A slot without a model.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a static needs a constant")]
    pub const fn new() -> Self {
        Self { model: RefCell::new(None), durations_ns: RefCell::new(Vec::new()), trouble: Cell::new(String::new()) }
    }

    /// Makes the model.
    ///
    /// # Errors
    /// When the config cannot be read, when the guest rejects it, or when there
    /// is a model already.
    pub fn configure(&self, config: &str, seed: u64) -> Result<(), String> {
        let mut model = self.model.borrow_mut();
        if model.is_some() {
            return Err(String::from("the host called `configure` twice"));
        }
        *model = Some(G::configure(parse_config(config)?, seed)?);
        Ok(())
    }

    /// Prices the steps of a flat list.
    ///
    /// # Errors
    /// What the guest says, or that the host does not keep to the interface.
    pub fn price(&self, start_ns: u64, horizon_ns: u64, shapes: &[u64]) -> Result<Vec<f64>, String> {
        let batch = Batch::new(start_ns, horizon_ns, shapes)?;
        let mut durations_ns = Vec::with_capacity(batch.len());
        self.price_batch(&batch, &mut durations_ns)?;
        Ok(durations_ns)
    }

    /// Prices one step, by way of the guest's `price_batch` like any other: a
    /// guest need not know which call the host made. Whatever goes wrong makes a
    /// NaN and leaves its words with [`trouble`](Self::trouble).
    #[inline]
    pub fn price_step(&self, start_ns: u64, words: &[u64; WORDS_PER_STEP]) -> f64 {
        let mut durations_ns = self.durations_ns.borrow_mut();
        durations_ns.clear();
        let result = self.price_batch(&Batch::of_step(start_ns, words), &mut durations_ns);
        match (result, durations_ns.as_slice()) {
            (Ok(()), [duration_ns]) => *duration_ns,
            (result, durations_ns) => self.in_trouble(result, durations_ns.len()),
        }
    }

    /// The words of what went wrong in the last step; empty where there are
    /// none.
    pub fn trouble(&self) -> String {
        self.trouble.take()
    }

    #[inline]
    fn price_batch(&self, batch: &Batch<'_>, durations_ns: &mut Vec<f64>) -> Result<(), String> {
        match &mut *self.model.borrow_mut() {
            Some(model) => model.price_batch(batch, durations_ns),
            None => Err(String::from("the host prices a step before it called `configure`")),
        }
    }

    #[cold]
    fn in_trouble(&self, result: Result<(), String>, durations: usize) -> f64 {
        self.trouble.set(match result {
            Err(words) => words,
            Ok(()) => alloc::format!("`price_batch` answered {durations} durations for 1 step"),
        });
        f64::NAN
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;

    use super::*;
    use crate::Step;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        factor: f64,
    }

    /// Counts its steps in its prices, and has trouble with the third.
    struct Counting {
        factor: f64,
        steps: u32,
    }

    impl LatencyGuest for Counting {
        type Config = Config;

        fn configure(config: Config, _seed: u64) -> Result<Self, String> {
            Ok(Self { factor: config.factor, steps: 0 })
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

    fn slot() -> ModelSlot<Counting> {
        let slot = ModelSlot::new();
        slot.configure(r#"{"factor": 100}"#, 1).expect("a good config");
        slot
    }

    #[test]
    fn a_step_is_priced_as_a_batch_of_one() {
        let words: [u64; WORDS_PER_STEP] = core::array::from_fn(|index| index as u64);
        let (single, listed) = (slot(), slot());
        for start_ns in [1_000, 2_000] {
            assert_eq!(listed.price(start_ns, 0, &words), Ok(alloc::vec![single.price_step(start_ns, &words)]));
        }
        let error = listed.price(0, 0, &words).expect_err("the third step");
        assert!(single.price_step(0, &words).is_nan());
        assert_eq!(single.trouble(), error);
        assert_eq!(error, "step 3 is one too many");
        assert_eq!(single.trouble(), "", "it was told");
    }

    #[test]
    fn a_host_that_keeps_no_order_is_told() {
        let words = [0; WORDS_PER_STEP];
        let slot = ModelSlot::<Counting>::new();
        assert!(slot.price_step(0, &words).is_nan());
        assert!(slot.trouble().contains("before it called `configure`"));
        assert!(slot.price(0, 0, &words).is_err());
        assert!(slot.configure("{}", 1).expect_err("no factor").to_string().contains("`factor`"));
        assert_eq!(slot.configure(r#"{"factor": 1}"#, 1), Ok(()), "a rejected config makes no model");
        assert!(slot.configure(r#"{"factor": 1}"#, 1).is_err());
    }

    struct Silent;

    impl LatencyGuest for Silent {
        type Config = Config;

        fn configure(_config: Config, _seed: u64) -> Result<Self, String> {
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
        let slot = ModelSlot::<Silent>::new();
        slot.configure(r#"{"factor": 1}"#, 1).expect("a good config");
        assert!(slot.price_step(0, &[0; WORDS_PER_STEP]).is_nan());
        assert_eq!(slot.trouble(), "`price_batch` answered 0 durations for 1 step");
    }
}
