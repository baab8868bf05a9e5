//! A guest for the rest of this crate, whatever version of `wit/` it was made for. No name of a
//! binding generator appears here.

use std::sync::Arc;

use vcr_core::fault::{FaultAction, FaultBatch};
use vcr_core::latency::{EngineInfo, KvGroupShape, StepShape};
use vcr_core::policy::{EngineView, Preference};
use vcr_core::route::{EndedRequest, RouteRequest, WorkerLoad};
use vcr_core::scale::PoolView;
use vcr_core::tokens::{TokenRequest, TokenWant};

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

/// The parts of an instance other than its code.
pub(crate) struct Setup<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) config_json: &'a str,
    pub(crate) seed: u64,
    /// The engine of a latency model.
    pub(crate) engine: &'a EngineInfo,
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

/// One instance that is one latency model. The caller interprets and checks its answers, as for all
/// instances; and none may be called again after an error.
pub(crate) trait LatencyInstance: Metered + Send {
    /// The place for the shapes of the next step's groups, if the guest reads them.
    fn kv_group_shapes(&mut self) -> Option<&mut Vec<KvGroupShape>> {
        None
    }

    /// Prices one step.
    fn price_step(&mut self, start_ns: u64, step: &StepShape, budget: Budget) -> Result<f64, CallFault>;

    /// Prices a row of decode steps: `first`, and as many in all as there are numbers of blocks.
    fn price_decodes(&mut self, run: DecodeRun<'_>, budget: Budget) -> Result<Vec<f64>, CallFault>;
}

/// A row of steps that only decode, to be priced in one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodeRun<'a> {
    pub(crate) start_ns: u64,
    pub(crate) horizon_ns: u64,
    pub(crate) first: &'a StepShape,
    /// [`StepShape::kv_active_blocks`] of each step.
    pub(crate) kv_active_blocks: &'a [u64],
}

/// The arguments of a call for tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenCall<'a> {
    pub(crate) started: &'a [TokenRequest<'a>],
    pub(crate) ended: &'a [u32],
    pub(crate) wants: &'a [TokenWant],
}

/// One instance that is one token source.
pub(crate) trait TokenInstance: Metered + Send {
    /// Returns the tokens of one step, and appends the remarks on its requests.
    fn step(&mut self, call: TokenCall<'_>, remarks: &mut Remarks, budget: Budget) -> Result<Vec<u32>, CallFault>;
}

/// One instance that is one failure injector.
pub(crate) trait FaultInstance: Metered + Send {
    /// Returns the failures to inject.
    fn decide(&mut self, batch: &FaultBatch<'_>, budget: Budget) -> Result<Vec<FaultAction>, CallFault>;
}

/// One instance that is one scheduler policy.
pub(crate) trait PolicyInstance: Metered + Send {
    /// Appends the preferences that change.
    fn decide(
        &mut self,
        batch: &EngineView<'_>,
        preferences: &mut Vec<Preference>,
        budget: Budget,
    ) -> Result<(), CallFault>;
}

/// The arguments of a router.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteCall<'a> {
    pub(crate) ended: &'a [EndedRequest],
    pub(crate) query: &'a RouteRequest<'a>,
    pub(crate) workers: &'a [WorkerLoad],
}

/// A router's decision: the index of an engine in the pool, not in the request's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    Worker(u32),
    Refused,
}

pub(crate) trait RouterInstance: Metered + Send {
    /// Chooses an engine, or refuses the request.
    fn route(&mut self, call: RouteCall<'_>, budget: Budget) -> Result<Chosen, CallFault>;
}

/// One instance that is one autoscaler.
pub(crate) trait ScalerInstance: Metered + Send {
    /// Returns the wanted number of engines.
    fn decide(&mut self, view: &PoolView, budget: Budget) -> Result<u32, CallFault>;
}
