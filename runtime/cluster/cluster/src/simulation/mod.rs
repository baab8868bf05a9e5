//! The main loop over instants: it handles events one after another, then starts steps on idle engines.
//!
//! At each instant, all due events are handled first. Then every worker whose situation changed may start a step,
//! in order of worker. Nothing here reads a clock or iterates in an order that could vary. Time is virtual unless
//! the caller has a clock (`real_time.rs`). A [`Simulation`] owns the parts of a run; the files here define how
//! events affect them.

mod abandoned;
mod arrivals;
mod clients;
mod clock;
mod cluster;
mod faults;
mod kv_handoff;
mod lifecycle;
mod observation;
mod real_time;
mod routing;
mod scaling;
mod steps;
mod watchdog;

use std::sync::Arc;

use crate::config::{KvEviction, Overheads, RunConfig, WorkloadConfig};
use crate::disaggregation::KvHandoffs;
use crate::error::{MAX_STEPS_AT_ONE_INSTANT, SimError};
use crate::event::{Event, EventQueue};
use crate::fleet::{Fleet, Worker};
use crate::in_flight::InFlight;
use crate::ledger::Ledger;
use crate::ledger::record::Outcome;
use crate::observe::Observer;
use crate::report::{Report, RunEnd};
use crate::routing::Routing;
use crate::traffic::{GrammarCompilation, Start, Traffic};
use clock::Clock;
pub use clock::RunClock;
pub use cluster::{Cluster, ClusterError, ClusterOutput, ClusterRequest, EngineState, RequestOrigin, ServedRequest};
use observation::{Observation, sees_steps};
pub use real_time::simulate_in_real_time;
use steps::StepBuffers;
use vcr_core::{Compilation, Forecast, RejectReason};

/// Number of steps between two calls of [`Observer::progress`].
const STEPS_PER_PROGRESS: u64 = 2048;
/// Number of instants between two questions to the observer whether to stop the run.
const INSTANTS_PER_OBSERVER_CHECK: u64 = 64;
/// Number of steps and arrivals between two calls of [`Observer::check_limits`].
const WORK_PER_LIMIT_CHECK: u64 = 16_384;

pub(crate) struct Simulation<'c, O: Observer> {
    facts: RunFacts,
    clock: Clock<'c>,
    events: EventQueue,
    traffic: Traffic,
    in_flight: InFlight,
    ledger: Ledger,
    routing: Routing,
    fleet: Fleet,
    handoffs: KvHandoffs,
    observation: Observation<O>,
    buffers: StepBuffers,
}

/// Runs `config` to its end, on the caller's thread.
///
/// # Errors
/// See [`SimError`]; a run that only lost requests to faults is not an error.
pub fn simulate(config: RunConfig, observer: &mut dyn Observer) -> Result<Report, SimError> {
    config.check().map_err(SimError::Config)?;
    let mut simulation = Simulation::new(config, observer)?;
    simulation.run()?;
    simulation.into_report()
}

/// The outcome of the loop over instants.
enum Passed {
    /// All events have been handled.
    All,
    /// The next event is after the run's maximum time, which this variant contains.
    Limit(u64),
    /// The caller stopped the loop.
    Stopped,
}

impl<O: Observer> Simulation<'_, O> {
    fn new(config: RunConfig, observer: O) -> Result<Self, SimError> {
        let mut fleet = Fleet::new(&config, sees_steps(&observer, &config))?;
        let routing = Routing::new(&config, &fleet)?;
        let traffic = Traffic::new(&config, config.topology.pools()[0].engine.hashed_blocks(), false);
        let requests = config.memory_estimate().requests;
        let forecast = forecast(&config).map(Arc::new);
        if let Some(forecast) = &forecast {
            fleet.workers_mut().iter_mut().for_each(|worker| worker.use_forecast(forecast));
        }
        let facts = RunFacts { uses_forecast: forecast.is_some(), ..RunFacts::of(config) };
        let mut simulation = Self::of(facts, observer, fleet, routing, traffic);
        simulation.ledger.reserve(requests);
        simulation.begin();
        Ok(simulation)
    }

    /// A simulation of these engines before its first event.
    fn of(facts: RunFacts, observer: O, mut fleet: Fleet, routing: Routing, traffic: Traffic) -> Self {
        let config = &facts.config;
        if observer.wants_step_digests() {
            fleet.workers_mut().iter_mut().for_each(Worker::keep_step_digests);
        }
        let workers = fleet.workers().len();
        let mut ledger = Ledger::new(config.workloads.len(), workers, config.samples_steps, facts.overheads);
        if config.keeps_requests {
            ledger.keep_requests();
        }
        if config.packs_records() {
            ledger.pack_records();
        }
        if observer.wants_series() {
            ledger.keep_gap_course();
        }
        Self {
            clock: Clock::default(),
            events: EventQueue::new(config.topology.pools().len()),
            traffic,
            in_flight: InFlight::default(),
            ledger,
            routing,
            fleet,
            handoffs: KvHandoffs::new(&config.topology),
            observation: Observation::new(observer, config, workers),
            buffers: StepBuffers::default(),
            facts,
        }
    }

    fn begin(&mut self) {
        self.begin_engines();
        self.traffic.begin(&mut self.events);
    }

    /// Schedules the first events that concern engines: faults and autoscaler ticks.
    fn begin_engines(&mut self) {
        for (index, fault) in (0..).zip(&self.facts.config.faults) {
            self.events.push(fault.at_ns, Event::Fault { index });
        }
        for pool in self.fleet.pools() {
            if let Some(interval_ns) = pool.scale_interval_ns() {
                self.events.push(interval_ns, Event::ScaleTick { pool: pool.role() });
            }
        }
    }

    fn run(&mut self) -> Result<(), SimError> {
        let mut next_progress = STEPS_PER_PROGRESS;
        let mut next_limit_check = WORK_PER_LIMIT_CHECK;
        let mut instants = 0_u64;
        let begin = |run: &mut Self, at_ns| {
            if instants.is_multiple_of(INSTANTS_PER_OBSERVER_CHECK) && run.observation.stops(&mut run.fleet) {
                return None;
            }
            instants += 1;
            let now_ns = run.reach(at_ns)?;
            if now_ns > run.clock.now_ns() {
                run.watch_for_overload();
            }
            Some(now_ns)
        };
        let end = |run: &mut Self| {
            let steps = run.ledger.steps();
            if steps >= next_progress {
                next_progress = steps + STEPS_PER_PROGRESS;
                let progress = run.progress();
                run.observation.progress(&progress);
            }
            let work = steps + run.ledger.arrived();
            if work >= next_limit_check {
                next_limit_check = work + WORK_PER_LIMIT_CHECK;
                run.check_limits()?;
            }
            Ok(())
        };
        match self.go_through(None, begin, end)? {
            Passed::Stopped => Ok(()),
            Passed::Limit(max_ns) => {
                self.note_router_queue(max_ns);
                Ok(())
            }
            Passed::All => self.check_that_all_ended(),
        }
    }

    /// Handles all instants until the end of the run, or until `until_ns`, the earliest instant at which a request
    /// may arrive from outside. The events of that last instant are handled, but its steps are not decided. `begin`
    /// gets the planned time of an instant and returns its actual time, or None to stop before it. `end` is called
    /// after each instant.
    fn go_through(
        &mut self,
        until_ns: Option<u64>,
        mut begin: impl FnMut(&mut Self, u64) -> Option<u64>,
        mut end: impl FnMut(&mut Self) -> Result<(), SimError>,
    ) -> Result<Passed, SimError> {
        let max_ns = self.facts.config.max_time_ns.unwrap_or(u64::MAX);
        while let Some(at_ns) =
            self.events.next_time().filter(|at_ns| until_ns.is_none_or(|until_ns| *at_ns <= until_ns))
        {
            if at_ns > max_ns {
                return Ok(Passed::Limit(max_ns));
            }
            let Some(now_ns) = begin(self, at_ns) else { return Ok(Passed::Stopped) };
            self.begin_instant(at_ns, now_ns)?;
            self.handle_due(at_ns)?;
            if until_ns == Some(at_ns) {
                self.clock.open();
                break;
            }
            self.end_instant()?;
            if self.traffic.is_warming() && self.ledger.ended() == self.ledger.arrived() && !self.events.has_requests()
            {
                self.traffic.end_warm_up(self.clock.now_ns(), &mut self.events);
                self.begin_measuring();
            }
            if until_ns.is_none() && self.facts.scales && self.only_ticks_are_left() {
                break;
            }
            if until_ns.is_none() && self.events.has_only_expiries() && self.ledger.ended() == self.ledger.arrived() {
                break;
            }
            end(self)?;
        }
        Ok(Passed::All)
    }

    /// Advances time to `now_ns`, or stays there for events that have become due in the meantime. `at_ns` is the
    /// planned time.
    fn begin_instant(&mut self, at_ns: u64, now_ns: u64) -> Result<(), SimError> {
        if self.clock.steps_at(now_ns, self.ledger.steps()) > MAX_STEPS_AT_ONE_INSTANT {
            return Err(self.time_stands_still());
        }
        self.observation.sample_series(at_ns, &self.fleet);
        self.observation.show_telemetry(at_ns, &self.ledger, &self.fleet, &self.routing);
        self.note_router_queue(now_ns);
        self.clock.advance_to(now_ns);
        Ok(())
    }

    /// Handles the events planned at `at_ns`, and others that the caller's clock has passed.
    fn handle_due(&mut self, at_ns: u64) -> Result<(), SimError> {
        let mut planned = Some(at_ns);
        while let Some(at_ns) = planned {
            self.clock.handle_due_at(at_ns);
            while let Some(event) = self.events.pop_at(at_ns) {
                self.handle(event)?;
            }
            planned = self.clock.overdue_ns(&self.events);
        }
        self.clock.handle_due_at(self.clock.now_ns());
        Ok(())
    }

    /// Handles all events until `until_ns`, the earliest instant at which a request may arrive from outside. That
    /// instant stays open, because requests may also arrive at it. Without `until_ns`, runs to the end.
    fn advance(&mut self, until_ns: Option<u64>) -> Result<(), SimError> {
        self.clock.expect_outside(until_ns.unwrap_or(u64::MAX));
        if self.clock.is_open() {
            self.handle_due(self.clock.now_ns())?;
            if until_ns == Some(self.clock.now_ns()) {
                return Ok(());
            }
            self.clock.close();
            self.end_instant()?;
        }
        self.go_through(until_ns, |_, at_ns| Some(at_ns), |_| Ok(())).map(drop)
    }

    /// Opens the instant `at_ns` for a request from outside. Time must have been advanced to it.
    fn open_instant(&mut self, at_ns: u64) -> Result<(), SimError> {
        if !self.clock.is_open() {
            self.begin_instant(at_ns, at_ns)?;
            self.clock.open();
        }
        assert_eq!(self.clock.now_ns(), at_ns, "a request comes at the present instant");
        Ok(())
    }

    /// Handles the consequences of this instant's events, up to the steps that start.
    fn end_instant(&mut self) -> Result<(), SimError> {
        self.drive_kv_handoffs()?;
        self.release_queued();
        if self.facts.scales {
            self.turn_off_drained();
        }
        self.start_steps()?;
        while self.handoffs.has_due() {
            self.drive_kv_handoffs()?;
            self.start_steps()?;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), SimError> {
        match event {
            Event::StepEnd { worker, incarnation } => {
                if self.fleet.worker(worker).incarnation() == incarnation {
                    self.end_step(worker)?;
                }
            }
            Event::TokenDue { worker, incarnation } => {
                if self.fleet.worker(worker).incarnation() == incarnation {
                    self.fleet.note_change(worker);
                }
            }
            Event::Played { tag } => self.play(tag),
            Event::Answered { tag, outcome } => self.answer(tag, outcome),
            Event::LinkProgress { link, version } => {
                self.handoffs.progress(link, version, self.clock.now_ns(), &mut self.events);
            }
            Event::TransferDelivered { tag, attempt } => self.deliver_transfer(tag, attempt),
            Event::TierProgress { worker, incarnation } => self.progress_loads(worker, incarnation),
            Event::GrammarCompiled { tag, worker, incarnation, succeeds } => {
                self.end_compilation(tag, worker, incarnation, succeeds);
            }
            Event::Fault { index } => self.apply_planned_fault(index)?,
            Event::WorkerUp { worker, incarnation } => self.bring_up(worker, incarnation)?,
            Event::SlowDownEnd { worker, fault } => self.end_slow_down(worker, fault),
            Event::StallEnd { worker, incarnation } => self.end_stall(worker, incarnation),
            Event::RouterWakes { pool } => self.routing.wake(pool),
            Event::HeldKvExpires { worker, incarnation, id } => self.expire_held_kv(worker, incarnation, id),
            Event::GiveUp { tag } => self.give_up(tag),
            Event::UserComes { workload } => {
                self.traffic.expect_next_user(workload, &mut self.events);
                self.start_session(workload)?;
            }
            Event::NextAttempt { after } => self.try_again(after)?,
            Event::Arrival { workload } => self.start_session(workload)?,
            Event::NextTurn { slot, .. } => self.continue_session(slot)?,
            Event::Ready { workload, node } => self.start_node(workload, node)?,
            Event::Submitted { tag } => self.reach_queue(tag)?,
            Event::ScaleTick { pool } => self.scale_tick(pool)?,
        }
        Ok(())
    }

    fn into_report(mut self) -> Result<Report, SimError> {
        self.dissolve_all_steady_decode();
        if self.traffic.is_warming() {
            // The run ended during the warm-up, so it measured nothing.
            self.traffic.end_warm_up(self.clock.now_ns(), &mut self.events);
            self.begin_measuring();
        }
        let gap_course = self.ledger.take_gap_course();
        let mut report = crate::report::build(RunEnd {
            config: &self.facts.config,
            stopped_at_ns: self.observation.is_stopped().then_some(self.clock.now_ns()),
            expects_requests: self.events.has_requests(),
            workload_names: self.traffic.names(),
            ledger: self.ledger,
            fleet: self.fleet,
            handoffs: &self.handoffs,
            measured_from_ns: self.traffic.measured_from_ns(),
            profile: self.traffic.profile_counts(),
        })?;
        (report.series, report.overload) = self.observation.into_report();
        report.gap_course = gap_course;
        Ok(report)
    }

    fn dissolve_all_steady_decode(&mut self) {
        for worker in 0..self.fleet.workers().len() as u32 {
            self.dissolve_steady_decode(worker);
        }
    }
}

pub(super) struct RunFacts {
    pub(super) config: RunConfig,
    pub(super) overheads: Overheads,
    /// Whether the end of any step can cause a request to arrive at any engine: because another request ends,
    /// because the router had queued the request, or because of an injected crash.
    pub(super) is_chained: bool,
    /// Whether all workers are up during the whole run.
    pub(super) is_steady: bool,
    /// Whether any pool has an autoscaler.
    pub(super) scales: bool,
    /// Whether external clients decide which requests follow.
    pub(super) is_served: bool,
    /// Whether caches know future prompts.
    pub(super) uses_forecast: bool,
}

impl RunFacts {
    /// Facts about a run with its own clients and without forecasts.
    pub(super) fn of(config: RunConfig) -> Self {
        let pools = config.topology.pools();
        Self {
            overheads: config.topology.overheads(),
            is_chained: config.workloads.iter().any(WorkloadConfig::is_chained)
                || pools.iter().any(|pool| pool.failures.is_some() || pool.router.has_queue()),
            is_steady: config.faults.is_empty()
                && pools.iter().all(|pool| pool.failures.is_none() && pool.scaling.is_none()),
            scales: pools.iter().any(|pool| pool.scaling.is_some()),
            is_served: false,
            uses_forecast: false,
            config,
        }
    }
}

/// The blocks of all requests in order of arrival; None if no pool needs them.
pub(super) fn forecast(run: &RunConfig) -> Option<Forecast> {
    let pools = run.topology.pools();
    if pools.iter().all(|pool| pool.kv_eviction == KvEviction::Lru) {
        return None;
    }
    let mut traffic = Traffic::new(run, pools[0].engine.hashed_blocks(), false);
    let mut events = EventQueue::new(pools.len());
    traffic.begin(&mut events);
    let mut prompts = Vec::new();
    let last_ns = run.max_time_ns.unwrap_or(u64::MAX);
    // All sessions start at times that do not depend on other sessions.
    while let Some((at_ns, workload)) = events.pop_arrival(last_ns) {
        if let Start::Turn(turn) = traffic.start_session(workload, at_ns, &mut events) {
            prompts.push(turn.prompt.block_hashes().to_vec());
        }
    }
    Some(Forecast::new(&prompts))
}

impl<O: Observer> Simulation<'_, O> {
    /// Records that requests are scheduled for the first time, or never will be.
    pub(super) fn mark_scheduled(&mut self, tags: &[u64]) {
        for &tag in tags.iter().filter(|_| self.facts.uses_forecast) {
            self.fleet.workers_mut().iter_mut().for_each(|worker: &mut Worker| worker.mark_scheduled(tag));
        }
    }
}

impl<O: Observer> Simulation<'_, O> {
    fn compilation_of(&self, tag: u64) -> Option<GrammarCompilation> {
        let workload = self.ledger.record(tag).workload;
        let structured = self.facts.config.workloads[workload as usize].structured.as_ref()?;
        structured.draw(self.traffic.output_seeds()[tag as usize])
    }

    /// Starts the compilation of a request's grammar when the request reaches a worker.
    fn begin_compilation(&mut self, tag: u64, worker: u32, compilation: GrammarCompilation) {
        let incarnation = self.fleet.worker(worker).incarnation();
        let compiled = Event::GrammarCompiled { tag, worker, incarnation, succeeds: compilation.succeeds };
        self.events.push(self.clock.now_ns().saturating_add(compilation.duration_ns), compiled);
    }

    /// Handles the end of a grammar's compilation, unless the worker was restarted in the meantime.
    fn end_compilation(&mut self, tag: u64, worker: u32, incarnation: u32, succeeds: bool) {
        if self.fleet.worker(worker).incarnation() != incarnation {
            return;
        }
        let compilation = if succeeds { Compilation::Succeeded } else { Compilation::Failed };
        if self.fleet.worker_mut(worker).end_compilation(tag, compilation) {
            self.observation.compiled(worker, tag, compilation);
            self.fleet.note_change(worker);
        }
    }

    /// Ends requests whose grammars failed, if their worker has nothing to compute.
    fn end_without_grammars(&mut self, index: u32) {
        for tag in self.fleet.worker_mut(index).end_without_grammars() {
            self.observation.failed(index, tag);
            self.reject_without_grammar(tag);
        }
    }

    /// Ends a request whose engine could not compile its grammar.
    fn reject_without_grammar(&mut self, tag: u64) {
        self.end(tag, Outcome::Rejected(RejectReason::GrammarFailed));
    }
}
