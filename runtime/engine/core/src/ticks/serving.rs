//! The engine as drivers use it.

use super::engine::TickEngine;
use crate::engine::RejectReason;
use crate::plan::{StepOutputs, StepPlan};
use crate::plugins::TokenSource;
use crate::request::{RequestId, RequestSpec};
use crate::serving::{EngineLoad, ServingEngine};
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

    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs {
        self.apply(source);
        &self.outputs
    }

    fn outputs(&self) -> &StepOutputs {
        &self.outputs
    }

    fn load(&self) -> EngineLoad {
        EngineLoad {
            num_running: self.active.len(),
            num_waiting: self.waiting.len(),
            outstanding_prefill_tokens: self.outstanding_prefill_tokens,
            num_active_blocks: self.config.total_kv_pages() - self.num_free_pages,
            num_usable_blocks: self.config.total_kv_pages(),
        }
    }

    fn stats(&self) -> &EngineStats {
        &self.stats
    }
}
