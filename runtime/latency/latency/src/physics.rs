//! The trained physics of a transformer, as a native model.
//!
//! Formulas and rounding are those of the WebAssembly guest with the same name, so a run has the same bytes with
//! either.

use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, price_until_horizon};

use crate::duration::rounded_ns;

/// A latency model with trained physics.
#[derive(Clone, Copy, Debug)]
pub struct Physics {
    formulas: vcr_roofline::Physics,
}

impl Physics {
    /// Creates a model with checked `formulas`.
    #[must_use]
    pub fn new(formulas: vcr_roofline::Physics) -> Self {
        Self { formulas }
    }
}

impl LatencyModel for Physics {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |shape| {
            let requests = shape.prefill_requests.saturating_add(shape.decode_requests);
            rounded_ns("trained_physics", self.formulas.step_ns(shape, requests))
        })
    }
}
