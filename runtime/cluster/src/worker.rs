//! One engine of the cluster, or one rank of an engine that has several, with its
//! latency model, its policy and its health.

mod drawn;
mod pricing;

use vcr_core::kv_event::KvEvent;
use vcr_core::latency::LatencyModel;
use vcr_core::plan::StepPlan;
use vcr_core::policy::{PolicyError, SchedulingPolicy};
use vcr_core::tokens::TokenError;
use vcr_core::{AnyEngine, EngineKind, EngineStats, KvTierStats, Seat, ServingEngine, seed};
use vcr_random::Stream;

use crate::bulk::BulkTimes;
use crate::config::{PoolConfig, RunConfig};
use crate::error::MakeError;
use crate::injector::Injector;
use crate::record::RequestRecord;
use crate::router::WorkerLoad;
use crate::tokens::ChosenTokens;

pub(crate) use drawn::Acceptance;
use drawn::DrawnTokens;
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
}

pub(crate) struct Worker {
    pub(crate) pool: u32,
    /// Index in the pool, where the ranks of an engine stand side by side.
    pub(crate) index: u32,
    pub(crate) engine: AnyEngine,
    health: Health,
    /// Since when it has had its place, if it has.
    provisioned_since_ns: Option<u64>,
    /// From when to when it had it before.
    provisioned_ns: Vec<(u64, u64)>,
    /// Tells newer engines of a pool from older ones: larger is newer.
    pub(crate) started: u64,
    /// Counts restarts; tells stale step ends from live ones.
    pub(crate) incarnation: u32,
    pub(crate) totals: WorkerTotals,
    /// Whether the oldest step in flight has started.
    pub(crate) executing: bool,
    pub(crate) step_start_ns: u64,
    pub(crate) bulk: BulkTimes,
    /// Until when it computes, and until when it then waits for other ranks.
    computes_until_ns: u64,
    waits_until_ns: u64,
    /// Rolling hash over its steps.
    pub(crate) step_digest: u64,
    latency: Box<dyn LatencyModel>,
    policy: Option<Box<dyn SchedulingPolicy>>,
    /// Makes things go wrong; it outlives the engine's incarnations.
    pub(crate) injector: Option<Box<Injector>>,
    /// Chooses output tokens, where they are not drawn.
    pub(crate) tokens: Option<Box<ChosenTokens>>,
    /// When a load from its tiers is to be looked at next, if one is.
    pub(crate) tiers_wake_ns: Option<u64>,
    /// Whether routers hear of its tiers.
    tells_tiers: bool,
    /// Until when it does nothing, if it does nothing.
    stalled_until_ns: Option<u64>,
    seed: u64,
    acceptance: Stream,
    slow_downs: Vec<(u32, f64)>,
    /// Requests, with the attempt, whose KV has come while it was in a step and is
    /// taken over when that ends.
    pub(crate) late_kv: Vec<(u64, u32)>,
    /// KV events in the pool's log that the routers have been told.
    told_kv_events: usize,
    /// The steps of the latest pricing call, of which the first `taken` are taken.
    priced: PricedSteps,
    taken: usize,
}

impl Worker {
    pub(crate) fn new(
        pool: u32,
        index: u32,
        config: &PoolConfig,
        run: &RunConfig,
        records_events: bool,
    ) -> Result<Self, MakeError> {
        let engine = index / config.data_parallel.size;
        let is_up = engine < config.engines;
        let seed = seed::derive(run.seed, &format!("engine:{}", config.name), u64::from(index));
        let seat = |purpose| seat(&run.name, config, index, purpose, seed, 0);
        let injector = config.failures.as_ref().map(|make| make(&seat("failures")));
        let injector = injector.transpose().map_err(MakeError::Failures)?;
        Ok(Self {
            pool,
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
            bulk: BulkTimes::default(),
            computes_until_ns: 0,
            waits_until_ns: 0,
            step_digest: 0,
            latency: (config.latency)(&seat("latency")).map_err(MakeError::Latency)?,
            policy: new_policy(&seat("policy"), config)?,
            injector: injector.map(|injector| Box::new(Injector::new(injector))),
            tokens: tokens(&seat("tokens"), config)?,
            tiers_wake_ns: None,
            tells_tiers: config.router.needs_kv_events(),
            stalled_until_ns: None,
            seed,
            acceptance: Stream::new(seed, "acceptance"),
            slow_downs: Vec::new(),
            late_kv: Vec::new(),
            told_kv_events: 0,
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

    /// Asks the policy, if there is one, before a step is scheduled.
    pub(crate) fn consult(&mut self, now_ns: u64) -> Result<(), PolicyError> {
        match &mut self.policy {
            Some(policy) => self.engine.consult(policy.as_mut(), now_ns),
            None => Ok(()),
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

    /// Whether each of its steps must be taken by itself, because someone may
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

    /// A request has left the engine. Gives the tokens that were chosen for it.
    pub(crate) fn forget(&mut self, tag: u64) -> Vec<u32> {
        if let Some(injector) = &mut self.injector {
            injector.ended(tag);
        }
        self.tokens.as_mut().map_or(Vec::new(), |tokens| tokens.end(tag))
    }

    /// The plan of the step that executes.
    pub(crate) fn plan(&self) -> &StepPlan {
        self.engine.oldest_plan()
    }

    /// Loses all requests and the cache; `then` says what becomes of it.
    pub(crate) fn crash(&mut self, now_ns: u64, then: Health) {
        // The rest of a step in flight is not spent.
        self.totals.busy_ns -= self.computes_until_ns.saturating_sub(now_ns);
        self.totals.waited_ns -= self.waits_until_ns.saturating_sub(self.computes_until_ns.max(now_ns));
        self.totals.crashes += 1;
        self.end_process(now_ns, then);
    }

    /// Its process is gone. What is off has given its place back.
    fn end_process(&mut self, now_ns: u64, then: Health) {
        self.executing = false;
        self.bulk = BulkTimes::default();
        add_stats(&mut self.totals.lost, self.engine.stats());
        self.totals.lost_tiers = self.tier_stats(now_ns).unwrap_or_default();
        let records_events = self.engine.kv_events().is_some();
        self.engine = new_engine(&self.engine.kind(), records_events, self.tells_tiers);
        self.tiers_wake_ns = None;
        self.told_kv_events = 0;
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
        let seat = |purpose| seat(run, config, self.index, purpose, self.seed, self.incarnation);
        self.latency = (config.latency)(&seat("latency")).map_err(MakeError::Latency)?;
        self.policy = new_policy(&seat("policy"), config)?;
        self.tokens = tokens(&seat("tokens"), config)?;
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
        output_seeds: &[u64],
        acceptance_rates: &[f64],
        records: &[RequestRecord],
    ) -> Result<(), TokenError> {
        let acceptance = Acceptance { rates: acceptance_rates, stream: &mut self.acceptance };
        match &mut self.tokens {
            None => {
                self.engine.update(&mut DrawnTokens { output_seeds, acceptance });
            }
            Some(tokens) => {
                let more = self.engine.max_extra_tokens_per_step();
                let output_tokens = |tag: u64| records[tag as usize].output_tokens;
                tokens.prepare(self.engine.oldest_plan(), more, output_tokens)?;
                self.engine.update(&mut tokens.of_step(acceptance));
            }
        }
        self.executing = false;
        Ok(())
    }

    /// Goes through the step in flight and on to the one so many `steps` later, which
    /// then is the one in flight; outputs of those before it are in the engine.
    pub(crate) fn skip(&mut self, steps: u32, output_seeds: &[u64]) {
        let acceptance = Acceptance { rates: &[], stream: &mut self.acceptance };
        let mut source = DrawnTokens { output_seeds, acceptance };
        self.engine.decode_ahead(steps, &mut source);
    }

    /// Shows the KV events before `upto` in the pool's log that were not shown yet.
    pub(crate) fn tell_kv_events(&mut self, upto: usize, tell: impl FnMut(KvEvent<'_>)) {
        if let Some(events) = self.engine.kv_events() {
            events.iter().take(upto).skip(self.told_kv_events).for_each(tell);
            self.told_kv_events = upto;
        }
    }

    /// Forgets the KV events of its pool.
    pub(crate) fn clear_kv_events(&mut self) {
        self.engine.clear_kv_events();
        self.told_kv_events = 0;
    }

    /// Engine totals over all incarnations.
    pub(crate) fn engine_stats(&self) -> EngineStats {
        let mut all = self.totals.lost;
        add_stats(&mut all, self.engine.stats());
        all
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

fn new_policy(seat: &Seat<'_>, config: &PoolConfig) -> Result<Option<Box<dyn SchedulingPolicy>>, MakeError> {
    config.policy.as_ref().map(|make| make(seat)).transpose().map_err(MakeError::Policy)
}

fn new_engine(kind: &EngineKind, records_events: bool, tells_tiers: bool) -> AnyEngine {
    let mut engine = AnyEngine::new(kind);
    engine.record_kv_events(records_events);
    if let Some(tiers) = engine.kv_tiers_mut() {
        tiers.record_changes(tells_tiers);
    }
    engine
}

/// The token source of an incarnation of an engine, if its pool has any.
fn tokens(seat: &Seat<'_>, config: &PoolConfig) -> Result<Option<Box<ChosenTokens>>, MakeError> {
    let Some(tokens) = &config.tokens else { return Ok(None) };
    let source = (tokens.source)(seat).map_err(MakeError::Tokens)?;
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

/// The seat of what serves `purpose` at an engine with this seed, after so many
/// restarts.
fn seat<'a>(run: &'a str, pool: &'a PoolConfig, index: u32, purpose: &str, seed: u64, incarnation: u32) -> Seat<'a> {
    let seed = seed::derive(seed, purpose, u64::from(incarnation));
    Seat { run, pool: &pool.name, engine: Some(index), seed }
}
