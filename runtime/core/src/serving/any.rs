//! An engine of any kind, told apart once in a call.

use crate::engine::{Engine, RejectReason, TokenSource};
use crate::hash::BlockHash;
use crate::kv_event::KvEventLog;
use crate::kv_tiers::KvTiers;
use crate::latency::DecodeSteps;
use crate::plan::{RemoteLoad, StepOutputs, StepPlan};
use crate::policy::{PolicyError, SchedulingPolicy};
use crate::request::{RequestId, RequestSpec};
use crate::serving::{EngineKind, ServingEngine};
use crate::sglang::SglangEngine;
use crate::stats::EngineStats;

/// Calls a method of the engine that it is.
macro_rules! each {
    ($any:ident, $engine:ident => $call:expr) => {
        match $any {
            AnyEngine::Vllm($engine) => $call,
            AnyEngine::Sglang($engine) => $call,
        }
    };
}

/// An engine of either kind.
#[derive(Debug)]
pub enum AnyEngine {
    /// One with vLLM's scheduler.
    Vllm(Engine),
    /// One with SGLang's.
    Sglang(SglangEngine),
}

impl AnyEngine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(kind: &EngineKind) -> Self {
        match kind {
            EngineKind::Vllm(config) => Self::Vllm(Engine::new(config.clone())),
            EngineKind::Sglang(config) => Self::Sglang(SglangEngine::new(config.clone())),
        }
    }

    /// Its settings.
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        each!(self, engine => engine.config().clone().into())
    }
}

impl ServingEngine for AnyEngine {
    fn check(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason> {
        each!(self, engine => ServingEngine::check(engine, prompt_tokens, max_tokens))
    }

    fn submit(&mut self, spec: RequestSpec) -> Result<RequestId, RejectReason> {
        each!(self, engine => ServingEngine::submit(engine, spec))
    }

    fn abort(&mut self, id: RequestId) {
        each!(self, engine => ServingEngine::abort(engine, id));
    }

    fn live_tags(&self) -> Vec<u64> {
        each!(self, engine => ServingEngine::live_tags(engine))
    }

    fn running_tags(&self) -> Vec<u64> {
        each!(self, engine => ServingEngine::running_tags(engine))
    }

    fn remote_kv_arrived(&mut self, id: RequestId) {
        each!(self, engine => ServingEngine::remote_kv_arrived(engine, id));
    }

    fn reserve_remote(&mut self) -> Option<RemoteLoad> {
        each!(self, engine => ServingEngine::reserve_remote(engine))
    }

    fn release_held_kv(&mut self, id: RequestId) {
        each!(self, engine => ServingEngine::release_held_kv(engine, id));
    }

    fn consult(&mut self, policy: &mut dyn SchedulingPolicy, now_ns: u64) -> Result<(), PolicyError> {
        each!(self, engine => ServingEngine::consult(engine, policy, now_ns))
    }

    fn may_schedule(&self) -> bool {
        each!(self, engine => ServingEngine::may_schedule(engine))
    }

    fn has_schedulable_requests(&self) -> bool {
        each!(self, engine => ServingEngine::has_schedulable_requests(engine))
    }

    fn schedule(&mut self) -> &StepPlan {
        each!(self, engine => ServingEngine::schedule(engine))
    }

    fn step_in_flight(&self) -> bool {
        each!(self, engine => ServingEngine::step_in_flight(engine))
    }

    fn steps_in_flight(&self) -> usize {
        each!(self, engine => ServingEngine::steps_in_flight(engine))
    }

    fn plan(&self) -> &StepPlan {
        each!(self, engine => ServingEngine::plan(engine))
    }

    fn oldest_plan(&self) -> &StepPlan {
        each!(self, engine => ServingEngine::oldest_plan(engine))
    }

    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs {
        each!(self, engine => ServingEngine::update(engine, source))
    }

    fn outputs(&self) -> &StepOutputs {
        each!(self, engine => ServingEngine::outputs(engine))
    }

    fn take_untold(&mut self, tell: impl FnMut(u64, u32)) {
        each!(self, engine => ServingEngine::take_untold(engine, tell));
    }

    fn dissolve_bulk(&mut self) {
        each!(self, engine => ServingEngine::dissolve_bulk(engine));
    }

    fn predict_decode_steps(&self, most: usize, steps: &mut DecodeSteps) {
        each!(self, engine => ServingEngine::predict_decode_steps(engine, most, steps));
    }

    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, steps: u32, source: &mut S) {
        each!(self, engine => ServingEngine::decode_ahead(engine, steps, source));
    }

    fn events_by_step(&self) -> Option<&[u32]> {
        each!(self, engine => ServingEngine::events_by_step(engine))
    }

    fn max_num_batched_tokens(&self) -> u32 {
        each!(self, engine => ServingEngine::max_num_batched_tokens(engine))
    }

    fn num_running(&self) -> usize {
        each!(self, engine => ServingEngine::num_running(engine))
    }

    fn num_waiting(&self) -> usize {
        each!(self, engine => ServingEngine::num_waiting(engine))
    }

    fn outstanding_prefill_tokens(&self) -> u64 {
        each!(self, engine => ServingEngine::outstanding_prefill_tokens(engine))
    }

    fn stats(&self) -> &EngineStats {
        each!(self, engine => ServingEngine::stats(engine))
    }

    fn max_num_seqs(&self) -> u32 {
        each!(self, engine => ServingEngine::max_num_seqs(engine))
    }

    fn max_extra_tokens_per_step(&self) -> u32 {
        each!(self, engine => ServingEngine::max_extra_tokens_per_step(engine))
    }

    fn proposes_drafts(&self) -> bool {
        each!(self, engine => ServingEngine::proposes_drafts(engine))
    }

    fn num_usable_blocks(&self) -> u32 {
        each!(self, engine => ServingEngine::num_usable_blocks(engine))
    }

    fn num_active_blocks(&self) -> u32 {
        each!(self, engine => ServingEngine::num_active_blocks(engine))
    }

    fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32 {
        each!(self, engine => ServingEngine::cached_prefix_blocks(engine, hashes))
    }

    fn record_kv_events(&mut self, on: bool) {
        each!(self, engine => ServingEngine::record_kv_events(engine, on));
    }

    fn kv_events(&self) -> Option<&KvEventLog> {
        each!(self, engine => ServingEngine::kv_events(engine))
    }

    fn clear_kv_events(&mut self) {
        each!(self, engine => ServingEngine::clear_kv_events(engine));
    }

    fn kv_tiers(&self) -> Option<&KvTiers> {
        each!(self, engine => ServingEngine::kv_tiers(engine))
    }

    fn kv_tiers_mut(&mut self) -> Option<&mut KvTiers> {
        each!(self, engine => ServingEngine::kv_tiers_mut(engine))
    }

    fn advance_tiers(&mut self, now_ns: u64, loaded: &mut Vec<u64>) {
        each!(self, engine => ServingEngine::advance_tiers(engine, now_ns, loaded));
    }

    fn offload_prompts(&mut self, now_ns: u64) {
        each!(self, engine => ServingEngine::offload_prompts(engine, now_ns));
    }
}
