//! The engine as drivers use it.

use super::engine::TickEngine;
use crate::engine::{RejectReason, TokenSource};
use crate::kv::event::KvEventLog;
use crate::kv::hash::BlockHash;
use crate::plan::{StepOutputs, StepPlan};
use crate::plugins::latency::DecodeSteps;
use crate::plugins::policy::{PolicyError, SchedulingPolicy};
use crate::request::{RequestId, RequestSpec};
use crate::serving::ServingEngine;
use crate::stats::EngineStats;

impl ServingEngine for TickEngine {
    fn check(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        self.check_lengths(prompt_tokens, max_tokens)
    }

    fn submit(&mut self, spec: RequestSpec) -> Result<RequestId, RejectReason> {
        self.enqueue(spec)
    }

    fn abort(&mut self, id: RequestId) {
        self.abort_request(id);
    }

    fn live_tags(&self) -> Vec<u64> {
        self.requests.live_ids().map(|id| self.requests[id].tag).collect()
    }

    fn running_tags(&self) -> Vec<u64> {
        self.active.iter().map(|&id| self.requests[id].tag).collect()
    }

    fn remote_kv_arrived(&mut self, id: RequestId) {
        panic!("{id:?} waits for no transfer: requests with one are refused");
    }

    fn release_held_kv(&mut self, id: RequestId) {
        panic!("{id:?} holds no KV for others: requests that would are refused");
    }

    fn apply_policy(&mut self, _policy: &mut dyn SchedulingPolicy, _now_ns: u64) -> Result<(), PolicyError> {
        Ok(())
    }

    fn may_schedule(&self) -> bool {
        !self.step_in_flight
    }

    fn has_schedulable_requests(&self) -> bool {
        !self.active.is_empty() || !self.waiting.is_empty()
    }

    fn schedule(&mut self) -> &StepPlan {
        assert!(!self.step_in_flight, "scheduled a tick while one is in flight");
        let mut plan = std::mem::take(&mut self.plan);
        plan.clear();
        self.decide(&mut plan);
        self.step_in_flight = !plan.scheduled.is_empty();
        self.stats.steps += u64::from(self.step_in_flight);
        self.plan = plan;
        &self.plan
    }

    fn steps_in_flight(&self) -> usize {
        usize::from(self.step_in_flight)
    }

    fn plan(&self) -> &StepPlan {
        &self.plan
    }

    fn oldest_plan(&self) -> &StepPlan {
        &self.plan
    }

    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs {
        self.apply(source);
        &self.outputs
    }

    fn outputs(&self) -> &StepOutputs {
        &self.outputs
    }

    /// Predicts none: turns change the requests of a step.
    fn predict_decode_steps(&self, _most: usize, steps: &mut DecodeSteps) {
        steps.restart(&self.plan.shape, self.num_waiting() as u64);
    }

    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, steps: u32, _source: &mut S) {
        panic!("{steps} ticks were skipped, but none is ever predicted");
    }

    fn events_by_step(&self) -> Option<&[u32]> {
        None
    }

    fn num_running(&self) -> usize {
        self.active.len()
    }

    fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    fn outstanding_prefill_tokens(&self) -> u64 {
        self.outstanding_prefill_tokens
    }

    fn stats(&self) -> &EngineStats {
        &self.stats
    }

    fn proposes_drafts(&self) -> bool {
        false
    }

    fn num_usable_blocks(&self) -> u32 {
        self.config.total_kv_pages
    }

    fn num_active_blocks(&self) -> u32 {
        self.config.total_kv_pages - self.num_free_pages
    }

    fn cached_prefix_blocks(&self, _hashes: &[BlockHash]) -> u32 {
        0
    }

    fn record_kv_events(&mut self, on: bool) {
        self.events = on.then(KvEventLog::default);
    }

    fn kv_events(&self) -> Option<&KvEventLog> {
        self.events.as_ref()
    }

    fn clear_kv_events(&mut self) {
        if let Some(events) = &mut self.events {
            events.clear();
        }
    }
}
