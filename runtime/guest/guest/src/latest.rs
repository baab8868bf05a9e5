//! The types of guests for the rest of the crate, for all API versions. Generated bindings stay in `versions`.

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

pub(crate) enum OpenGuest {
    Latency(Box<dyn Maker<dyn LatencyInstance>>),
    Tokens(Box<dyn Maker<dyn TokenInstance>>),
    Faults(Box<dyn Maker<dyn FaultInstance>>),
    Policy(Box<dyn Maker<dyn PolicyInstance>>),
    Router(Box<dyn Maker<dyn RouterInstance>>),
    Scaler(Box<dyn Maker<dyn ScalerInstance>>),
}

/// Makes instances `I` of a compiled guest.
pub(crate) trait Maker<I: ?Sized>: Send + Sync {
    /// Makes and configures a fresh instance.
    fn configure(&self, setup: Setup<'_>) -> Result<Box<I>, CallFault>;
}

/// Everything an instance needs except its code.
pub(crate) struct Setup<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) config_json: &'a str,
    pub(crate) seed: u64,
    /// Properties of the engine, for latency models.
    pub(crate) engine: &'a EngineInfo,
    /// Receives the instance's telemetry.
    pub(crate) sink: Option<Arc<dyn NoteSink>>,
}

/// The cost of the last call of an instance.
pub(crate) trait Metered {
    /// Unused fuel of its budget.
    fn fuel_left(&self) -> u64;

    /// Size in bytes of the instance's largest memory. Memories never shrink.
    fn memory_bytes(&self) -> usize;
}

/// A latency model's instance. Callers check the answers of all instances, and make no call after an error.
pub(crate) trait LatencyInstance: Metered + Send {
    /// The buffer for the KV group shapes of the next step, if the guest reads them.
    fn kv_group_shapes(&mut self) -> Option<&mut Vec<KvGroupShape>> {
        None
    }

    fn price_step(&mut self, start_ns: u64, step: &StepShape, budget: Budget) -> Result<f64, CallFault>;

    /// Prices consecutive decode-only steps.
    fn price_decodes(&mut self, run: DecodeRun<'_>, budget: Budget) -> Result<Vec<f64>, CallFault>;
}

/// Consecutive decode-only steps to price in one call. `first` is the first of them; `kv_active_blocks` has one element
/// for each of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodeRun<'a> {
    pub(crate) start_ns: u64,
    pub(crate) horizon_ns: u64,
    pub(crate) first: &'a StepShape,
    /// [`StepShape::kv_active_blocks`] of each step.
    pub(crate) kv_active_blocks: &'a [u64],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenCall<'a> {
    pub(crate) started: &'a [TokenRequest<'a>],
    pub(crate) ended: &'a [u32],
    pub(crate) wants: &'a [TokenWant],
}

pub(crate) trait TokenInstance: Metered + Send {
    /// Returns the tokens of one step and appends the guest's remarks on its requests.
    fn step(&mut self, call: TokenCall<'_>, remarks: &mut Remarks, budget: Budget) -> Result<Vec<u32>, CallFault>;
}

pub(crate) trait FaultInstance: Metered + Send {
    fn decide(&mut self, batch: &FaultBatch<'_>, budget: Budget) -> Result<Vec<FaultAction>, CallFault>;
}

pub(crate) trait PolicyInstance: Metered + Send {
    /// Appends the preferences that change.
    fn decide(
        &mut self,
        batch: &EngineView<'_>,
        preferences: &mut Vec<Preference>,
        budget: Budget,
    ) -> Result<(), CallFault>;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteCall<'a> {
    pub(crate) ended: &'a [EndedRequest],
    pub(crate) query: &'a RouteRequest<'a>,
    pub(crate) workers: &'a [WorkerLoad],
}

/// A router's decision. The index is that of the engine in the pool, not in the request's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    Worker(u32),
    Refused,
}

pub(crate) trait RouterInstance: Metered + Send {
    /// Whether the router reads the fields of [`WorkerLoad`] from `host_prompt_blocks` on.
    fn needs_details(&self) -> bool {
        true
    }

    fn route(&mut self, call: RouteCall<'_>, budget: Budget) -> Result<Chosen, CallFault>;
}

pub(crate) trait ScalerInstance: Metered + Send {
    /// Returns the desired number of engines.
    fn decide(&mut self, view: &PoolView, budget: Budget) -> Result<u32, CallFault>;
}
