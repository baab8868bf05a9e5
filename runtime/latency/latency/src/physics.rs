//! The trained physics of a transformer, as a native model.
//!
//! The formulas are those of the guest with the same name. Both round a step's price to whole nanoseconds in
//! the same way, so a run has the same bytes with either.

use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, price_until_horizon};

use crate::duration::rounded_ns;

/// A latency model with trained physics.
#[derive(Clone, Copy, Debug)]
pub struct Physics {
    formulas: vcr_roofline::Physics,
}

impl Physics {
    /// A model with checked `formulas`.
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
