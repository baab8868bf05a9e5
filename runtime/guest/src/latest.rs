//! A guest for the rest of this crate, whatever version of `wit/` it was made for. No name of a
//! binding generator appears here.

use std::sync::Arc;

use vcr_core::latency::StepShape;
use vcr_core::scale::ScaleView;

use crate::error::CallFault;
use crate::limits::{Budget, Limits};
use crate::observe::NoteSink;
use crate::remarks::Remarks;

/// A compiled guest of any world.
pub(crate) enum OpenGuest {
    Latency(Box<dyn Maker<dyn LatencyInstance>>),
    Tokens(Box<dyn Maker<dyn TokenInstance>>),
    Faults(Box<dyn Maker<dyn FaultInstance>>),
    Policy(Box<dyn Maker<dyn PolicyInstance>>),
    Router(Box<dyn Maker<dyn RouterInstance>>),
    Scaler(Box<dyn Maker<dyn ScalerInstance>>),
}

/// A compiled guest that can make instances `I`.
pub(crate) trait Maker<I: ?Sized>: Send + Sync {
    /// Makes a fresh instance and configures it.
    fn configure(&self, setup: Setup<'_>) -> Result<Box<I>, CallFault>;
}

/// The parts of an instance beside its code.
pub(crate) struct Setup<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) config_json: &'a str,
    pub(crate) seed: u64,
    /// The receiver of its telemetry.
    pub(crate) sink: Option<Arc<dyn NoteSink>>,
}

/// The cost of the last call of an instance.
pub(crate) trait Metered {
    /// Fuel of its budget that it has not used.
    fn fuel_left(&self) -> u64;

    /// Bytes of the largest of the instance's memories, which never shrink.
    fn memory_bytes(&self) -> usize;
}

/// One instance that is one latency model. What its answers mean, and whether
/// they make sense, is for the caller to say, as it is for all instances; and
/// none may be called again after an error.
pub(crate) trait LatencyInstance: Metered + Send {
    /// Prices the steps whose flat words are `shapes`.
    fn price(&mut self, start_ns: u64, horizon_ns: u64, shapes: &[u64], budget: Budget) -> Result<Vec<f64>, CallFault>;

    /// Prices one step as `price` would, but cheaper.
    fn price_step(&mut self, start_ns: u64, shape: &StepShape, budget: Budget) -> Result<f64, CallFault>;

    /// The guest's words for why `price_step` answered a number that is no
    /// duration. The last call.
    fn trouble(&mut self, budget: Budget) -> Result<String, CallFault>;
}

/// The flat lists of a call for tokens, as `wit/` describes them.
#[derive(Debug, Default)]
pub(crate) struct TokenCall {
    pub(crate) started: Vec<u64>,
    pub(crate) request_tokens: Vec<u32>,
    pub(crate) structured_outputs: Vec<String>,
    pub(crate) ended: Vec<u32>,
    pub(crate) wants: Vec<u32>,
}

/// One instance that is one token source.
pub(crate) trait TokenInstance: Metered + Send {
    /// Returns the tokens of one step, and appends the remarks on its requests.
    fn step(&mut self, call: &TokenCall, remarks: &mut Remarks, budget: Budget) -> Result<Vec<u32>, CallFault>;
}

/// One instance that is one failure injector.
pub(crate) trait FaultInstance: Metered + Send {
    /// Returns the flat words of the failures to inject.
    fn decide(
        &mut self,
        now_ns: u64,
        step: u64,
        events: &[u64],
        texts: &[String],
        budget: Budget,
    ) -> Result<Vec<u64>, CallFault>;
}

/// The arguments of a policy before a step, as `wit/` describes them.
#[derive(Debug, Default)]
pub(crate) struct PolicyCall {
    pub(crate) now_ns: u64,
    pub(crate) budget_tokens: u32,
    pub(crate) running_slots: u32,
    pub(crate) free_blocks: u32,
    pub(crate) total_blocks: u32,
    pub(crate) events: Vec<u64>,
    pub(crate) progress: Vec<u32>,
}

/// One instance that is one scheduler policy.
pub(crate) trait PolicyInstance: Metered + Send {
    /// Gives the flat words of the preferences that change.
    fn decide(&mut self, call: &PolicyCall, budget: Budget) -> Result<Vec<u64>, CallFault>;
}

/// The arguments of a router, as `wit/` describes them.
#[derive(Debug, Default)]
pub(crate) struct RouteCall {
    pub(crate) now_ns: u64,
    pub(crate) ended: Vec<u64>,
    pub(crate) request: Vec<u64>,
    pub(crate) blocks: Vec<u64>,
    pub(crate) workers: Vec<u64>,
}

/// One instance that is one router.
pub(crate) trait RouterInstance: Metered + Send {
    /// Gives the index of an engine, or what refuses the request.
    fn route(&mut self, call: &RouteCall, budget: Budget) -> Result<u32, CallFault>;
}

/// One instance that is one autoscaler.
pub(crate) trait ScalerInstance: Metered + Send {
    /// Gives the number of engines that are wanted.
    fn decide(&mut self, view: &ScaleView, budget: Budget) -> Result<u32, CallFault>;
}
