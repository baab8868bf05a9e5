//! What a guest is to the rest of this crate, whatever version of `wit/` it was
//! made for. No name of a binding generator appears here.

use vcr_core::latency::StepShape;

use crate::error::CallFault;
use crate::limits::Limits;

/// A compiled guest that can make latency models.
pub(crate) trait LatencyModule: Send + Sync {
    /// Makes a fresh instance and configures it as one model.
    fn configure(&self, limits: &Limits, config_json: &str, seed: u64) -> Result<Box<dyn LatencyInstance>, CallFault>;
}

/// One instance, which is one model. After an error it must not be called again.
pub(crate) trait LatencyInstance: Send {
    /// Prices the steps whose flat words are `shapes`, using up to `fuel`. What
    /// the answer means, and whether it makes sense, is for the caller to say.
    fn price(&mut self, start_ns: u64, horizon_ns: u64, shapes: &[u64], fuel: u64) -> Result<Vec<f64>, CallFault>;

    /// Prices one step as `price` would, but cheaper.
    fn price_step(&mut self, start_ns: u64, shape: &StepShape, fuel: u64) -> Result<f64, CallFault>;

    /// The guest's words for why `price_step` answered a number that is no
    /// duration. The last call.
    fn trouble(&mut self, fuel: u64) -> Result<String, CallFault>;
}
