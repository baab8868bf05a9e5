//! One engine of the cluster, or one rank of an engine that has several, with its
//! latency model, its policy and its health.

mod chosen;
mod drawn;
mod injector;
mod pricing;

use vcr_core::hash::BlockHash;
use vcr_core::kv_event::KvEvent;
use vcr_core::latency::{LatencyModel, RangeUse};
use vcr_core::plan::{RemoteLoad, StepPlan};
use vcr_core::policy::{PolicyError, SchedulingPolicy};
use vcr_core::route::WorkerLoad;
use vcr_core::tokens::TokenError;
use vcr_core::{
    AnyEngine, EngineKind, EngineStats, KvTierChange, KvTierStats, KvTiers, PluginContext, RejectReason, RequestId,
    RequestSpec, Reservations, ServingEngine, TierRun, seed,
};
use vcr_random::Stream;

use crate::config::{PoolConfig, PoolRole, RunConfig};
use crate::error::MakeError;

use chosen::{ChosenTokens, made_up};
use drawn::Acceptance;
use drawn::DrawnTokens;
use injector::Injector;
use pricing::PricedSteps;

/// Whether a worker takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It is not there; an autoscaler may start it.
    Off,
    /// It was started and is not ready yet.
    Starting,
    Up,
    /// It finishes what it has, and takes no more.
    Draining,
    /// It crashed and comes up again.
    Restarting,
    /// It crashed and stays away.
    Down,
}

/// What a worker did, over all its incarnations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkerTotals {
    pub(crate) busy_ns: u64,
    /// Time in steps of other ranks, after its own part or without one.
    pub(crate) waited_ns: u64,
    pub(crate) computed_tokens: u64,
    pub(crate) prefill_tokens: u64,
    pub(crate) peak_active_blocks: u32,
    pub(crate) crashes: u32,
    lost: EngineStats,
    lost_tiers: KvTierStats,
    lost_range_use: Option<RangeUse>,
}

pub(crate) struct Worker {
    role: PoolRole,
    /// Index in the pool, where the ranks of an engine stand side by side.
    index: u32,
    engine: AnyEngine,
    health: Health,
    /// Since when it has had its place, if it has.
    provisioned_since_ns: Option<u64>,
    /// From when to when it had it before.
    provisioned_ns: Vec<(u64, u64)>,
    /// Number of the start among those of its pool: larger is newer.
    started: u64,
    /// Counts restarts; events of earlier incarnations are stale.
    incarnation: u32,
    totals: WorkerTotals,
    /// Whether the oldest step in flight has started.
    executing: bool,
    step_start_ns: u64,
    /// Until when it computes, and until when it then waits for other ranks.
    computes_until_ns: u64,
    waits_until_ns: u64,
    /// Rolling hash over its steps.
    step_digest: u64,
    latency: Box<dyn LatencyModel>,
    policy: Option<Box<dyn SchedulingPolicy>>,
    /// Injects failures; it outlives the engine's incarnations.
    injector: Option<Box<Injector>>,
    /// Chooses output tokens, where they are not drawn.
    tokens: Option<Box<ChosenTokens>>,
    /// When a load from its tiers is to be looked at next, if one is.
    tiers_wake_ns: Option<u64>,
    /// Whether routers see its KV events and what its tiers keep.
    reports_to_router: bool,
    /// Until when it is stalled, if it is.
    stalled_until_ns: Option<u64>,
    seed: u64,
    acceptance: Stream,
    slow_downs: Vec<(u32, f64)>,
    /// Requests, with the attempt, whose KV has come while it was in a step and is
    /// taken over when that ends.
    late_kv: Vec<(u64, u32)>,
    reserves_between_steps: bool,
    block_size_tokens: u32,
    /// KV events in its log that the routers have seen.
    reported_kv_events: usize,
    /// The steps of the latest pricing call, of which the first `taken` are taken.
    priced: PricedSteps,
    taken: usize,
}

impl Worker {
    pub(crate) fn new(
        role: PoolRole,
        index: u32,
        config: &PoolConfig,
        run: &RunConfig,
        records_events: bool,
    ) -> Result<Self, MakeError> {
        let engine = index / config.data_parallel.size;
        let is_up = engine < config.engines;
        let seed = seed::derive(run.seed, &format!("engine:{}", config.name), u64::from(index));
        let plugin_context = |purpose| plugin_context(&run.name, config, index, purpose, seed, 0);
        let injector = config.failures.as_ref().map(|make| make(&plugin_context("failures")));
        let injector = injector.transpose().map_err(MakeError::Failures)?;
        Ok(Self {
            role,
            index,
            engine: new_engine(
                &config.engine,
                records_events || config.router.needs_kv_events(),
                config.router.needs_kv_events(),
            ),
            health: if is_up { Health::Up } else { Health::Off },
            provisioned_since_ns: is_up.then_some(0),
            provisioned_ns: Vec::new(),
            started: u64::from(engine),
            incarnation: 0,
            totals: WorkerTotals::default(),
            executing: false,
            step_start_ns: 0,
            computes_until_ns: 0,
            waits_until_ns: 0,
            step_digest: 0,
            latency: (config.latency)(&plugin_context("latency")).map_err(MakeError::Latency)?,
            policy: new_policy(&plugin_context("policy"), config)?,
            injector: injector.map(|injector| Box::new(Injector::new(injector))),
            tokens: tokens(&plugin_context("tokens"), config)?,
            tiers_wake_ns: None,
            reports_to_router: config.router.needs_kv_events(),
            stalled_until_ns: None,
            seed,
            acceptance: Stream::new(seed, "acceptance"),
            slow_downs: Vec::new(),
            late_kv: Vec::new(),
            block_size_tokens: config.engine.block_size(),
            reserves_between_steps: config.engine.reservations() == Reservations::BetweenSteps,
            reported_kv_events: 0,
            priced: PricedSteps::default(),
            taken: 0,
        })
    }

    /// What a router sees of this worker.
    pub(crate) fn load(&self, overlap_blocks: u32) -> WorkerLoad {
        WorkerLoad {
            worker: self.index,
            running_requests: self.engine.num_running() as u32,
            waiting_requests: self.engine.num_waiting() as u32,
            max_num_seqs: self.engine.max_num_seqs(),
            active_blocks: self.engine.num_active_blocks(),
            total_blocks: self.engine.num_usable_blocks(),
            outstanding_prefill_tokens: self.engine.outstanding_prefill_tokens(),
            overlap_blocks,
        }
    }

    pub(crate) fn role(&self) -> PoolRole {
        self.role
    }

    /// Index in its pool.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn engine(&self) -> &AnyEngine {
        &self.engine
    }

    pub(crate) fn totals(&self) -> &WorkerTotals {
        &self.totals
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Larger is newer.
    pub(crate) fn start_number(&self) -> u64 {
        self.started
    }

    /// Whether the oldest step in flight has started.
    pub(crate) fn is_executing(&self) -> bool {
        self.executing
    }

    pub(crate) fn step_start_ns(&self) -> u64 {
        self.step_start_ns
    }

    pub(crate) fn computes_until_ns(&self) -> u64 {
        self.computes_until_ns
    }

    pub(crate) fn step_digest(&self) -> u64 {
        self.step_digest
    }

    pub(crate) fn injector_mut(&mut self) -> Option<&mut Injector> {
        self.injector.as_deref_mut()
    }

    /// Whether outputs are drawn, and no injector sees them.
    pub(crate) fn draws_outputs_unseen(&self) -> bool {
        self.injector.is_none() && self.tokens.is_none()
    }

    /// A request comes.
    ///
    /// # Errors
    /// When it can never run.
    pub(crate) fn submit(&mut self, spec: RequestSpec, run_seed: u64) -> Result<RequestId, RejectReason> {
        let Some(tokens) = &mut self.tokens else { return self.engine.submit(spec) };
        let (tag, max_tokens) = (spec.tag, spec.max_tokens);
        let eos_token = spec.stops.as_ref().and_then(|stops| stops.tokens.first().copied());
        let seed = seed::derive(run_seed, "tokens", spec.prompt.content_hash());
        let prompt = made_up(&spec.prompt, self.block_size_tokens);
        let id = self.engine.submit(spec)?;
        tokens.start(tag, seed, prompt, max_tokens, eos_token);
        Ok(id)
    }

    /// A request is taken away.
    pub(crate) fn abort(&mut self, tag: u64, id: RequestId) {
        self.engine.abort(id);
        if let Some(injector) = &mut self.injector {
            injector.ended(tag);
        }
        self.take_chosen(tag);
    }

    /// The tokens that were chosen for a request that leaves.
    pub(crate) fn take_chosen(&mut self, tag: u64) -> Option<Vec<u32>> {
        self.tokens.as_mut().map(|tokens| tokens.end(tag))
    }

    /// Frees KV that it holds for another engine.
    pub(crate) fn release_held_kv(&mut self, id: RequestId) {
        self.engine.release_held_kv(id);
    }

    pub(crate) fn remote_kv_arrived(&mut self, id: RequestId) {
        self.engine.remote_kv_arrived(id);
    }

    /// Takes blocks for the oldest prompt from elsewhere, if there is room.
    pub(crate) fn reserve_remote(&mut self) -> Option<RemoteLoad> {
        self.engine.reserve_remote()
    }

    pub(crate) fn block_size_tokens(&self) -> u32 {
        self.block_size_tokens
    }

    /// Whether it takes blocks for prompts from elsewhere between its steps.
    pub(crate) fn reserves_between_steps(&self) -> bool {
        self.reserves_between_steps
    }

    /// KV has come during a step, to be taken over when that ends.
    pub(crate) fn keep_late_kv(&mut self, tag: u64, attempt: u32) {
        self.late_kv.push((tag, attempt));
    }

    pub(crate) fn take_late_kv(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.late_kv)
    }

    /// Decides a step, as its policy has it.
    ///
    /// # Errors
    /// When the policy fails.
    pub(crate) fn schedule(&mut self, now_ns: u64) -> Result<&StepPlan, PolicyError> {
        if let Some(policy) = &mut self.policy {
            self.engine.apply_policy(policy.as_mut(), now_ns)?;
        }
        if let Some(tiers) = self.engine.kv_tiers_mut() {
            tiers.advance(now_ns);
        }
        Ok(self.engine.schedule())
    }

    /// Shows the requests that have left its steady decode, and how many tokens each
    /// got there.
    pub(crate) fn take_left_steady_decode(&mut self, show: impl FnMut(u64, u32)) {
        self.engine.take_untold(show);
    }

    pub(crate) fn dissolve_steady_decode(&mut self) {
        self.engine.dissolve_steady_decode();
    }

    /// Goes on with loads from its tiers, and adds the requests whose load is complete.
    pub(crate) fn advance_loads(&mut self, now_ns: u64, loaded: &mut Vec<u64>) {
        self.tiers_wake_ns = None;
        self.engine.advance_tiers(now_ns, loaded);
    }

    /// When a load from its tiers goes on, unless that is known.
    pub(crate) fn expect_load_ns(&mut self) -> Option<u64> {
        let at_ns = self.engine.kv_tiers().and_then(KvTiers::next_load_ns)?;
        if self.tiers_wake_ns.is_some_and(|earlier_ns| earlier_ns <= at_ns) {
            return None;
        }
        self.tiers_wake_ns = Some(at_ns);
        Some(at_ns)
    }

    /// Leading blocks that its tiers keep.
    pub(crate) fn find_tier_run(&mut self, now_ns: u64, blocks: &[BlockHash]) -> TierRun {
        self.engine.kv_tiers_mut().map_or_else(TierRun::default, |tiers| {
            tiers.advance(now_ns);
            tiers.find_run(blocks)
        })
    }

    /// Shows what has come to its tiers and left them since the last time.
    pub(crate) fn take_tier_changes(&mut self, now_ns: u64, show: impl FnMut(KvTierChange)) {
        if let Some(tiers) = self.engine.kv_tiers_mut() {
            tiers.advance(now_ns);
            tiers.take_changes().for_each(show);
        }
    }

    /// Whether a step may be scheduled now.
    pub(crate) fn can_step(&self) -> bool {
        self.may_work() && self.engine.may_schedule() && self.engine.has_schedulable_requests()
    }

    /// Whether a step waits to be started.
    pub(crate) fn can_start(&self) -> bool {
        self.may_work() && !self.executing && self.engine.step_in_flight()
    }

    /// Whether it is at work and not stalled.
    pub(crate) fn may_work(&self) -> bool {
        self.is_serving() && self.stalled_until_ns.is_none()
    }

    /// Whether it takes requests, and all else that can become of it.
    pub(crate) fn health(&self) -> Health {
        self.health
    }

    /// Whether it takes requests.
    pub(crate) fn is_up(&self) -> bool {
        self.health == Health::Up
    }

    /// Whether it has requests or may get some.
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.health, Health::Up | Health::Draining)
    }

    /// Whether it drains and has nothing left: no request, no KV that another
    /// engine is to fetch, no step.
    pub(crate) fn is_drained(&self) -> bool {
        self.health == Health::Draining && !self.engine.step_in_flight() && self.engine.live_tags().is_empty()
    }

    /// Whether it ever had its place.
    pub(crate) fn was_provisioned(&self) -> bool {
        self.provisioned_since_ns.is_some() || !self.provisioned_ns.is_empty()
    }

    /// How long it had its place until `end_ns`, in nanoseconds.
    pub(crate) fn provisioned_until(&self, end_ns: u64) -> u64 {
        let open = self.provisioned_since_ns.map(|since_ns| (since_ns, u64::MAX));
        let spans = self.provisioned_ns.iter().copied().chain(open);
        spans.map(|(from_ns, to_ns)| to_ns.min(end_ns) - from_ns.min(end_ns)).sum()
    }

    /// Begins to start, as the newest of its pool.
    pub(crate) fn start(&mut self, now_ns: u64, started: u64) {
        debug_assert_eq!(self.health, Health::Off);
        self.health = Health::Starting;
        self.provisioned_since_ns = Some(now_ns);
        self.started = started;
    }

    /// Takes no more requests.
    pub(crate) fn drain(&mut self) {
        debug_assert_eq!(self.health, Health::Up);
        self.health = Health::Draining;
    }

    /// Is gone, with its cache and whatever it had.
    pub(crate) fn turn_off(&mut self, now_ns: u64) {
        self.end_process(now_ns, Health::Off);
    }

    /// Whether each of its steps must be taken by itself, because a plugin may
    /// end a request, or the engine, after any of them, or wants KV events at
    /// their steps.
    pub(crate) fn takes_single_steps(&self) -> bool {
        let unclear = self.engine.kv_events().is_some() && self.engine.events_by_step().is_none();
        self.injector.is_some() || self.tokens.is_some() || unclear
    }

    /// Does nothing until then, or longer if it is stalled for longer already.
    pub(crate) fn stall(&mut self, until_ns: u64) {
        self.stalled_until_ns = Some(self.stalled_until_ns.map_or(until_ns, |other_ns| other_ns.max(until_ns)));
    }

    /// Goes on, if that is due. Gives whether it does.
    pub(crate) fn end_stall(&mut self, now_ns: u64) -> bool {
        self.stalled_until_ns.take_if(|until_ns| *until_ns <= now_ns).is_some()
    }

    /// The plan of the step that executes.
    pub(crate) fn plan(&self) -> &StepPlan {
        self.engine.oldest_plan()
    }

    /// Counts a step in flight as spent only until `now_ns`: it is cut off there, or
    /// the run is.
    pub(crate) fn cut_step(&mut self, now_ns: u64) {
        let rest_ns = self.computes_until_ns.saturating_sub(now_ns);
        let wait_ns = self.waits_until_ns.saturating_sub(self.computes_until_ns.max(now_ns));
        self.totals.busy_ns = self.totals.busy_ns.saturating_sub(rest_ns);
        self.totals.waited_ns = self.totals.waited_ns.saturating_sub(wait_ns);
        self.computes_until_ns = self.computes_until_ns.min(now_ns);
        self.waits_until_ns = self.waits_until_ns.min(now_ns);
    }

    /// Loses all requests and the cache; `then` says what becomes of it.
    pub(crate) fn crash(&mut self, now_ns: u64, then: Health) {
        // The rest of a step in flight is not spent.
        self.cut_step(now_ns);
        self.totals.crashes += 1;
        self.end_process(now_ns, then);
    }

    /// Its process is gone. What is off has given its place back.
    fn end_process(&mut self, now_ns: u64, then: Health) {
        self.executing = false;
        add_stats(&mut self.totals.lost, self.engine.stats());
        self.totals.lost_tiers = self.tier_stats(now_ns).unwrap_or_default();
        let records_events = self.engine.kv_events().is_some();
        self.engine = new_engine(&self.engine.kind(), records_events, self.reports_to_router);
        self.tiers_wake_ns = None;
        self.reported_kv_events = 0;
        self.priced.durations_ns.clear();
        self.taken = 0;
        self.stalled_until_ns = None;
        self.late_kv.clear();
        if let Some(injector) = &mut self.injector {
            injector.ended_all();
        }
        self.incarnation += 1;
        self.health = then;
        if then == Health::Off {
            self.provisioned_ns.extend(self.provisioned_since_ns.take().map(|since_ns| (since_ns, now_ns)));
        }
    }

    /// Comes up as a new process.
    pub(crate) fn bring_up(&mut self, run: &str, config: &PoolConfig) -> Result<(), MakeError> {
        self.health = Health::Up;
        if self.incarnation == 0 {
            // What stands around its first engine was made with it.
            return Ok(());
        }
        let plugin_context = |purpose| plugin_context(run, config, self.index, purpose, self.seed, self.incarnation);
        let latency = (config.latency)(&plugin_context("latency")).map_err(MakeError::Latency)?;
        self.policy = new_policy(&plugin_context("policy"), config)?;
        self.tokens = tokens(&plugin_context("tokens"), config)?;
        self.totals.lost_range_use = self.range_use();
        self.latency = latency;
        Ok(())
    }

    pub(crate) fn slow_down(&mut self, fault: u32, factor: f64) {
        self.slow_downs.push((fault, factor));
    }

    pub(crate) fn end_slow_down(&mut self, fault: u32) {
        self.slow_downs.retain(|(other, _)| *other != fault);
    }

    /// Ends the step that was executing; outputs are in the engine.
    ///
    /// # Errors
    /// When the token source fails.
    pub(crate) fn update(
        &mut self,
        now_ns: u64,
        output_seeds: &[u64],
        acceptance_rates: &[f64],
        num_output_tokens: impl Fn(u64) -> u32,
    ) -> Result<(), TokenError> {
        self.engine.offload_prompts(now_ns);
        let acceptance = Acceptance { rates: acceptance_rates, stream: &mut self.acceptance };
        match &mut self.tokens {
            None => {
                self.engine.update(&mut DrawnTokens { output_seeds, acceptance });
            }
            Some(tokens) => {
                let more = self.engine.max_extra_tokens_per_step();
                tokens.prepare(self.engine.oldest_plan(), more, num_output_tokens)?;
                self.engine.update(&mut tokens.of_step(acceptance));
            }
        }
        self.executing = false;
        Ok(())
    }

    /// Goes through the step in flight and on to the one `steps` later, which
    /// then is the one in flight; outputs of those before it are in the engine.
    pub(crate) fn skip(&mut self, steps: u32, output_seeds: &[u64]) {
        let acceptance = Acceptance { rates: &[], stream: &mut self.acceptance };
        let mut source = DrawnTokens { output_seeds, acceptance };
        self.engine.decode_ahead(steps, &mut source);
    }

    /// Shows the KV events before `upto` in the pool's log that were not shown yet.
    pub(crate) fn show_kv_events(&mut self, upto: usize, show: impl FnMut(KvEvent<'_>)) {
        if let Some(events) = self.engine.kv_events() {
            events.iter().take(upto).skip(self.reported_kv_events).for_each(show);
            self.reported_kv_events = upto;
        }
    }

    pub(crate) fn num_kv_events(&self) -> usize {
        self.engine.kv_events().map_or(0, |events| events.len())
    }

    /// How many there were after a step of the latest fast-forward.
    pub(crate) fn num_kv_events_by_step(&self, step: usize) -> Option<usize> {
        self.engine.events_by_step().and_then(|upto| upto.get(step)).map(|&upto| upto as usize)
    }

    /// Forgets the KV events of its pool.
    pub(crate) fn clear_kv_events(&mut self) {
        self.engine.clear_kv_events();
        self.reported_kv_events = 0;
    }

    /// The observer needs its KV events no longer; its router may.
    pub(crate) fn stop_recording(&mut self) {
        if !self.reports_to_router {
            self.engine.record_kv_events(false);
            self.reported_kv_events = 0;
        }
    }

    /// The number of the step that executes, or is next, over all incarnations.
    pub(crate) fn step_number(&self) -> u64 {
        self.engine_stats().steps - self.engine.steps_in_flight() as u64
    }

    /// Engine totals over all incarnations.
    pub(crate) fn engine_stats(&self) -> EngineStats {
        let mut all = self.totals.lost;
        add_stats(&mut all, self.engine.stats());
        all
    }

    /// How much of its steps is like what their latency models were fitted on, over all
    /// incarnations.
    pub(crate) fn range_use(&self) -> Option<RangeUse> {
        let own = self.latency.range_use();
        self.totals.lost_range_use.into_iter().chain(own).reduce(RangeUse::plus)
    }

    /// Totals of its tiers over all incarnations until `now_ns`, if it has any.
    pub(crate) fn tier_stats(&mut self, now_ns: u64) -> Option<KvTierStats> {
        let tiers = self.engine.kv_tiers_mut()?;
        tiers.advance(now_ns);
        let mut all = self.totals.lost_tiers;
        all.add(&tiers.stats());
        Some(all)
    }
}

fn new_policy(
    plugin_context: &PluginContext<'_>,
    config: &PoolConfig,
) -> Result<Option<Box<dyn SchedulingPolicy>>, MakeError> {
    config.policy.as_ref().map(|make| make(plugin_context)).transpose().map_err(MakeError::Policy)
}

fn new_engine(kind: &EngineKind, records_events: bool, reports_to_router: bool) -> AnyEngine {
    let mut engine = AnyEngine::new(kind);
    engine.record_kv_events(records_events);
    if let Some(tiers) = engine.kv_tiers_mut() {
        tiers.record_changes(reports_to_router);
    }
    engine
}

/// The token source of an incarnation of an engine, if its pool has any.
fn tokens(plugin_context: &PluginContext<'_>, config: &PoolConfig) -> Result<Option<Box<ChosenTokens>>, MakeError> {
    let Some(tokens) = &config.tokens else { return Ok(None) };
    let source = (tokens.source)(plugin_context).map_err(MakeError::Tokens)?;
    Ok(Some(Box::new(ChosenTokens::new(source))))
}

fn add_stats(into: &mut EngineStats, from: &EngineStats) {
    into.steps += from.steps;
    into.preemptions += from.preemptions;
    let (drafts, more) = (&mut into.spec_decode, &from.spec_decode);
    drafts.num_drafts += more.num_drafts;
    drafts.num_draft_tokens += more.num_draft_tokens;
    drafts.num_accepted_tokens += more.num_accepted_tokens;
    for (into, from) in [(&mut into.prefix, &from.prefix), (&mut into.preempted_prefix, &from.preempted_prefix)] {
        into.requests += from.requests;
        into.queried_tokens += from.queried_tokens;
        into.hit_tokens += from.hit_tokens;
    }
}

/// The context of a plugin that serves `purpose` at an engine with this seed.
fn plugin_context<'a>(
    run: &'a str,
    pool: &'a PoolConfig,
    index: u32,
    purpose: &str,
    seed: u64,
    incarnation: u32,
) -> PluginContext<'a> {
    let seed = seed::derive(seed, purpose, u64::from(incarnation));
    PluginContext { run, pool: &pool.name, engine: Some(index), seed }
}
