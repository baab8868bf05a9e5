//! Engines as their drivers know them, whichever scheduler they have.
//!
//! Drivers that simulate many engines know them as [`ServingEngine`]s. The kind
//! is part of an engine's settings, an [`EngineKind`]; [`AnyEngine`] is an
//! engine of any kind, dispatched once in a call and never for a token.

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

/// The requests and blocks that an engine has in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLoad {
    /// Requests in the running list.
    pub num_running: usize,
    /// Requests waiting for admission or for a KV transfer.
    pub num_waiting: usize,
    /// Requests among these whose KV is being transferred here.
    pub num_loading: usize,
    /// Prefill tokens not yet computed, over waiting and running requests.
    pub outstanding_prefill_tokens: u64,
    /// Blocks that at least one request uses.
    pub num_active_blocks: u32,
    /// Blocks that requests can use in all.
    pub num_usable_blocks: u32,
}

/// An engine as a driver knows it: a state machine without a clock.
///
/// The driver calls [`ServingEngine::schedule`] when a step may start, prices the plan's shape, and
/// calls [`ServingEngine::update`] when that step ends. In between requests arrive and end. "Block"
/// means the engine's unit of KV. Only vLLM's engine has scheduling policies, steady decode, tiers
/// below the device and times of single requests; drivers reach them through
/// [`AnyEngine::as_vllm`]. Pure readers of an engine take a `&dyn ServingEngine`.
pub trait ServingEngine: fmt::Debug {
    /// Whether a request of these lengths could run here to its end. Other requests may wait forever, so
    /// drivers call this before they submit.
    fn check(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason>;

    /// Whether the KV of such a prompt could come from another engine. Otherwise it may also wait forever.
    fn check_load(&self, _prompt_tokens: u32) -> Result<(), RejectReason> {
        Ok(())
    }

    /// Queues a request.
    ///
    /// # Errors
    /// When the engine does not take it; it is unchanged.
    fn submit(&mut self, spec: RequestSpec) -> Result<RequestId, RejectReason>;

    /// Ends a request early and frees its resources, held KV included. Its outputs of a step in
    /// flight are dropped. Does nothing if it has ended.
    fn abort(&mut self, id: RequestId);

    /// Tags of every request that has not ended or still holds KV, by slot.
    fn live_tags(&self) -> Vec<u64>;

    /// Tags of the running list, in its order.
    fn running_tags(&self) -> Vec<u64>;

    /// Completes the transfer announced by a [`RemoteLoad`].
    ///
    /// # Panics
    /// When the request does not wait for one: a driver bug.
    fn remote_kv_arrived(&mut self, id: RequestId) {
        panic!("{id:?} waits for no transfer: this engine takes no KV from others");
    }

    /// Allocates blocks for the oldest request with remote KV, if that is done between steps
    /// ([`crate::Reservations::BetweenSteps`]). None if there is no such request, or no room.
    fn reserve_remote(&mut self) -> Option<RemoteLoad> {
        None
    }

    /// Whether [`ServingEngine::reserve_remote`] may find something at the end of the step in flight, or, between
    /// steps, when it is asked again.
    fn may_reserve(&self) -> bool {
        false
    }

    /// Frees the KV of a request that ended as a source.
    ///
    /// # Panics
    /// When none is held: a driver bug.
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
    /// called. A plan with nothing but preemptions has made room that the next call may use; a plan
    /// with nothing but refusals has no other effect.
    ///
    /// # Panics
    /// When no further step may be in flight: a driver bug.
    fn schedule(&mut self) -> &StepPlan;

    /// Whether a step has been scheduled and not yet applied.
    fn step_in_flight(&self) -> bool {
        self.steps_in_flight() > 0
    }

    /// Steps scheduled and not yet applied.
    fn steps_in_flight(&self) -> usize;

    /// The latest plan.
    fn plan(&self) -> &StepPlan;

    /// The oldest plan in flight; the latest if none is.
    fn oldest_plan(&self) -> &StepPlan {
        self.plan()
    }

    /// Applies the oldest step in flight.
    ///
    /// # Panics
    /// When no step is in flight: a driver bug.
    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs
    where
        Self: Sized;

    /// Outputs of the latest step applied, or of the latest fast-forward.
    fn outputs(&self) -> &StepOutputs;

    /// Fills `steps` with up to `most` steps that certainly follow the one in flight, if nothing comes from
    /// outside: pure decode of the same requests. It may be empty.
    fn predict_decode_steps(&self, most: usize, steps: &mut DecodeSteps) {
        let _ = most;
        steps.restart(&self.plan().shape, self.load().num_waiting as u64);
    }

    /// Applies the step in flight and the `steps - 1` after it, and leaves one more in flight; at least this
    /// number must have been predicted.
    ///
    /// # Panics
    /// If fewer were predicted: a driver bug.
    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, steps: u32, source: &mut S)
    where
        Self: Sized,
    {
        let _ = source;
        panic!("{steps} steps were skipped, but this engine predicts none");
    }

    /// The requests and blocks in use.
    fn load(&self) -> EngineLoad;

    /// Totals since the start.
    fn stats(&self) -> &EngineStats;

    /// Whether outputs include the number of drafts proposed for the next step.
    fn proposes_drafts(&self) -> bool {
        false
    }

    /// Length in blocks of the longest cached run at the start of `hashes`.
    fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32 {
        let _ = hashes;
        0
    }

    /// Starts or stops recording KV events; to be started before the first
    /// request. An engine that caches nothing has none.
    fn record_kv_events(&mut self, on: bool) {
        let _ = on;
    }

    /// Events recorded since they were last cleared; none while recording is off.
    fn kv_events(&self) -> Option<&KvEventLog> {
        None
    }

    /// Forgets the recorded events.
    fn clear_kv_events(&mut self) {}
}
