//! The roofline of a transformer, as a native model.
//!
//! The same formulas as the guest of that name; both round a step's price to
//! whole nanoseconds in the same way, so a run gives the same bytes with either.

use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, price_until_horizon};

use crate::duration::rounded_ns;

/// A roofline, ready to price steps.
#[derive(Clone, Copy, Debug)]
pub struct Roofline {
    formulas: vcr_roofline::Roofline,
}

impl Roofline {
    /// A model that prices with checked `formulas`.
    #[must_use]
    pub fn new(formulas: vcr_roofline::Roofline) -> Self {
        Self { formulas }
    }
}

impl LatencyModel for Roofline {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| rounded_ns("roofline", self.formulas.step_ns(shape)))
    }
}

/// The roofline of a model with any layers, ready to price steps.
#[derive(Clone, Debug)]
pub struct LayeredRoofline {
    formulas: vcr_roofline::LayeredRoofline,
}

impl LayeredRoofline {
    /// A model that prices with checked `formulas`.
    #[must_use]
    pub fn new(formulas: vcr_roofline::LayeredRoofline) -> Self {
        Self { formulas }
    }
}

impl LatencyModel for LayeredRoofline {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| {
            rounded_ns("roofline", self.formulas.step_ns(shape, shape.prefill_requests))
        })
    }
}
