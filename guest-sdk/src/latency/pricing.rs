use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use vcr_policy::latency::{EngineInfo, StepShape};

use crate::{Batch, LatencyGuest};

/// A model together with the properties of its engine.
pub struct Pricing<G> {
    model: G,
    kv_total_blocks: u64,
    block_size_tokens: u64,
    /// Buffer for the price of a single step; reused, so that pricing allocates once.
    durations_ns: Vec<f64>,
}

impl<G: LatencyGuest> Pricing<G> {
    /// Makes the pricing of an engine.
    ///
    /// # Errors
    /// When the model refuses the engine.
    pub fn new(mut model: G, engine: EngineInfo) -> Result<Self, String> {
        model.engine(&engine)?;
        let EngineInfo { kv_total_blocks, block_size_tokens, .. } = engine;
        Ok(Self { model, kv_total_blocks, block_size_tokens, durations_ns: Vec::new() })
    }

    /// Fills in the fields that are the same for every step of the engine.
    #[inline]
    fn of_engine(&self, step: StepShape) -> StepShape {
        StepShape { kv_total_blocks: self.kv_total_blocks, block_size_tokens: self.block_size_tokens, ..step }
    }

    /// Prices one step through the guest's `price_batch`, so that guests need to implement only that.
    ///
    /// # Errors
    /// The guest's error, or that it did not return exactly one duration.
    #[inline]
    pub fn price_step(&mut self, start_ns: u64, step: StepShape) -> Result<f64, String> {
        let step = self.of_engine(step);
        self.durations_ns.clear();
        self.model.price_batch(&Batch::of_step(start_ns, &step), &mut self.durations_ns)?;
        match self.durations_ns.as_slice() {
            [duration_ns] => Ok(*duration_ns),
            others => Err(format!("`price_batch` answered {} durations for 1 step", others.len())),
        }
    }

    /// Prices consecutive decode-only steps.
    ///
    /// # Errors
    /// The guest's error, or that the host sent no step.
    pub fn price_decodes(
        &mut self,
        start_ns: u64,
        horizon_ns: u64,
        first: StepShape,
        kv_active_blocks: &[u64],
    ) -> Result<Vec<f64>, String> {
        let first = self.of_engine(first);
        let batch = Batch::of_decodes(start_ns, horizon_ns, &first, kv_active_blocks).ok_or("the host sent no step")?;
        let mut durations_ns = Vec::with_capacity(batch.len());
        self.model.price_batch(&batch, &mut durations_ns)?;
        Ok(durations_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the number of its calls to its prices, and fails at the third step.
    struct Counting {
        factor: f64,
        steps: u32,
    }

    impl LatencyGuest for Counting {
        type Config = f64;

        fn configure(factor: f64, _seed: u64) -> Result<Self, String> {
            Ok(Self { factor, steps: 0 })
        }

        fn price(&mut self, start_ns: u64, step: &StepShape) -> f64 {
            self.steps += 1;
            self.factor * f64::from(self.steps) + start_ns as f64 + step.waiting_requests as f64
        }

        fn price_batch(&mut self, batch: &Batch<'_>, durations_ns: &mut Vec<f64>) -> Result<(), String> {
            batch.price_each(durations_ns, |start_ns, step| {
                let duration_ns = self.price(start_ns, step);
                if self.steps == 3 { Err(format!("step {} is one too many", self.steps)) } else { Ok(duration_ns) }
            })
        }
    }

    fn counting() -> Pricing<Counting> {
        Pricing::new(Counting { factor: 100.0, steps: 0 }, EngineInfo::default()).expect("it takes any engine")
    }

    #[test]
    fn a_step_is_priced_as_a_batch_of_one() {
        let step = StepShape { waiting_requests: 14, kv_active_blocks: 3, ..StepShape::default() };
        let (mut single, mut listed) = (counting(), counting());
        for start_ns in [1_000, 2_000] {
            let alone = single.price_step(start_ns, step).expect("it prices");
            assert_eq!(listed.price_decodes(start_ns, 0, step, &[3]), Ok(alloc::vec![alone]));
        }
        let error = listed.price_decodes(0, 0, step, &[3]).expect_err("the third step");
        assert_eq!(error, "step 3 is one too many");
        assert_eq!(single.price_step(0, step), Err(error));
    }

    struct Silent;

    impl LatencyGuest for Silent {
        type Config = ();

        fn configure(_config: (), _seed: u64) -> Result<Self, String> {
            Ok(Self)
        }

        fn price(&mut self, _start_ns: u64, _step: &StepShape) -> f64 {
            0.0
        }

        fn price_batch(&mut self, _batch: &Batch<'_>, _durations_ns: &mut Vec<f64>) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn no_duration_is_an_error() {
        let mut silent = Pricing::new(Silent, EngineInfo::default()).expect("it takes any engine");
        let error = silent.price_step(0, StepShape::default()).expect_err("it answers none");
        assert_eq!(error, "`price_batch` answered 0 durations for 1 step");
    }
}
