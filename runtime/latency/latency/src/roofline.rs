//! The roofline of a transformer, as a native model.
//!
//! Formulas and rounding are those of the WebAssembly guest with the same name, so a run has the same bytes with
//! either.

use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, price_until_horizon};

use crate::duration::rounded_ns;

/// A latency model with the formulas of a roofline.
#[derive(Clone, Copy, Debug)]
pub struct Roofline {
    formulas: vcr_roofline::Roofline,
}

impl Roofline {
    /// Creates a model with checked `formulas`.
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

/// A latency model with the roofline of a transformer whose layers may differ.
#[derive(Clone, Debug)]
pub struct LayeredRoofline {
    formulas: vcr_roofline::LayeredRoofline,
}

impl LayeredRoofline {
    /// Creates a model with checked `formulas`.
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
