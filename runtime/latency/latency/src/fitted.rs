//! Fitted step prices, as a native model.
//!
//! Formula and rounding are those of the WebAssembly guest with the same name, so a run has the same bytes with either.

mod draw;

use vcr_core::latency::{LatencyError, LatencyModel, RangeUse, StepBatch, price_until_horizon};
use vcr_fitted::{NoiseStream, StepPrice, StepWork};

use crate::duration::rounded_ns;
pub use draw::FittedDraws;

/// A latency model with fitted prices.
#[derive(Clone, Debug)]
pub struct Fitted {
    price: StepPrice,
    noise: NoiseStream,
    range_use: RangeUse,
}

impl Fitted {
    /// Creates a model with the prices of `price`. If it has noise, `seed` seeds the noise.
    #[must_use]
    pub fn new(price: StepPrice, seed: u64) -> Self {
        Self { price, noise: NoiseStream::new(seed), range_use: RangeUse::default() }
    }
}

impl LatencyModel for Fitted {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| {
            let work = StepWork::from(shape);
            let mut ns = self.price.step_ns(&work);
            if let Some(noise) = self.price.noise() {
                ns *= noise.factor(work.prefill_requests > 0, self.noise.share());
            }
            let duration_ns = rounded_ns("fitted", ns)?;
            self.range_use.count(duration_ns, self.price.range().contains(&work));
            Ok(duration_ns)
        })
    }

    fn range_use(&self) -> Option<RangeUse> {
        Some(self.range_use)
    }
}
