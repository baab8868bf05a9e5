//! A worker: an engine, or one rank of an engine with several, with its latency model, policy and health.

mod booking;
mod chosen;
mod drawn;
mod injector;
mod kv;
mod lifecycle;
mod plugins;
mod pricing;
mod shown;
mod steps;
mod totals;
mod waits;

use vcr_base::random::Stream;
use vcr_core::host::{Launches, Pipeline};
use vcr_core::kv_event::KvEventCursor;
use vcr_core::latency::RangeUse;
use vcr_core::plan::{RemoteLoad, StepPlan};
use vcr_core::policy::SchedulingPolicy;
use vcr_core::route::WorkerLoad;
use vcr_core::{
    AnyEngine, Engine, EngineKind, EngineStats, RejectReason, RequestId, RequestSpec, Reservations, ServingEngine,
    TierRun, seed,
};

use crate::config::{KvEviction, PoolConfig, PoolRole, RunConfig};
use crate::error::MakeError;

use booking::Booking;
use chosen::{ChosenTokens, prompt_tokens_of};
use injector::Injector;
use plugins::{new_latency, new_policy, new_token_source, pace, plugin_context};
use pricing::Pricing;
use shown::{ShownToken, ShownTokens};
use totals::WorkerTotals;
use waits::Waits;

pub(crate) use lifecycle::{Health, Lifecycle};
pub use shown::TokenRange;

pub(crate) struct Worker {
    facts: WorkerFacts,
    engine: AnyEngine,
    lifecycle: Lifecycle,
    /// Number of restarts; events of earlier incarnations are stale.
    incarnation: u32,
    totals: WorkerTotals,
    booking: Booking,
    pricing: Pricing,
    policy: Option<Box<dyn SchedulingPolicy>>,
    /// Injects failures; outlives the engine's incarnations.
    injector: Option<Box<Injector>>,
    /// The source of output tokens; None if tokens are drawn.
    tokens: Option<Box<ChosenTokens>>,
    /// Output tokens that a served cluster sends to clients.
    shown: Option<Box<ShownTokens>>,
    acceptance: Stream,
    /// Index among the workers that share the tiers.
    tier_client: u32,
    waits: Waits,
    /// Requests (with their attempt) whose KV arrived during a step and is taken over at the step's end.
    late_kv: Vec<(u64, u32)>,
    /// Position in the log of KV events up to which the routers have seen events.
    reported_kv_events: KvEventCursor,
    /// The pipeline stages, if there are several.
    pipeline: Option<Box<Pipeline>>,
}

impl Worker {
    pub(crate) fn new(
        role: PoolRole,
        index: u32,
        config: &PoolConfig,
        run: &RunConfig,
        records_events: bool,
    ) -> Result<Self, MakeError> {
        let engine_index = index / config.data_parallel.size;
        let is_up = engine_index < config.engines;
        let seed = seed::derive(run.seed, &format!("engine:{}", config.name), u64::from(index));
        let plugin_context = |purpose| plugin_context(&run.name, config, index, purpose, seed, 0);
        let injector = config.failures.as_ref().map(|make| make(&plugin_context("failures")));
        let injector = injector.transpose().map_err(MakeError::Failures)?;
        let needs_kv_events = role.needs_kv_events(&config.router);
        let counts_passes = config.counts_passes();
        let mut engine = new_engine(&config.engine, records_events || needs_kv_events, needs_kv_events, counts_passes);
        let latency = new_latency(plugin_context("latency"), config)?;
        pace(&mut engine, latency.as_ref())?;
        let is_async = matches!(&config.engine, EngineKind::Vllm(engine) if engine.async_scheduling());
        let launches = Launches::new(&config.overheads, is_async).map(Box::new);
        Ok(Self {
            facts: WorkerFacts {
                role,
                index,
                seed,
                block_size_tokens: config.engine.block_size(),
                reserves_between_steps: config.engine.reservations() == Reservations::BetweenSteps,
                counts_passes,
                shares_tiers: config.shares_tiers(),
                uses_forecast: config.kv_eviction == KvEviction::Belady,
                reports_to_router: needs_kv_events,
            },
            engine,
            lifecycle: Lifecycle::new(is_up, u64::from(engine_index)),
            incarnation: 0,
            totals: WorkerTotals::default(),
            booking: Booking::default(),
            pricing: Pricing::new(latency, launches),
            policy: new_policy(&plugin_context("policy"), config)?,
            injector: injector.map(|injector| Box::new(Injector::new(injector))),
            tokens: new_token_source(&plugin_context("tokens"), config)?,
            shown: None,
            acceptance: Stream::new(seed, "acceptance"),
            tier_client: 0,
            waits: Waits::default(),
            late_kv: Vec::new(),
            reported_kv_events: KvEventCursor::default(),
            pipeline: config.engine.as_vllm().and_then(Pipeline::new).map(Box::new),
        })
    }

    /// The worker's load, as routers see it for a prompt with these cached blocks.
    pub(crate) fn load(&self, cached_prompt_blocks: u32, tiers: TierRun) -> WorkerLoad {
        let load = self.engine.load();
        WorkerLoad {
            worker: self.facts.index,
            running_requests: load.num_running as u32,
            waiting_requests: load.num_waiting as u32,
            max_running_requests: self.engine.max_num_seqs(),
            active_blocks: load.num_active_blocks,
            total_blocks: load.num_usable_blocks,
            outstanding_prefill_tokens: load.outstanding_prefill_tokens,
            cached_prompt_blocks,
            host_prompt_blocks: tiers.host_blocks,
            disk_prompt_blocks: tiers.disk_blocks,
            loading_requests: load.num_loading as u32,
            last_step_ns: self.booking.last_step_ns(),
            preemption_count: self.engine.stats().preemptions,
        }
    }

    pub(crate) fn role(&self) -> PoolRole {
        self.facts.role
    }

    pub(crate) fn index(&self) -> u32 {
        self.facts.index
    }

    pub(crate) fn engine(&self) -> &AnyEngine {
        &self.engine
    }

    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    pub(crate) fn lifecycle_mut(&mut self) -> &mut Lifecycle {
        &mut self.lifecycle
    }

    pub(crate) fn totals(&self) -> &WorkerTotals {
        &self.totals
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Whether the oldest step in flight has started.
    pub(crate) fn is_executing(&self) -> bool {
        self.booking.is_executing()
    }

    pub(crate) fn step_start_ns(&self) -> u64 {
        self.booking.step_start_ns()
    }

    pub(crate) fn computes_until_ns(&self) -> u64 {
        self.booking.computes_until_ns()
    }

    pub(crate) fn step_digest(&self) -> u64 {
        self.booking.digest()
    }

    pub(crate) fn keep_step_digests(&mut self) {
        self.booking.keep_digests();
    }

    pub(crate) fn take_step_digests(&mut self) -> Option<Vec<u32>> {
        self.booking.take_digests()
    }

    /// Keeps output tokens for the server from now on. Drawn tokens are mapped into `range`.
    pub(crate) fn show_tokens(&mut self, range: TokenRange) {
        self.shown = Some(Box::new(ShownTokens::new(range)));
    }

    /// Takes the output tokens since the last call.
    pub(crate) fn take_shown_tokens(&mut self) -> Vec<ShownToken> {
        self.shown.as_mut().map(|shown| shown.take()).unwrap_or_default()
    }

    pub(crate) fn injector_mut(&mut self) -> Option<&mut Injector> {
        self.injector.as_deref_mut()
    }

    /// Whether outputs are drawn and no plugin sees the requests of a step.
    pub(crate) fn draws_outputs_unseen(&self) -> bool {
        self.injector.is_none() && self.tokens.is_none() && !self.pricing.reads_kv_groups()
    }

    pub(crate) fn submit(&mut self, spec: RequestSpec, run_seed: u64) -> Result<RequestId, RejectReason> {
        let Some(tokens) = &mut self.tokens else { return self.engine.submit(spec) };
        let (tag, max_tokens) = (spec.tag, spec.max_tokens);
        let eos_token = spec.stops.as_ref().and_then(|stops| stops.tokens.first().copied());
        let seed = seed::derive(run_seed, "tokens", spec.prompt.content_hash());
        let prompt = prompt_tokens_of(&spec.prompt, self.facts.block_size_tokens);
        let id = self.engine.submit(spec)?;
        tokens.start(tag, seed, prompt, max_tokens, eos_token);
        Ok(id)
    }

    pub(crate) fn abort(&mut self, tag: u64, id: RequestId) {
        self.engine.abort(id);
        if let Some(injector) = &mut self.injector {
            injector.ended(tag);
        }
        self.take_chosen(tag);
    }

    /// Takes the tokens that the source chose for a request that leaves.
    pub(crate) fn take_chosen(&mut self, tag: u64) -> Option<Vec<u32>> {
        self.tokens.as_mut().map(|tokens| tokens.end(tag))
    }

    /// Frees KV that the worker holds for another engine.
    pub(crate) fn release_held_kv(&mut self, id: RequestId) {
        self.engine.release_held_kv(id);
    }

    pub(crate) fn remote_kv_arrived(&mut self, id: RequestId) {
        self.engine.remote_kv_arrived(id);
    }

    /// Takes blocks for the oldest prompt that another engine computes, if there is room.
    pub(crate) fn reserve_remote(&mut self) -> Option<RemoteLoad> {
        self.engine.reserve_remote()
    }

    /// Whether the next call of [`Self::reserve_remote`] may find blocks.
    pub(crate) fn may_reserve(&self) -> bool {
        self.engine.may_reserve()
    }

    pub(crate) fn block_size_tokens(&self) -> u32 {
        self.facts.block_size_tokens
    }

    /// Whether the worker takes blocks for remotely computed prompts between its steps.
    pub(crate) fn reserves_between_steps(&self) -> bool {
        self.facts.reserves_between_steps
    }

    /// Records KV that arrived during a step, to take it over at the step's end.
    pub(crate) fn keep_late_kv(&mut self, tag: u64, attempt: u32) {
        self.late_kv.push((tag, attempt));
    }

    pub(crate) fn take_late_kv(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.late_kv)
    }

    /// Whether the worker serves and is not stalled.
    pub(crate) fn may_work(&self) -> bool {
        self.lifecycle.is_serving() && !self.waits.is_stalled()
    }

    /// Whether the worker drains and is done: it has no request, no KV for another engine, and no step.
    pub(crate) fn is_drained(&self) -> bool {
        self.lifecycle.health() == Health::Draining
            && !self.engine.step_in_flight()
            && self.engine.live_tags().is_empty()
    }

    /// Ends the worker's process.
    pub(crate) fn turn_off(&mut self, now_ns: u64) {
        self.end_process(now_ns, Health::Off);
    }

    /// Stalls the worker until `until_ns`, or longer if a longer stall is in progress.
    pub(crate) fn stall(&mut self, now_ns: u64, until_ns: u64) {
        let more_ns = self.waits.stall(now_ns, until_ns);
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.delay_tokens(more_ns);
        }
    }

    pub(crate) fn end_stall(&mut self, now_ns: u64) -> bool {
        self.waits.end_stall(now_ns)
    }

    /// The plan of the oldest step in flight.
    pub(crate) fn plan(&self) -> &StepPlan {
        self.engine.oldest_plan()
    }

    /// Crashes the worker, which loses all requests and the cache. `then` is the health afterwards.
    pub(crate) fn crash(&mut self, now_ns: u64, then: Health) {
        // The rest of the step in flight does not count as busy time.
        self.cut_step(now_ns);
        self.totals.crashes += 1;
        self.end_process(now_ns, then);
    }

    fn end_process(&mut self, now_ns: u64, then: Health) {
        self.booking.end();
        let tiers = self.all_tier_stats(now_ns);
        self.totals.lose(self.engine.stats(), tiers);
        let records_events = self.engine.kv_events().is_some();
        let kind = self.engine.kind();
        let shared = if self.facts.shares_tiers { self.take_tiers() } else { None };
        self.engine = new_engine(&kind, records_events, self.facts.reports_to_router, self.facts.counts_passes);
        if let Some(mut tiers) = shared {
            tiers.leave();
            self.join_tiers(&mut tiers);
            self.give_tiers(Some(tiers));
        }
        self.pipeline = kind.as_vllm().and_then(Pipeline::new).map(Box::new);
        self.waits = Waits::default();
        self.reported_kv_events = KvEventCursor::default();
        self.pricing.forget_steps();
        self.late_kv.clear();
        if let Some(injector) = &mut self.injector {
            injector.ended_all();
        }
        self.incarnation += 1;
        self.lifecycle.end_process(now_ns, then);
    }

    /// Starts a new process.
    pub(crate) fn bring_up(&mut self, run: &str, config: &PoolConfig) -> Result<(), MakeError> {
        self.lifecycle.come_up();
        if self.incarnation == 0 {
            // The first engine already has its plugins.
            return Ok(());
        }
        let plugin_context =
            |purpose| plugin_context(run, config, self.facts.index, purpose, self.facts.seed, self.incarnation);
        let latency = new_latency(plugin_context("latency"), config)?;
        self.policy = new_policy(&plugin_context("policy"), config)?;
        self.tokens = new_token_source(&plugin_context("tokens"), config)?;
        self.totals.lose_range_use(self.pricing.range_use());
        pace(&mut self.engine, latency.as_ref())?;
        self.pricing.replace_model(latency);
        self.apply_slow_downs_to_requests();
        Ok(())
    }

    pub(crate) fn slow_down(&mut self, fault: u32, factor: f64) {
        self.pricing.slow_down(fault, factor);
        self.apply_slow_downs_to_requests();
    }

    pub(crate) fn end_slow_down(&mut self, fault: u32) {
        self.pricing.end_slow_down(fault);
        self.apply_slow_downs_to_requests();
    }

    fn apply_slow_downs_to_requests(&mut self) {
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.set_request_time_factor(self.pricing.slow_down_factor());
        }
    }

    /// The number of the step that executes or comes next, counted over all incarnations.
    pub(crate) fn step_number(&self) -> u64 {
        self.engine_stats().steps - self.engine.steps_in_flight() as u64
    }

    pub(crate) fn begin_measuring(&mut self, now_ns: u64) {
        let tiers = self.all_tier_stats(now_ns);
        self.totals.begin_measuring(now_ns, self.engine.stats(), tiers);
    }

    /// The time between the start of the measurement and `end_ns` for which the worker was provisioned.
    pub(crate) fn provisioned_until(&self, end_ns: u64) -> u64 {
        let all_ns = self.lifecycle.provisioned_until(end_ns);
        all_ns - self.lifecycle.provisioned_until(self.totals.measured_from_ns.min(end_ns))
    }

    pub(crate) fn engine_stats(&self) -> EngineStats {
        self.totals.engine_stats(self.engine.stats())
    }

    /// Share of the worker's steps within the fitted range of the latency models, over all incarnations.
    pub(crate) fn range_use(&self) -> Option<RangeUse> {
        self.totals.range_use(self.pricing.range_use())
    }
}

fn new_engine(kind: &EngineKind, records_events: bool, reports_to_router: bool, counts_passes: bool) -> AnyEngine {
    let mut engine = AnyEngine::new(kind);
    if let Some(engine) = engine.as_sglang_mut().filter(|_| counts_passes) {
        engine.count_passes_together();
    }
    engine.record_kv_events(records_events);
    if let Some(tiers) = engine.as_vllm_mut().and_then(Engine::kv_tiers_mut) {
        tiers.record_changes(reports_to_router);
    }
    engine
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact by itself")]
pub(super) struct WorkerFacts {
    pub(super) role: PoolRole,
    /// Index in the pool; the ranks of an engine are adjacent.
    pub(super) index: u32,
    pub(super) seed: u64,
    pub(super) block_size_tokens: u32,
    pub(super) reserves_between_steps: bool,
    /// Whether the ranks of the worker's engine count passes together.
    pub(super) counts_passes: bool,
    /// Whether the worker shares tiers with other workers of the pool.
    pub(super) shares_tiers: bool,
    /// Whether the cache knows the future use of blocks, which depends on other workers.
    pub(super) uses_forecast: bool,
    /// Whether routers see the worker's KV events and the contents of its tiers.
    pub(super) reports_to_router: bool,
}

impl Worker {
    /// Whether the worker has decided a step that has not ended.
    pub(crate) fn has_decided(&self) -> bool {
        self.engine.steps_in_flight() > 0
    }

    /// Whether the engine has any requests, or KV for other engines.
    pub(crate) fn has_requests(&self) -> bool {
        !self.engine.live_tags().is_empty()
    }

    /// Whether any request decodes in the next pass. False for engines other than SGLang's.
    pub(crate) fn has_decodes(&self) -> bool {
        self.engine.as_sglang().is_some_and(|engine| engine.has_decodes())
    }

    /// Begins a pass of the engine's ranks; see [`vcr_core::sglang::SglangEngine::begin_pass_of_ranks`] and
    /// [`vcr_core::Engine::throttle_prefills`].
    pub(crate) fn begin_pass(&mut self, any_decodes: bool, throttles_prefills: bool) {
        if let Some(engine) = self.engine.as_sglang_mut() {
            engine.begin_pass_of_ranks(any_decodes);
        }
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.throttle_prefills(throttles_prefills);
        }
    }

    /// Ends this many passes of the engine's ranks.
    pub(crate) fn end_passes(&mut self, passes: u32, any_prefills: bool) {
        if let Some(engine) = self.engine.as_sglang_mut() {
            engine.end_passes_of_ranks(passes, any_prefills);
        }
    }
}
