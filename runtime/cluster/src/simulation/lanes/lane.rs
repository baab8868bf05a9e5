//! A lane: one engine, with its ranks, simulated by itself.
//!
//! It is a [`Simulation`] of a single engine with an event queue, a ledger and records of its
//! own. Requests come from outside, in order of time, with the engine chosen. Between two of
//! them nothing reaches it, so it may run ahead of other lanes as far as its next request.

use std::collections::VecDeque;

use vcr_core::RejectReason;

use super::arrivals::Arrival;
use crate::config::{PoolConfig, PoolRole, RunConfig};
use crate::error::SimError;
use crate::fleet::{Fleet, Worker};
use crate::ledger::Ledger;
use crate::ledger::record::Outcome;
use crate::observe::{RunSeries, Unobserved};
use crate::routing::{RoutedTo, Routing};
use crate::simulation::Simulation;
use crate::simulation::facts::RunFacts;
use crate::simulation::observation::Queues;
use crate::traffic::Traffic;

/// Instants between two looks whether the run is to stop.
const INSTANTS_PER_LOOK: u64 = 64;

/// Result of placing a request that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placement {
    /// It goes to this rank of the lane's engine.
    To(RoutedTo),
    /// No engine can ever run it.
    Rejected(RejectReason),
}

/// Data that lanes return besides their results.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneOptions {
    pub(super) keeps_step_digests: bool,
    pub(super) keeps_series: bool,
}

/// Says whether the run is to stop.
pub(super) trait Interrupt {
    fn wants_stop(&mut self) -> bool;
}

pub(super) struct Lane {
    simulation: Simulation<'static, Unobserved>,
    /// Index over all workers of the run of its first rank.
    first_worker: u32,
    /// The tags in the run of its requests, by their tags here.
    tags: Vec<u64>,
    instants: u64,
    queues: QueueViews,
}

/// The queues as they were when some instants were over.
#[derive(Default)]
struct QueueViews {
    /// Instants that are not over yet.
    due_ns: VecDeque<u64>,
    seen: VecDeque<Queues>,
}

impl QueueViews {
    /// Time goes on to `at_ns`.
    fn look(&mut self, simulation: &Simulation<'static, Unobserved>, at_ns: u64) {
        while let Some(due_ns) = self.due_ns.pop_front_if(|due_ns| *due_ns < at_ns) {
            self.seen.push_back(Queues { at_ns: due_ns, ..simulation.queues() });
        }
    }
}

impl Lane {
    /// # Errors
    /// When something that is made for an engine cannot be made.
    pub(super) fn new(run: &RunConfig, pool: &PoolConfig, engine: u32, options: LaneOptions) -> Result<Self, SimError> {
        let mut fleet = Fleet::of_engine(run, pool, engine)?;
        if options.keeps_step_digests {
            fleet.workers_mut().iter_mut().for_each(Worker::keep_step_digests);
        }
        let (routing, traffic) = (Routing::elsewhere(), Traffic::from_outside(run));
        let ranks = fleet.workers().len();
        let mut simulation = Simulation::of(RunFacts::of(run.clone()), Unobserved, fleet, routing, traffic);
        if options.keeps_series {
            simulation.observation.keep_series(ranks);
        }
        Ok(Self {
            simulation,
            first_worker: engine * ranks as u32,
            tags: Vec::new(),
            instants: 0,
            queues: QueueViews::default(),
        })
    }

    /// Makes room for the records of this many requests.
    pub(super) fn reserve(&mut self, requests: u64) {
        self.simulation.ledger.reserve(requests);
    }

    /// Goes through all that happens before `until_ns`, the earliest instant at which a
    /// request may come; without one, to the end. What is due at `until_ns` is handled, but
    /// not its consequences: a request may come then, too. False if it was interrupted.
    ///
    /// # Errors
    /// As for any run. The lane must not be used further.
    pub(super) fn advance(&mut self, until_ns: Option<u64>, interrupt: &mut dyn Interrupt) -> Result<bool, SimError> {
        let Self { simulation, queues, instants, .. } = self;
        simulation.advance(until_ns, |simulation, at_ns| {
            queues.look(simulation, at_ns);
            *instants += 1;
            !instants.is_multiple_of(INSTANTS_PER_LOOK) || !interrupt.wants_stop()
        })
    }

    /// A request comes. The lane has been advanced to that instant.
    ///
    /// # Errors
    /// When time stands still.
    pub(super) fn receive(&mut self, arrival: Arrival, placement: Placement) -> Result<(), SimError> {
        let Arrival { at_ns, tag, workload, turn } = arrival;
        let own = &mut self.simulation;
        if at_ns > own.clock.now_ns() {
            self.queues.look(own, at_ns);
        }
        own.open_instant(at_ns)?;
        own.traffic.begin_session(workload);
        let (own_tag, _) = own.enter(workload, turn);
        own.ledger.count_load(own_tag);
        self.tags.push(tag);
        match placement {
            Placement::To(to) => own.place(own_tag, PoolRole::Aggregated, to),
            Placement::Rejected(reason) => own.end(own_tag, Outcome::Rejected(reason)),
        }
        Ok(())
    }

    /// The queues are to be seen as they are when `at_ns` is over.
    pub(super) fn expect_view(&mut self, at_ns: u64) {
        self.queues.due_ns.push_back(at_ns);
    }

    /// The oldest view of the queues that is there.
    pub(super) fn take_view(&mut self) -> Option<Queues> {
        if !self.simulation.clock.is_open() {
            let next_ns = self.simulation.events.next_time().unwrap_or(u64::MAX);
            self.queues.look(&self.simulation, next_ns);
        }
        self.queues.seen.pop_front()
    }

    /// The queues as they are.
    pub(super) fn queues(&self) -> Queues {
        self.simulation.queues()
    }

    /// Steps that have started.
    pub(super) fn steps(&self) -> u64 {
        self.simulation.ledger.steps()
    }

    /// Instants that it has gone through, and requests that have come.
    pub(super) fn instants(&self) -> u64 {
        self.instants + self.tags.len() as u64
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.simulation.clock.now_ns()
    }

    /// Whether all its requests have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.simulation.ledger.ended() == self.simulation.ledger.arrived()
    }

    /// Its results, the run being over at `end_ns`: with its ledger come the first of its
    /// workers and the tags of its requests in the run.
    pub(super) fn close(mut self, end_ns: u64) -> ((Ledger, u32, Vec<u64>), Fleet, Option<RunSeries>) {
        self.simulation.observation.sample_series(end_ns, &self.simulation.fleet);
        self.simulation.dissolve_all_steady_decode();
        let Simulation { ledger, fleet, observation, .. } = self.simulation;
        ((ledger, self.first_worker, self.tags), fleet, observation.into_series())
    }
}
