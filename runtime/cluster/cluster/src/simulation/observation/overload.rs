//! Detects overload: a queue that grows without end.
//!
//! The warning comes early, because such a run ends late, if at all, and its latencies depend more on the length of
//! the run than on the cluster. The warning does not change the run.

use vcr_core::ServingEngine;

use super::Observation;
use crate::config::PoolRole;
use crate::fleet::{Fleet, Worker};
use crate::observe::{Observer, Overload};
use crate::simulation::Simulation;

/// Minimum number of arrivals between two checks.
const MIN_ARRIVALS: u64 = 512;
/// A queue that grows by less than this share of the arrivals may grow by chance.
const MIN_GROWTH: f64 = 0.1;
/// Shorter queues are not reported.
const MIN_WAITING: u64 = 1000;
/// Minimum number of waiting requests per running request.
const MIN_WAITING_PER_RUNNING: u64 = 4;
/// Number of consecutive checks that must find the queue grown.
const CHECKS: u32 = 5;

/// A cluster's requests at one instant, after all its events.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::simulation) struct Queues {
    pub(in crate::simulation) at_ns: u64,
    pub(in crate::simulation) arrived: u64,
    pub(in crate::simulation) ended: u64,
    pub(in crate::simulation) running: u64,
    pub(in crate::simulation) waiting: u64,
}

/// Checks the queues at arrival times, which do not depend on how the steps between them are grouped.
#[derive(Debug, Default)]
pub(in crate::simulation) struct OverloadWatch {
    last: Queues,
    /// Number of arrivals at the previous call.
    seen: u64,
    /// The instant of the latest due check, and the number of arrivals until then.
    latest_due: (u64, u64),
    /// Number of consecutive checks that found the queue grown.
    grown: u32,
    is_reported: bool,
}

impl OverloadWatch {
    /// Whether the queues must be checked after an instant. `arrived` requests arrived up to its end.
    pub(in crate::simulation) fn is_due(&mut self, at_ns: u64, arrived: u64) -> bool {
        let is_new = std::mem::replace(&mut self.seen, arrived) != arrived;
        let (last_ns, before) = self.latest_due;
        let is_due = is_new && !self.is_reported && arrived - before >= MIN_ARRIVALS && at_ns != last_ns;
        if is_due {
            self.latest_due = (at_ns, arrived);
        }
        is_due
    }

    /// Checks the queues. Calls must be in order of time. `pool` has the longest queue. Returns an overload at most
    /// once.
    pub(in crate::simulation) fn check(&mut self, now: Queues, pool: &str) -> Option<Overload> {
        if self.is_reported {
            return None;
        }
        let last = std::mem::replace(&mut self.last, now);
        let new_arrivals = now.arrived - last.arrived;
        let is_long = now.waiting >= MIN_WAITING.max(MIN_WAITING_PER_RUNNING * now.running);
        let has_grown = now.waiting as f64 >= last.waiting as f64 + MIN_GROWTH * new_arrivals as f64;
        self.grown = if is_long && has_grown { self.grown + 1 } else { 0 };
        self.is_reported = self.grown >= CHECKS;
        let seconds = (now.at_ns - last.at_ns) as f64 / 1e9;
        self.is_reported.then(|| Overload {
            pool: pool.to_owned(),
            at_ms: now.at_ns as f64 / 1e6,
            arrivals_per_s: new_arrivals as f64 / seconds,
            served_per_s: (now.ended - last.ended) as f64 / seconds,
            waiting_requests: now.waiting,
        })
    }
}

impl<O: Observer> Observation<O> {
    /// Whether the queues must be checked after an instant. `arrived` requests arrived up to its end.
    pub(in crate::simulation) fn checks_queues(&mut self, at_ns: u64, arrived: u64) -> bool {
        self.overload.is_due(at_ns, arrived)
    }

    /// Warns the observer once if the queues have grown in several consecutive checks. `waiting` has the number of
    /// waiting requests by pool.
    pub(in crate::simulation) fn check_queues(&mut self, queues: Queues, waiting: &[u64], fleet: &Fleet) {
        let (longest, _) = waiting.iter().enumerate().max_by_key(|(_, waiting)| **waiting).unwrap_or((0, &0));
        let now = Queues { waiting: waiting.iter().sum(), ..queues };
        if let Some(overload) = self.overload.check(now, &fleet.pools()[longest].config().name) {
            self.observer.overloaded(&overload);
            self.overloaded = Some(overload);
        }
    }
}

impl<O: Observer> Simulation<'_, O> {
    pub(in crate::simulation) fn watch_for_overload(&mut self) {
        if self.observation.checks_queues(self.clock.now_ns(), self.ledger.arrived()) {
            let waiting: Vec<u64> = self.fleet.pools().iter().map(|pool| self.waiting_in(pool.role())).collect();
            self.observation.check_queues(self.queues(), &waiting, &self.fleet);
        }
    }

    /// Number of running and waiting requests in all engines.
    pub(in crate::simulation) fn queues(&self) -> Queues {
        let sum = |number: fn(&Worker) -> usize| self.fleet.workers().iter().map(|w| number(w) as u64).sum();
        Queues {
            at_ns: self.clock.now_ns(),
            arrived: self.ledger.arrived(),
            ended: self.ledger.ended(),
            running: sum(|worker| worker.engine().load().num_running),
            waiting: sum(|worker| worker.engine().load().num_waiting),
        }
    }

    /// Number of requests that wait for an engine of a pool, or in one.
    fn waiting_in(&self, pool: PoolRole) -> u64 {
        let in_engines: usize =
            self.fleet.workers_of(pool).iter().map(|worker| worker.engine().load().num_waiting).sum();
        in_engines as u64 + self.routing.waiting(pool)
    }
}
