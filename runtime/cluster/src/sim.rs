//! The virtual-time loop: one event after another, then steps for idle engines.
//!
//! Owns all state of a run. At each instant every due event is handled first;
//! then every worker whose situation changed may start a step, in order of
//! worker. Nothing here reads a clock or iterates in an order that could vary.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use vcr_core::plan::{RemoteLoad, RequestOutput, ScheduledKind, TierLoad};
use vcr_core::{Prompt, RequestId, Seat, ServingEngine, seed};

use crate::config::{LinkSharing, PoolConfig, RunConfig, Topology, WorkloadConfig, WorkloadSource};
use crate::error::{MAX_STEPS_AT_ONE_INSTANT, MakeError, SimError, latency_error, make_error, policy_error};
use crate::event::{Event, EventQueue};
use crate::kv_router::{Candidate, KvRouter, PoolFacts, PoolPart};
use crate::link::Link;
use crate::metrics::{Counter, MetricSet, Trend};
use crate::observe::{Observer, Progress, StepRecord};
use crate::record::{Outcome, RequestRecord};
use crate::report::Report;
use crate::router::{Router, RouterConfig, WorkerLoad};
use crate::scaling::{Rescaled, Scaler, Tally, scale_error};
use crate::worker::Worker;
use crate::workload::{FollowUp, Workload};

/// Steps between two calls of [`Observer::progress`].
const STEPS_PER_PROGRESS: u64 = 2048;

/// Where a live request stands in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No worker of pool `pool` is up; waits for one.
    Parked { pool: u32 },
    /// On a worker that computes its prompt (and, if aggregated, its output).
    First { worker: u32, id: RequestId },
    /// On a decode worker.
    Decode { worker: u32, id: RequestId },
    /// Nowhere: it is answered as recorded. The next output is of this number.
    Played { row: u32, next_output: u32 },
}

/// What is known of a request until it ends.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) stage: Stage,
    /// Prefill worker that holds the KV to be transferred.
    pub(crate) source: Option<(u32, RequestId)>,
    /// Kept where the request may be submitted more than once.
    pub(crate) prompt: Option<Prompt>,
    pub(crate) priority: i32,
    pub(crate) strict_priority: u32,
    pub(crate) follow_up: FollowUp,
    /// Whether the decode engine computes its prompt, too.
    pub(crate) stays_with_decode: bool,
    /// Tells transfers of this attempt from those of earlier ones.
    pub(crate) attempt: u32,
    /// The worker of each pool that it was last routed to, by index in the pool.
    pub(crate) routed: [Option<u32>; 2],
}

pub(crate) struct Pool {
    pub(crate) config: PoolConfig,
    /// Index of its first worker.
    pub(crate) first_worker: u32,
    pub(crate) router: PoolRouter,
    /// When the KV routers are to look at their queues again, if they are.
    pub(crate) hears_at_ns: Option<u64>,
    /// Whether something happened that may let a request out of the KV routers.
    pub(crate) queue_moves: bool,
    /// Requests that wait for a worker to come up, oldest first.
    pub(crate) parked: Vec<u64>,
    /// Decides how many workers there are, if that changes.
    pub(crate) scaler: Option<Scaler>,
}

impl Pool {
    /// The indices of its workers.
    pub(crate) fn workers(&self) -> Range<usize> {
        let first = self.first_worker as usize;
        first..first + self.config.most_engines() as usize
    }
}

/// What chooses among the workers of a pool.
pub(crate) enum PoolRouter {
    /// Asked once for each request, with what the engines report.
    Asked(Box<dyn Router>),
    /// Sees the requests' ways and the engines' KV events.
    Kv(Box<KvRouter>),
}

/// A run under way.
pub(crate) struct Simulation<'o> {
    pub(crate) config: RunConfig,
    pub(crate) now_ns: u64,
    pub(crate) events: EventQueue,
    pub(crate) pools: Vec<Pool>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) links: Vec<Link>,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) records: Vec<RequestRecord>,
    pub(crate) live: Vec<Option<Box<Live>>>,
    pub(crate) output_seeds: Vec<u64>,
    /// Sessions between two turns, by slot of [`Event::NextTurn`].
    pub(crate) thinking: Vec<Option<(u32, FollowUp, u64)>>,
    pub(crate) thinking_vacant: Vec<u32>,
    /// Chosen outputs of requests whose session goes on.
    pub(crate) answers: BTreeMap<u64, Vec<u32>>,
    pub(crate) metrics: Vec<MetricSet>,
    pub(crate) step_metrics: MetricSet,
    /// Whether the end of any step can bring about the arrival of a request
    /// anywhere: because another ends, because the router kept it back, or because
    /// of an injected crash.
    chained: bool,
    /// Whether any pool has an autoscaler.
    scales: bool,
    pub(crate) tally: Tally,
    pub(crate) rescaled: Vec<Rescaled>,
    /// Since when nothing but ticks has been to come, if so.
    pub(crate) only_ticks_since_ns: Option<u64>,
    pub(crate) ended: u64,
    pub(crate) steps: u64,
    /// Workers whose situation changed at this instant.
    pub(crate) dirty: Vec<u32>,
    pub(crate) loads: Vec<WorkerLoad>,
    pub(crate) candidates: Vec<Candidate>,
    outputs: Vec<RequestOutput>,
    remote_loads: Vec<RemoteLoad>,
    tier_loads: Vec<TierLoad>,
    /// Scratch: requests whose load from the tiers is complete.
    pub(crate) loaded: Vec<u64>,
    /// Scratch: requests of each workload that decode in a stretch.
    pub(crate) decoding: Vec<u64>,
    pub(crate) wants_steps: bool,
    pub(crate) observer: &'o mut dyn Observer,
}

/// Runs `config` to its end.
///
/// # Errors
/// See [`SimError`]; a run that only lost requests to faults is not an error.
pub fn simulate(config: RunConfig, observer: &mut dyn Observer) -> Result<Report, SimError> {
    config.check().map_err(SimError::Config)?;
    let mut simulation = Simulation::new(config, observer)?;
    simulation.run()?;
    simulation.into_report()
}

impl<'o> Simulation<'o> {
    fn new(config: RunConfig, observer: &'o mut dyn Observer) -> Result<Self, SimError> {
        let mut pools = Vec::new();
        let mut workers = Vec::new();
        for (pool, pool_config) in config.topology.pools().into_iter().enumerate() {
            let first_worker = workers.len() as u32;
            for index in 0..pool_config.most_engines() {
                let worker = Worker::new(pool as u32, index, pool_config, &config, observer.wants_steps())
                    .map_err(|error| make_error(pool_config, index, 0, error))?;
                workers.push(worker);
            }
            let router_seed = seed::derive(config.seed, &format!("router:{}", pool_config.name), 0);
            let seat = Seat { run: &config.name, pool: &pool_config.name, engine: None, seed: router_seed };
            let part = match (config.topology.pools().len(), pool) {
                (1, _) => PoolPart::Whole,
                (_, 0) => PoolPart::Prefill,
                _ => PoolPart::Decode,
            };
            let router = pool_router(pool_config, part, &seat)?;
            let scaler = pool_scaler(pool_config, &config)?;
            pools.push(Pool {
                first_worker,
                router,
                hears_at_ns: None,
                queue_moves: false,
                parked: Vec::new(),
                scaler,
                config: pool_config.clone(),
            });
        }
        let block_size = pools[0].config.engine.block_size();
        let workloads: Vec<Workload> =
            (0..config.workloads.len()).map(|index| workload(&config, index, block_size)).collect();
        let mut simulation = Self {
            now_ns: 0,
            events: EventQueue::new(pools.len()),
            links: links(&config.topology),
            metrics: vec![MetricSet::default(); workloads.len()],
            step_metrics: MetricSet::default(),
            pools,
            workers,
            workloads,
            records: Vec::new(),
            live: Vec::new(),
            output_seeds: Vec::new(),
            thinking: Vec::new(),
            thinking_vacant: Vec::new(),
            answers: BTreeMap::new(),
            chained: config.workloads.iter().any(WorkloadConfig::is_chained)
                || config.topology.pools().iter().any(|pool| pool.failures.is_some() || pool.router.has_queue()),
            scales: config.topology.pools().iter().any(|pool| pool.scaling.is_some()),
            tally: Tally::default(),
            rescaled: Vec::new(),
            only_ticks_since_ns: None,
            ended: 0,
            steps: 0,
            dirty: Vec::new(),
            loads: Vec::new(),
            candidates: Vec::new(),
            outputs: Vec::new(),
            remote_loads: Vec::new(),
            tier_loads: Vec::new(),
            loaded: Vec::new(),
            decoding: Vec::new(),
            wants_steps: observer.wants_steps(),
            observer,
            config,
        };
        simulation.schedule_beginnings();
        Ok(simulation)
    }

    fn schedule_beginnings(&mut self) {
        for (index, fault) in self.config.faults.iter().enumerate() {
            self.events.push(fault.at_ns, Event::Fault { index: index as u32 });
        }
        for (index, pool) in self.pools.iter().enumerate() {
            if let Some(scaler) = &pool.scaler {
                self.events.push(scaler.interval_ns(), Event::ScaleTick { pool: index as u32 });
            }
        }
        for (index, workload) in self.workloads.iter_mut().enumerate() {
            let arrival = Event::Arrival { workload: index as u32 };
            match workload.closed_loop() {
                Some(concurrency) => {
                    for _ in 0..concurrency {
                        self.events.push(workload.start_ns(), arrival);
                    }
                }
                None => {
                    if let Some(at_ns) = workload.next_start_ns() {
                        let ready = |node| Event::Ready { workload: index as u32, node };
                        self.events.push(at_ns, workload.next_node().map_or(arrival, ready));
                    }
                }
            }
        }
    }

    fn run(&mut self) -> Result<(), SimError> {
        let mut next_progress = STEPS_PER_PROGRESS;
        let mut steps_before_instant = 0;
        while let Some(at_ns) = self.events.next_time() {
            if self.config.max_time_ns.is_some_and(|max| at_ns > max) {
                return Ok(());
            }
            assert!(at_ns >= self.now_ns, "virtual time ran backwards: {} -> {at_ns}", self.now_ns);
            if at_ns > self.now_ns {
                steps_before_instant = self.steps;
            } else if self.steps - steps_before_instant > MAX_STEPS_AT_ONE_INSTANT {
                return Err(SimError::TimeStandsStill { at_ms: self.now_ns as f64 / 1e6 });
            }
            self.now_ns = at_ns;
            while let Some(event) = self.events.pop_at(at_ns) {
                self.handle(event)?;
            }
            self.release_queued();
            if self.scales {
                self.turn_off_drained();
            }
            self.start_steps()?;
            if self.scales && self.only_ticks_are_left() {
                break;
            }
            if self.steps >= next_progress {
                next_progress = self.steps + STEPS_PER_PROGRESS;
                let progress = self.progress();
                self.observer.progress(&progress);
            }
        }
        let arrived = self.records.len() as u64;
        if self.ended < arrived {
            let first = self.records.iter().position(|r| r.outcome == Outcome::Unfinished).unwrap_or(0);
            return Err(SimError::Stuck {
                at_ms: self.now_ns as f64 / 1e6,
                requests: arrived - self.ended,
                first: first as u64,
            });
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), SimError> {
        match event {
            Event::StepEnd { worker, incarnation } => {
                if self.workers[worker as usize].incarnation == incarnation {
                    self.end_step(worker)?;
                }
            }
            Event::Played { tag } => self.play(tag),
            Event::LinkProgress { link, version } => self.progress_link(link, version),
            Event::TransferDelivered { tag, attempt } => self.deliver_transfer(tag, attempt),
            Event::TierProgress { worker, incarnation } => self.progress_tiers(worker, incarnation),
            Event::Fault { index } => self.strike(index)?,
            Event::WorkerUp { worker, incarnation } => self.bring_up(worker, incarnation)?,
            Event::SlowDownEnd { worker, fault } => self.end_slow_down(worker, fault),
            Event::StallEnd { worker, incarnation } => self.end_stall(worker, incarnation),
            Event::RouterHears { pool } => self.router_hears(pool),
            Event::Arrival { workload } => self.arrive(workload)?,
            Event::NextTurn { slot, .. } => self.continue_session(slot)?,
            Event::Ready { workload, node } => self.start_node(workload, node)?,
            Event::ScaleTick { pool } => self.scale_tick(pool)?,
        }
        Ok(())
    }

    /// Lets every worker whose situation changed decide and start steps.
    fn start_steps(&mut self) -> Result<(), SimError> {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        // All of them are scheduled before the first is priced: what a transfer
        // brings may end a stretch of steps that could be told in advance.
        for &worker in &dirty {
            while self.workers[worker as usize].can_step() && self.schedule_step(worker)? {}
        }
        dirty.retain(|&worker| self.workers[worker as usize].can_start());
        for (position, &worker) in dirty.iter().enumerate() {
            let is_last = position + 1 == dirty.len();
            self.start_step(worker, is_last)?;
        }
        dirty.clear();
        // Starting a step only ever adds events, never changes other workers.
        debug_assert!(self.dirty.is_empty());
        self.dirty = dirty;
        Ok(())
    }

    /// Lets a worker decide its next step. False if that came to nothing.
    fn schedule_step(&mut self, index: u32) -> Result<bool, SimError> {
        let worker = &mut self.workers[index as usize];
        let now_ns = self.now_ns;
        worker.consult(now_ns).map_err(|reason| {
            let pool = &self.pools[worker.pool as usize].config;
            policy_error(pool, worker.index, worker.engine_stats().steps, now_ns, reason)
        })?;
        if let Some(tiers) = worker.engine.kv_tiers_mut() {
            tiers.advance(now_ns);
        }
        let plan = worker.engine.schedule();
        for &tag in &plan.preempted {
            let record = &mut self.records[tag as usize];
            record.preemptions += 1;
            record.detail.preempted_since_ns = Some(now_ns);
        }
        // Newly admitted requests come after all that were running.
        for entry in plan.scheduled.iter().rev().take_while(|entry| entry.kind != ScheduledKind::Running) {
            let record = &mut self.records[entry.tag as usize];
            if record.scheduled_ns.is_none() {
                record.scheduled_ns = Some(now_ns);
                record.cached_tokens = entry.num_computed_tokens;
            }
            if record.decode_worker.is_none() {
                record.detail.admitted(now_ns, entry.num_computed_tokens.min(record.prompt_tokens));
            } else {
                record.detail.admitted(now_ns, 0);
                record.detail.decode_scheduled_ns.get_or_insert(now_ns);
            }
        }
        // A step that did nothing but preempt has made room for another.
        let any = !plan.is_empty() || !plan.preempted.is_empty();
        self.remote_loads.clear();
        self.remote_loads.extend_from_slice(&plan.remote_loads);
        self.tier_loads.clear();
        self.tier_loads.extend_from_slice(&plan.tier_loads);
        if any && self.wants_steps {
            self.observer.scheduled(index, &worker.engine);
        }
        self.hear_untold(index);
        self.tell_kv_events(index, now_ns);
        let mut loads = std::mem::take(&mut self.remote_loads);
        for &load in &loads {
            self.start_transfer(load);
        }
        loads.clear();
        self.remote_loads = loads;
        let loads = std::mem::take(&mut self.tier_loads);
        self.note_tier_loads(index, &loads);
        self.tier_loads = loads;
        Ok(any)
    }

    /// Starts the oldest step that `index` has scheduled, and goes through those
    /// that must follow unless they are watched. `is_last` unless other workers
    /// have yet to start at this instant.
    fn start_step(&mut self, index: u32, is_last: bool) -> Result<(), SimError> {
        let now_ns = self.now_ns;
        let pool = self.workers[index as usize].pool;
        let horizon_ns = self.horizon_ns(pool, is_last);
        let worker = &mut self.workers[index as usize];
        // A prompt that is computed for another pool ends with its first token.
        let told = matches!(&self.pools[pool as usize].router, PoolRouter::Kv(router) if router.needs_single_steps());
        let ahead = !self.wants_steps && !told && !worker.takes_single_steps() && (pool > 0 || self.pools.len() == 1);
        let range = worker.price(now_ns, horizon_ns, ahead).map_err(|reason| {
            let step = worker.engine_stats().steps - worker.engine.steps_in_flight() as u64;
            let steps = step..step + worker.num_priced();
            latency_error(&self.pools[pool as usize].config, worker.index, steps, now_ns, reason)
        })?;
        let priced = worker.take_priced();
        let (shapes, durations_ns) = (&priced.shapes[range.clone()], &priced.durations_ns[range]);
        self.steps += durations_ns.len() as u64;
        if durations_ns.len() > 1 {
            worker.skip(&shapes[1..], &self.output_seeds);
            self.tell_events_of_stretch(index, durations_ns);
            self.emit_stretch(index, shapes[0].batch_requests(), durations_ns);
        }
        let worker = &mut self.workers[index as usize];
        let mut start_ns = now_ns;
        for (shape, &duration_ns) in shapes.iter().zip(durations_ns) {
            worker.book(start_ns, shape, duration_ns);
            start_ns = start_ns.saturating_add(duration_ns);
        }
        worker.give_back(priced);
        let end = Event::StepEnd { worker: index, incarnation: worker.incarnation };
        self.events.push_step_end(pool, start_ns, end);
        if self.wants_steps {
            let plan = worker.plan();
            self.observer.started(&StepRecord {
                worker: index,
                start_ns: now_ns,
                end_ns: start_ns,
                plan,
                engine: &worker.engine,
            });
        }
        Ok(())
    }

    /// Until when nothing from outside can reach an engine of `pool`.
    ///
    /// What is not in the queue yet comes out of a step of another engine: the
    /// end of a request that another waits for, or a prompt that moves on to
    /// decode. A prefill engine that waits for blocks may start such a step as
    /// soon as any decode engine takes a prompt from it.
    fn horizon_ns(&self, pool: u32, all_priced: bool) -> u64 {
        let feeding_workers = &self.workers[..self.pools[pool as usize].first_worker as usize];
        let any_pool = self.chained || feeding_workers.iter().any(Worker::can_step);
        if any_pool && !all_priced {
            return self.now_ns;
        }
        let feeding_pools = if any_pool { self.pools.len() as u32 } else { pool };
        let steps = (0..feeding_pools).filter_map(|other| self.events.next_step_end(other));
        // Steps that start after the last instant of the run do not happen.
        let end = self.config.max_time_ns.map(|max| max.saturating_add(1));
        self.events.next_other().into_iter().chain(steps).chain(end).min().unwrap_or(u64::MAX)
    }

    fn end_step(&mut self, index: u32) -> Result<(), SimError> {
        let worker = &mut self.workers[index as usize];
        let pool = worker.pool;
        let start_ns = worker.step_start_ns;
        // Steps that a crash cuts off are none.
        if self.config.samples_steps {
            self.step_metrics.sample(Trend::StepTime, self.now_ns - start_ns);
            self.step_metrics.sample(Trend::BatchSize, worker.plan().shape.batch_requests());
        }
        worker.engine.offload_prompts(self.now_ns);
        let config = &self.pools[pool as usize].config;
        worker
            .update(&self.output_seeds, &config.acceptance_rates, &self.records)
            .map_err(|reason| make_error(config, worker.index, self.now_ns, MakeError::Tokens(reason)))?;
        if self.wants_steps {
            self.observer.applied(index, start_ns, self.now_ns, &worker.engine);
        }
        self.tell_kv_events(index, self.now_ns);
        self.workers[index as usize].clear_kv_events();
        self.emit_bulk_step(index);
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        outputs.extend_from_slice(&self.workers[index as usize].engine.outputs().outputs);
        let prefill_only = self.pools.len() > 1 && pool == 0;
        for output in &outputs {
            if prefill_only {
                self.end_prefill(index, output)?;
            } else {
                self.emit(output.tag, output.num_tokens, pool);
                if output.finish.is_some() {
                    self.keep_answer(index, output.tag);
                    self.complete(output.tag);
                }
            }
        }
        self.inject(index, &outputs)?;
        self.outputs = outputs;
        self.dirty.push(index);
        Ok(())
    }

    /// Keeps the chosen output of a request that is about to be complete, if the
    /// next turn of its session needs it.
    fn keep_answer(&mut self, index: u32, tag: u64) {
        let Some(tokens) = &mut self.workers[index as usize].tokens else { return };
        let answer = tokens.end(tag);
        if self.live_mut(tag).follow_up.needs_answer() {
            self.answers.insert(tag, answer);
        }
    }

    /// Output tokens become visible to the client.
    fn emit(&mut self, tag: u64, num_tokens: u32, pool: u32) {
        if self.give_tokens(tag, num_tokens) {
            self.tell_first_token(tag, pool);
        }
        self.tell_output(tag, pool);
    }

    /// Notes output tokens. Gives whether they are the first.
    pub(crate) fn give_tokens(&mut self, tag: u64, num_tokens: u32) -> bool {
        let record = &mut self.records[tag as usize];
        let now_ns = self.now_ns;
        let first = record.prefill_end_ns.is_none();
        if num_tokens > 0 {
            let metrics = &mut self.metrics[record.workload as usize];
            // What is answered as recorded has no engine.
            let is_served = record.prefill_worker.is_some();
            match record.last_token_ns {
                None => {
                    record.first_token_ns = Some(now_ns);
                    if is_served {
                        self.tally.first_token(now_ns - record.arrival_ns);
                    }
                }
                Some(last_ns) => {
                    metrics.sample(Trend::Itl, now_ns - last_ns);
                    if is_served {
                        self.tally.token_gaps(now_ns - last_ns, 1);
                    }
                }
            }
            if is_served {
                self.tally.token_gaps(0, u64::from(num_tokens - 1));
            }
            if record.output_tokens < 2 && record.output_tokens + num_tokens >= 2 {
                record.detail.second_token_ns = Some(now_ns);
            }
            for _ in 1..num_tokens {
                // Tokens of one burst arrive together.
                metrics.sample(Trend::Itl, 0);
            }
            record.last_token_ns = Some(now_ns);
            record.output_tokens += num_tokens;
        }
        record.prefill_end_ns.get_or_insert(now_ns);
        first
    }

    /// The tokens of all steps of a stretch but the last, which is under way.
    fn emit_stretch(&mut self, index: u32, batch_requests: u64, durations_ns: &[u64]) {
        let ended_ns = &durations_ns[..durations_ns.len() - 1];
        let first_end_ns = self.now_ns.saturating_add(durations_ns[0]);
        let second_end_ns = first_end_ns.saturating_add(durations_ns[1]);
        let ends_ns = ended_ns.iter().fold(self.now_ns, |end_ns, duration_ns| end_ns.saturating_add(*duration_ns));
        if self.config.samples_steps {
            for &duration_ns in ended_ns {
                self.step_metrics.sample(Trend::StepTime, duration_ns);
            }
            self.step_metrics.sample_times(Trend::BatchSize, batch_requests, ended_ns.len() as u64);
        }
        self.decoding.clear();
        self.decoding.resize(self.metrics.len(), 0);
        for output in &self.workers[index as usize].engine.outputs().outputs {
            let record = &mut self.records[output.tag as usize];
            match record.last_token_ns {
                None => {
                    record.first_token_ns = Some(first_end_ns);
                    self.tally.first_token(first_end_ns - record.arrival_ns);
                }
                Some(last_ns) => {
                    self.metrics[record.workload as usize].sample(Trend::Itl, first_end_ns - last_ns);
                    self.tally.token_gaps(first_end_ns - last_ns, 1);
                }
            }
            // One token a step.
            if record.output_tokens == 1 {
                record.detail.second_token_ns = Some(first_end_ns);
            } else if record.output_tokens == 0 && output.num_tokens > 1 {
                record.detail.second_token_ns = Some(second_end_ns);
            }
            record.prefill_end_ns.get_or_insert(first_end_ns);
            record.last_token_ns = Some(ends_ns);
            record.output_tokens += output.num_tokens;
            self.decoding[record.workload as usize] += 1;
        }
        self.tell_outputs_of_stretch(index);
        self.emit_bulk_stretch(index, first_end_ns, ends_ns);
        let decoding: u64 = self.decoding.iter().sum();
        for duration_ns in &ended_ns[1..] {
            self.tally.token_gaps(*duration_ns, decoding);
        }
        for (metrics, &requests) in self.metrics.iter_mut().zip(&self.decoding) {
            for duration_ns in ended_ns[1..].iter().filter(|_| requests > 0) {
                metrics.sample_times(Trend::Itl, *duration_ns, requests);
            }
        }
    }

    fn progress(&self) -> Progress {
        Progress {
            now_ns: self.now_ns,
            arrived: self.records.len() as u64,
            ended: self.ended,
            running: self.workers.iter().map(|w| w.engine.num_running() as u64).sum(),
            waiting: self.workers.iter().map(|w| w.engine.num_waiting() as u64).sum(),
            steps: self.steps,
        }
    }

    pub(crate) fn live_mut(&mut self, tag: u64) -> &mut Live {
        self.live[tag as usize].as_deref_mut().expect("the request has not ended")
    }

    pub(crate) fn count(&mut self, tag: u64, counter: Counter, amount: u64) {
        let workload = self.records[tag as usize].workload;
        self.metrics[workload as usize].add(counter, amount);
    }
}

fn pool_router(config: &PoolConfig, part: PoolPart, seat: &Seat<'_>) -> Result<PoolRouter, SimError> {
    if let RouterConfig::Kv(kv) = &config.router {
        let facts = PoolFacts {
            workers: config.most_engines(),
            block_size_tokens: config.engine.block_size(),
            max_num_batched_tokens: config.engine.max_num_batched_tokens(),
            part,
            has_tiers: config.engine.kv_tiers().is_some(),
        };
        return Ok(PoolRouter::Kv(Box::new(KvRouter::new(*kv, facts, seat.seed))));
    }
    let made = config.router.build(seat);
    made.map(PoolRouter::Asked).map_err(|reason| SimError::Route {
        pool: config.name.clone(),
        request: None,
        at_ms: 0.0,
        reason,
    })
}

fn pool_scaler(pool: &PoolConfig, run: &RunConfig) -> Result<Option<Scaler>, SimError> {
    let Some(scaling) = &pool.scaling else { return Ok(None) };
    let seed = seed::derive(run.seed, &format!("scaler:{}", pool.name), 0);
    let seat = Seat { run: &run.name, pool: &pool.name, engine: None, seed };
    let made = (scaling.policy)(&seat).map_err(|reason| scale_error(pool.name.clone(), 0.0, reason))?;
    Ok(Some(Scaler::new(scaling.clone(), made, pool.engines)))
}

fn workload(config: &RunConfig, index: usize, block_size_tokens: u32) -> Workload {
    let own = &config.workloads[index];
    let same_trace = |other: &WorkloadConfig| match (&own.source, &other.source) {
        (WorkloadSource::Trace { trace: a, .. }, WorkloadSource::Trace { trace: b, .. }) => Arc::ptr_eq(a, b),
        _ => false,
    };
    let first_of_trace = config.workloads.iter().position(same_trace).unwrap_or(index);
    Workload::new(own.clone(), config.seed, block_size_tokens, first_of_trace)
}

fn links(topology: &Topology) -> Vec<Link> {
    let Topology::Disaggregated { prefill, link, .. } = topology else { return Vec::new() };
    let Some(bytes_per_s) = link.bandwidth_bytes_per_s else { return Vec::new() };
    let count = match link.sharing {
        LinkSharing::Shared => 1,
        LinkSharing::PerPrefillEngine => prefill.most_engines(),
        LinkSharing::Unshared => 0,
    };
    (0..count).map(|_| Link::new(bytes_per_s)).collect()
}
