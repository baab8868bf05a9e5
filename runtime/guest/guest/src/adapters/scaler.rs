//! An autoscaler that calls a guest.

use vcr_core::scale::{Autoscaler, DESIRED_ENGINES_MAX, PoolView, ScaleError};

use crate::adapters::running::Running;
use crate::error::CallFault;
use crate::latest::ScalerInstance;
use crate::limits::Limits;

pub(crate) struct GuestScaler {
    limits: Limits,
    running: Running<dyn ScalerInstance>,
}

impl GuestScaler {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn ScalerInstance>) -> Self {
        Self { limits, running: Running::new(name, instance) }
    }
}

impl Autoscaler for GuestScaler {
    fn desired(&mut self, view: &PoolView) -> Result<u32, ScaleError> {
        let budget = self.limits.budget(1, 0);
        let result = self.running.call("decide", |instance| accept(instance.decide(view, budget)?));
        result.map_err(|failure| ScaleError { autoscaler: failure.guest, reason: failure.reason })
    }
}

pub(crate) fn accept(desired: u32) -> Result<u32, CallFault> {
    if desired > DESIRED_ENGINES_MAX {
        return Err(CallFault::TooManyEngines { desired });
    }
    Ok(desired)
}
