//! The virtual-time loop: one event after another, then steps for idle engines.
//!
//! Owns all state of a run. At each instant every due event is handled first;
//! then every worker whose situation changed may start a step, in order of
//! worker. Nothing here reads a clock or iterates in an order that could vary.

use std::collections::{BTreeMap, VecDeque};
use std::iter::StepBy;
use std::ops::Range;

use vcr_core::plan::{RemoteLoad, RequestOutput, TierLoad};
use vcr_core::{Prompt, RequestId, ServingEngine};

use crate::config::{PoolConfig, RunConfig};
use crate::error::SimError;
use crate::event::{Event, EventQueue};
use crate::hand_over::Due;
use crate::kv_router::{Candidate, KvRouter};
use crate::link::Link;
use crate::metrics::{Counter, MetricSet};
use crate::observe::{Observer, Progress};
use crate::record::RequestRecord;
use crate::report::Report;
use crate::router::{Router, WorkerLoad};
use crate::scaling::{Rescaled, Scaler, Tally};
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
    /// Decode worker that has taken blocks for the prompt, while that is still to be
    /// computed elsewhere, and what is to be transferred to it.
    pub(crate) destination: Option<(u32, RemoteLoad)>,
    /// Kept where the request may be submitted more than once.
    pub(crate) prompt: Option<Prompt>,
    pub(crate) priority: i32,
    pub(crate) strict_priority: u32,
    /// Index among the classes of its workload's trace.
    pub(crate) policy_class: Option<u32>,
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
    /// The indices of its workers, the ranks of an engine side by side.
    pub(crate) fn workers(&self) -> Range<usize> {
        let first = self.first_worker as usize;
        first..first + self.config.most_ranks() as usize
    }

    /// The indices of the first ranks of its engines.
    pub(crate) fn engines(&self) -> StepBy<Range<usize>> {
        self.workers().step_by(self.config.data_parallel.size as usize)
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
    pub(crate) chained: bool,
    /// Whether all workers are up from the beginning to the end.
    pub(crate) is_steady: bool,
    /// Whether in any pool ranks wait for each other.
    pub(crate) barriers: bool,
    /// Whether any pool has an autoscaler.
    pub(crate) scales: bool,
    pub(crate) tally: Tally,
    pub(crate) rescaled: Vec<Rescaled>,
    /// Since when nothing but ticks has been to come, if so.
    pub(crate) only_ticks_since_ns: Option<u64>,
    pub(crate) ended: u64,
    pub(crate) steps: u64,
    /// What is due of hand-overs between steps.
    pub(crate) due: VecDeque<Due>,
    /// Workers whose situation changed at this instant.
    pub(crate) dirty: Vec<u32>,
    pub(crate) loads: Vec<WorkerLoad>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) outputs: Vec<RequestOutput>,
    pub(crate) remote_loads: Vec<RemoteLoad>,
    pub(crate) tier_loads: Vec<TierLoad>,
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
    pub(crate) fn run(&mut self) -> Result<(), SimError> {
        let mut next_progress = STEPS_PER_PROGRESS;
        let mut steps_before_instant = 0;
        while let Some(at_ns) = self.events.next_time() {
            if self.config.max_time_ns.is_some_and(|max| at_ns > max) {
                return Ok(());
            }
            assert!(at_ns >= self.now_ns, "virtual time ran backwards: {} -> {at_ns}", self.now_ns);
            if at_ns > self.now_ns {
                steps_before_instant = self.steps;
            } else {
                self.check_that_time_goes_on(steps_before_instant)?;
            }
            self.now_ns = at_ns;
            while let Some(event) = self.events.pop_at(at_ns) {
                self.handle(event)?;
            }
            self.drive_hand_overs()?;
            self.release_queued();
            if self.scales {
                self.turn_off_drained();
            }
            self.start_steps()?;
            while !self.due.is_empty() {
                self.drive_hand_overs()?;
                self.start_steps()?;
            }
            if self.scales && self.only_ticks_are_left() {
                break;
            }
            if self.steps >= next_progress {
                next_progress = self.steps + STEPS_PER_PROGRESS;
                let progress = self.progress();
                self.observer.progress(&progress);
            }
        }
        self.check_that_all_ended()
    }

    pub(crate) fn handle(&mut self, event: Event) -> Result<(), SimError> {
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
