//! What drives an engine, whichever scheduler it has.
//!
//! Drivers that simulate many engines know them as [`ServingEngine`]s. The kind
//! is part of an engine's settings, an [`EngineKind`]; [`AnyEngine`] is an
//! engine of either kind, told apart once in a call and never for a token.

use crate::config::{EngineConfig, Policy, Reservations};
use crate::engine::{Engine, RejectReason, TokenSource};
use crate::hash::BlockHash;
use crate::kv_event::KvEventLog;
use crate::kv_tiers::{KvTiers, KvTiersConfig};
use crate::latency::StepShape;
use crate::plan::{RemoteLoad, StepOutputs, StepPlan};
use crate::policy::{PolicyError, SchedulingPolicy};
use crate::request::{RequestId, RequestSpec};
use crate::sglang::{PrefixLookup, SglangConfig, SglangEngine};
use crate::stats::EngineStats;

/// Checked settings of an engine, which say whose scheduler it has.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineKind {
    /// vLLM's, or with [`CapacityPolicy::GuaranteedNoEvict`] TensorRT-LLM's.
    ///
    /// [`CapacityPolicy::GuaranteedNoEvict`]: crate::CapacityPolicy::GuaranteedNoEvict
    Vllm(EngineConfig),
    /// SGLang's.
    Sglang(SglangConfig),
}

impl EngineKind {
    /// Tokens per KV block, or page.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        match self {
            Self::Vllm(config) => config.block_size,
            Self::Sglang(config) => config.page_size,
        }
    }

    /// Most tokens computed in one step.
    #[must_use]
    pub fn max_num_batched_tokens(&self) -> u32 {
        match self {
            Self::Vllm(config) => config.max_num_batched_tokens,
            Self::Sglang(config) => config.max_prefill_tokens,
        }
    }

    /// KV blocks, or pages, one that is never used included.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        match self {
            Self::Vllm(config) => config.num_gpu_blocks,
            Self::Sglang(config) => config.num_pages,
        }
    }

    /// Whether what a prompt has computed in its earlier chunks counts as cached when
    /// the next one begins, as `dynamo-mocker` 1.4 reports it of SGLang.
    #[must_use]
    pub fn reports_chunks_as_cached(&self) -> bool {
        matches!(self, Self::Sglang(config) if config.prefix_lookup == PrefixLookup::FirstChunk)
    }

    /// When it takes blocks for prompts that other engines compute.
    #[must_use]
    pub fn reservations(&self) -> Reservations {
        match self {
            Self::Vllm(config) => config.reservations,
            Self::Sglang(_) => Reservations::InSteps,
        }
    }

    /// Where it keeps KV below the device, if anywhere.
    #[must_use]
    pub fn kv_tiers(&self) -> Option<&KvTiersConfig> {
        self.as_vllm().and_then(|config| config.kv_tiers.as_ref())
    }

    /// Whether a scheduling policy ranks its requests.
    #[must_use]
    pub fn is_ranked(&self) -> bool {
        matches!(self, Self::Vllm(config) if config.policy == Policy::Ranked)
    }

    /// The settings of an engine with vLLM's scheduler.
    #[must_use]
    pub fn as_vllm(&self) -> Option<&EngineConfig> {
        match self {
            Self::Vllm(config) => Some(config),
            Self::Sglang(_) => None,
        }
    }
}

impl From<EngineConfig> for EngineKind {
    fn from(config: EngineConfig) -> Self {
        Self::Vllm(config)
    }
}

impl From<SglangConfig> for EngineKind {
    fn from(config: SglangConfig) -> Self {
        Self::Sglang(config)
    }
}

/// An engine as a driver knows it: a state machine without a clock.
///
/// The driver calls [`ServingEngine::schedule`] when a step may start, prices
/// the plan's shape, and calls [`ServingEngine::update`] when that step ends.
/// In between requests come and go. Blocks are whatever the engine's unit of KV
/// is called.
pub trait ServingEngine {
    /// Whether a request of these lengths could run here to its end. One that
    /// could not may wait for ever, so drivers ask before they submit.
    ///
    /// # Errors
    /// The reason why it could not.
    fn check(&self, prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason>;

    /// Queues a request.
    ///
    /// # Errors
    /// When the engine does not take it; it is unchanged.
    fn submit(&mut self, spec: RequestSpec) -> Result<RequestId, RejectReason>;

    /// Ends a request early and frees what it holds, held KV included. Its
    /// outputs of a step in flight are dropped. Nothing happens if it has ended.
    fn abort(&mut self, id: RequestId);

    /// Tags of every request that has not ended or still holds KV, by slot.
    fn live_tags(&self) -> Vec<u64>;

    /// Tags of the running list, in its order.
    fn running_tags(&self) -> Vec<u64>;

    /// Says that the transfer announced by a [`RemoteLoad`] is complete.
    ///
    /// # Panics
    /// When the request does not wait for one: a driver bug.
    fn remote_kv_arrived(&mut self, id: RequestId);

    /// Takes room for the oldest request whose prompt comes from elsewhere, where that
    /// is done between steps ([`Reservations::BetweenSteps`]). None if there is no such
    /// request, or no room.
    fn reserve_remote(&mut self) -> Option<RemoteLoad> {
        None
    }

    /// Frees the KV of a request that ended as a source.
    ///
    /// # Panics
    /// When none is held: a driver bug.
    fn release_held_kv(&mut self, id: RequestId);

    /// Has a policy rank the requests, if the engine asks one.
    ///
    /// # Errors
    /// When the policy fails, or says what it may not.
    fn consult(&mut self, policy: &mut dyn SchedulingPolicy, now_ns: u64) -> Result<(), PolicyError>;

    /// Whether another step may be scheduled before one is applied.
    fn may_schedule(&self) -> bool;

    /// Whether [`ServingEngine::schedule`] could find work.
    fn has_schedulable_requests(&self) -> bool;

    /// Decides the next step. Its plan is empty when nothing can run; then there
    /// is nothing to update either. One that is empty but for preemptions has
    /// made room that the next call may use.
    ///
    /// # Panics
    /// When no further step may be in flight: a driver bug.
    fn schedule(&mut self) -> &StepPlan;

    /// Whether a step has been scheduled and not yet applied.
    fn step_in_flight(&self) -> bool;

    /// Steps scheduled and not yet applied.
    fn steps_in_flight(&self) -> usize;

    /// The latest plan.
    fn plan(&self) -> &StepPlan;

    /// The oldest plan in flight; the latest if none is.
    fn oldest_plan(&self) -> &StepPlan;

    /// Applies the oldest step in flight.
    ///
    /// # Panics
    /// When no step is in flight: a driver bug.
    fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs;

    /// Outputs of the latest step applied, or of the latest stretch.
    fn outputs(&self) -> &StepOutputs;

    /// Tells tags of requests that do not decode in bulk any more, with the output
    /// tokens that they got there and that no outputs have listed. These are up to
    /// the latest step applied.
    fn take_untold(&mut self, tell: impl FnMut(u64, u32)) {
        let _ = tell;
    }

    /// Has no request decode in bulk until the next step is applied.
    fn dissolve_bulk(&mut self) {}

    /// Appends the shapes of up to `most` steps that are sure to follow the one
    /// in flight, as long as nothing comes from outside: pure decode of the same
    /// requests. May append none.
    fn predict_decode_steps(&self, most: usize, shapes: &mut Vec<StepShape>);

    /// Applies the step in flight and the `shapes.len() - 1` after it, and
    /// leaves the last of `shapes` in flight; `shapes` have been predicted.
    ///
    /// # Panics
    /// When they have not: a driver bug.
    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, shapes: &[StepShape], source: &mut S);

    /// KV events in the log at the end of each step that the latest call of
    /// [`ServingEngine::decode_ahead`] has scheduled; none where the engine cannot
    /// tell in which of them each came.
    fn events_by_step(&self) -> Option<&[u32]>;

    /// Most tokens computed in one step.
    fn max_num_batched_tokens(&self) -> u32;

    /// Requests in the running list.
    fn num_running(&self) -> usize;

    /// Requests waiting for admission or for a KV transfer.
    fn num_waiting(&self) -> usize;

    /// Prefill tokens not yet computed, over waiting and running requests.
    fn outstanding_prefill_tokens(&self) -> u64;

    /// Totals since the start.
    fn stats(&self) -> &EngineStats;

    /// Most requests running at once.
    fn max_num_seqs(&self) -> u32;

    /// Extra tokens a sampling request may emit in a step.
    fn max_extra_tokens_per_step(&self) -> u32;

    /// Whether outputs say how many drafts are proposed for the next step.
    fn proposes_drafts(&self) -> bool;

    /// Blocks that requests can use in all.
    fn num_usable_blocks(&self) -> u32;

    /// Blocks that at least one request uses.
    fn num_active_blocks(&self) -> u32;

    /// Length in blocks of the longest cached run at the start of `hashes`.
    fn cached_prefix_blocks(&self, hashes: &[BlockHash]) -> u32;

    /// Starts or stops recording KV events; to be started before the first
    /// request.
    fn record_kv_events(&mut self, on: bool);

    /// Events recorded since they were last cleared; none while recording is off.
    fn kv_events(&self) -> Option<&KvEventLog>;

    /// Forgets the recorded events.
    fn clear_kv_events(&mut self);

    /// The tiers below the device, if there are any.
    fn kv_tiers(&self) -> Option<&KvTiers> {
        None
    }

    /// The tiers, to record their changes and to advance them.
    fn kv_tiers_mut(&mut self) -> Option<&mut KvTiers> {
        None
    }

    /// Sees what has arrived in the tiers, and from them, until `now_ns`; to be
    /// called when [`KvTiers::next_load_ns`] has come and before a step is
    /// scheduled. The tags of requests whose load is complete are appended to
    /// `loaded`.
    fn advance_tiers(&mut self, now_ns: u64, loaded: &mut Vec<u64>) {
        let _ = (now_ns, loaded);
    }

    /// Sends to the host what the oldest step in flight, which ends at `now_ns`
    /// and is not yet applied, has computed of prompts.
    fn offload_prompts(&mut self, now_ns: u64) {
        let _ = now_ns;
    }
}

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

    fn predict_decode_steps(&self, most: usize, shapes: &mut Vec<StepShape>) {
        self.predict_decode_steps(most, shapes);
    }

    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, shapes: &[StepShape], source: &mut S) {
        self.decode_ahead(shapes, source);
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
#[expect(clippy::large_enum_variant, reason = "engines live long, and few of them")]
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

    fn predict_decode_steps(&self, most: usize, shapes: &mut Vec<StepShape>) {
        each!(self, engine => ServingEngine::predict_decode_steps(engine, most, shapes));
    }

    fn decode_ahead<S: TokenSource + ?Sized>(&mut self, shapes: &[StepShape], source: &mut S) {
        each!(self, engine => ServingEngine::decode_ahead(engine, shapes, source));
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
