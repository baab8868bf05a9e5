//! The vLLM engine as a driver knows it.

use crate::engine::{Engine, RejectReason, TokenSource};
use crate::hash::BlockHash;
use crate::kv_event::KvEventLog;
use crate::kv_tiers::KvTiers;
use crate::latency::DecodeSteps;
use crate::plan::{RemoteLoad, StepOutputs, StepPlan};
use crate::policy::{PolicyError, SchedulingPolicy};
use crate::request::{RequestId, RequestSpec};
use crate::serving::ServingEngine;
use crate::stats::EngineStats;

impl ServingEngine for Engine {
    fn check(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        self.check(prompt_tokens, max_tokens)
    }

    fn submit(&mut self, spec: RequestSpec) -> Result<RequestId, RejectReason> {
        self.submit(spec)
    }

    fn abort(&mut self, id: RequestId) {
        self.abort(id);
    }

    fn live_tags(&self) -> Vec<u64> {
        self.live_tags().collect()
    }

    fn running_tags(&self) -> Vec<u64> {
        self.running_tags().collect()
    }

    fn remote_kv_arrived(&mut self, id: RequestId) {
        self.remote_kv_arrived(id);
    }

    fn reserve_remote(&mut self) -> Option<RemoteLoad> {
        self.reserve_remote()
    }

    fn release_held_kv(&mut self, id: RequestId) {
        self.release_held_kv(id);
    }

    fn consult(&mut self, policy: &mut dyn SchedulingPolicy, now_ns: u64) -> Result<(), PolicyError> {
        self.consult(policy, now_ns)
    }

    fn may_schedule(&self) -> bool {
        self.may_schedule()
    }

    fn has_schedulable_requests(&self) -> bool {
        self.has_schedulable_requests()
    }

    fn schedule(&mut self) -> &StepPlan {
        self.schedule()
    }

    fn step_in_flight(&self) -> bool {
        self.step_in_flight()
    }

    fn steps_in_flight(&self) -> usize {
        self.steps_in_flight()
    }

    fn plan(&self) -> &StepPlan {
        self.plan()
    }

    fn oldest_plan(&self) -> &StepPlan {
        self.oldest_plan()
    }

    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs {
        self.update(source)
    }

    fn outputs(&self) -> &StepOutputs {
        self.outputs()
    }

    fn take_untold(&mut self, mut tell: impl FnMut(u64, u32)) {
        self.take_untold().for_each(|(tag, tokens)| tell(tag, tokens));
    }

    fn dissolve_bulk(&mut self) {
        self.dissolve_bulk();
    }

    fn predict_decode_steps(&self, most: usize, steps: &mut DecodeSteps) {
        self.predict_decode_steps(most, steps);
    }

    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, steps: u32, source: &mut S) {
        self.decode_ahead(steps, source);
    }

    fn events_by_step(&self) -> Option<&[u32]> {
        Some(&self.stretch().events_by_step)
    }

    fn max_num_batched_tokens(&self) -> u32 {
        self.config.max_num_batched_tokens
    }

    fn num_running(&self) -> usize {
        self.num_running()
    }

    fn num_waiting(&self) -> usize {
        self.num_waiting()
    }

    fn outstanding_prefill_tokens(&self) -> u64 {
        self.outstanding_prefill_tokens()
    }

    fn stats(&self) -> &EngineStats {
        self.stats()
    }

    fn max_num_seqs(&self) -> u32 {
        self.config.max_num_seqs
    }

    fn max_extra_tokens_per_step(&self) -> u32 {
        self.config.max_extra_tokens_per_step
    }

    fn proposes_drafts(&self) -> bool {
        self.config.num_speculative_tokens > 0 && !self.config.async_scheduling
    }

    fn num_usable_blocks(&self) -> u32 {
        self.pool.num_usable()
    }

    fn num_active_blocks(&self) -> u32 {
        self.pool.num_active()
    }

    fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32 {
        self.pool.cached_prefix_blocks(hashes)
    }

    fn record_kv_events(&mut self, on: bool) {
        self.pool.record_events(on);
    }

    fn kv_events(&self) -> Option<&KvEventLog> {
        self.pool.events()
    }

    fn clear_kv_events(&mut self) {
        self.pool.clear_events();
    }

    fn kv_tiers(&self) -> Option<&KvTiers> {
        self.kv_tiers()
    }

    fn kv_tiers_mut(&mut self) -> Option<&mut KvTiers> {
        self.kv_tiers_mut()
    }

    fn advance_tiers(&mut self, now_ns: u64, loaded: &mut Vec<u64>) {
        self.advance_tiers(now_ns, loaded);
    }

    fn offload_prompts(&mut self, now_ns: u64) {
        self.offload_prompts(now_ns);
    }
}
