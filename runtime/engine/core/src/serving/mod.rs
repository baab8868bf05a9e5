//! Engines as drivers use them, whichever scheduler they have.
//!
//! Drivers that simulate many engines use them as [`ServingEngine`]s. An [`EngineKind`] has the settings and selects
//! the scheduler. [`AnyEngine`] is an engine of any kind, with one dispatch per call and none per token.

mod any;
mod forward;
mod kind;
mod vllm;

pub use any::AnyEngine;
pub use kind::EngineKind;

use std::fmt;

use crate::engine::RejectReason;
use crate::kv::event::KvEventLog;
use crate::kv::hash::BlockHash;
use crate::plan::{RemoteLoad, StepOutputs, StepPlan};
use crate::plugins::TokenSource;
use crate::plugins::latency::DecodeSteps;
use crate::request::{RequestId, RequestSpec};
use crate::stats::EngineStats;

/// The number of requests and blocks that an engine has in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLoad {
    /// Number of running requests.
    pub num_running: usize,
    /// Number of requests that wait for admission or for a KV transfer.
    pub num_waiting: usize,
    /// Number of waiting requests whose KV is being transferred to this engine.
    pub num_loading: usize,
    /// Prefill tokens not yet computed, over waiting and running requests.
    pub outstanding_prefill_tokens: u64,
    /// Number of blocks that at least one request uses.
    pub num_active_blocks: u32,
    /// Total number of blocks that requests can use.
    pub num_usable_blocks: u32,
}

/// An engine as a driver uses it: a state machine without a clock.
///
/// The driver calls [`ServingEngine::schedule`] when a step may start, prices the plan's shape, and
/// calls [`ServingEngine::update`] when that step ends. Requests arrive and end in between. "Block"
/// means the engine's unit of KV. Only vLLM's engine has scheduling policies, steady decode, tiers
/// below the device and per-request times; drivers use these through [`AnyEngine::as_vllm`]. Code that only reads an
/// engine takes a `&dyn ServingEngine`.
pub trait ServingEngine: fmt::Debug {
    /// Whether a request of these lengths could run here to its end. Other requests may wait forever, so
    /// drivers call this before they submit a request.
    fn check(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason>;

    /// Whether the KV of a prompt of this length could come from another engine. If not, the request may wait forever.
    fn check_load(&self, _prompt_tokens: u32) -> Result<(), RejectReason> {
        Ok(())
    }

    /// Queues a request.
    ///
    /// # Errors
    /// If the engine does not accept the request. The engine is then unchanged.
    fn submit(&mut self, spec: RequestSpec) -> Result<RequestId, RejectReason>;

    /// Ends a request early and frees its resources, including held KV. Its outputs of a step in
    /// flight are dropped. Does nothing if the request has ended.
    fn abort(&mut self, id: RequestId);

    /// Tags of all requests that have not ended or still hold KV, by slot.
    fn live_tags(&self) -> Vec<u64>;

    /// Tags of the running requests, in the order of the running list.
    fn running_tags(&self) -> Vec<u64>;

    /// Completes the transfer announced by a [`RemoteLoad`].
    ///
    /// # Panics
    /// If the request does not wait for a transfer: a driver bug.
    fn remote_kv_arrived(&mut self, id: RequestId) {
        panic!("{id:?} waits for no transfer: this engine takes no KV from others");
    }

    /// Allocates blocks for the oldest request with remote KV, if the engine does so between steps
    /// ([`crate::Reservations::BetweenSteps`]). None if there is no such request, or not enough room.
    fn reserve_remote(&mut self) -> Option<RemoteLoad> {
        None
    }

    /// Whether [`ServingEngine::reserve_remote`] may succeed at the end of the step in flight or, between
    /// steps, with the next call.
    fn may_reserve(&self) -> bool {
        false
    }

    /// Frees the KV of a request that ended with [`KvRole::Source`](crate::KvRole::Source).
    ///
    /// # Panics
    /// If no KV is held: a driver bug.
    fn release_held_kv(&mut self, id: RequestId) {
        panic!("{id:?} holds no KV: this engine gives none to others");
    }

    /// Whether another step may be scheduled before one is applied.
    fn may_schedule(&self) -> bool {
        !self.step_in_flight()
    }

    /// Whether [`ServingEngine::schedule`] could find work.
    fn has_schedulable_requests(&self) -> bool;

    /// Decides the next step. The plan is empty if nothing can run; then `update` must not be
    /// called. A plan may have only preemptions; the next call may use the blocks that they freed. A plan
    /// with only refusals has no other effect.
    ///
    /// # Panics
    /// If no further step may be in flight: a driver bug.
    fn schedule(&mut self) -> &StepPlan;

    /// Whether a step has been scheduled and not yet applied.
    fn step_in_flight(&self) -> bool {
        self.steps_in_flight() > 0
    }

    /// Number of steps scheduled and not yet applied.
    fn steps_in_flight(&self) -> usize;

    /// The latest plan.
    fn plan(&self) -> &StepPlan;

    /// The oldest plan in flight, or the latest plan if no step is in flight.
    fn oldest_plan(&self) -> &StepPlan {
        self.plan()
    }

    /// Applies the oldest step in flight.
    ///
    /// # Panics
    /// If no step is in flight: a driver bug.
    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs
    where
        Self: Sized;

    /// Outputs of the latest applied step or fast-forward.
    fn outputs(&self) -> &StepOutputs;

    /// Fills `steps` with up to `most` steps that certainly follow the step in flight, if the driver does nothing else.
    /// They are pure decodes of the same requests. There may be none.
    fn predict_decode_steps(&self, most: usize, steps: &mut DecodeSteps) {
        let _ = most;
        steps.restart(&self.plan().shape, self.load().num_waiting as u64);
    }

    /// Applies the step in flight and the next `steps - 1` steps, and leaves one more step in flight. At least
    /// `steps` steps must have been predicted.
    ///
    /// # Panics
    /// If fewer steps were predicted: a driver bug.
    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, steps: u32, source: &mut S)
    where
        Self: Sized,
    {
        let _ = source;
        panic!("{steps} steps were skipped, but this engine predicts none");
    }

    /// The number of requests and blocks in use.
    fn load(&self) -> EngineLoad;

    /// Totals since the start.
    fn stats(&self) -> &EngineStats;

    /// Whether outputs include the number of drafts proposed for the next step.
    fn proposes_drafts(&self) -> bool {
        false
    }

    /// Length in blocks of the longest cached prefix of `hashes`.
    fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32 {
        let _ = hashes;
        0
    }

    /// Starts or stops recording KV events. To record them, start before the first
    /// request. An engine without a cache has no events.
    fn record_kv_events(&mut self, on: bool) {
        let _ = on;
    }

    /// Events recorded since they were last cleared. None while recording is off.
    fn kv_events(&self) -> Option<&KvEventLog> {
        None
    }

    /// Removes the recorded events.
    fn clear_kv_events(&mut self) {}
}
