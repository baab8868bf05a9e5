//! Load above capacity: a waiting queue that grows without end.
//!
//! The observer is warned early: such a run ends late, if at all, and its latencies
//! measure the length of the run more than the cluster. Nothing here changes the run.

use vcr_core::ServingEngine;

use super::Simulation;
use crate::config::PoolRole;
use crate::observe::Overload;

/// Arrivals between two checks at least.
const MIN_ARRIVALS: u64 = 512;
/// A queue that grows by less than this share of the arrivals may be chance.
const MIN_GROWTH: f64 = 0.1;
/// Shorter queues are not reported.
const MIN_WAITING: u64 = 1000;
/// Waiting requests for each running one at least.
const MIN_WAITING_PER_RUNNING: u64 = 4;
/// Checks in a row that must find the queue grown.
const CHECKS: u32 = 5;

/// State at the last check.
#[derive(Debug, Default)]
pub(super) struct OverloadWatch {
    at_ns: u64,
    arrived: u64,
    ended: u64,
    waiting: u64,
    /// Checks in a row that found the queue grown.
    grown: u32,
    is_reported: bool,
}

impl Simulation<'_> {
    /// Warns the observer, once, of a queue that has grown several checks in a row.
    pub(super) fn watch_for_overload(&mut self) {
        let last = &self.overload;
        let arrived = self.ledger.arrived();
        if last.is_reported || arrived - last.arrived < MIN_ARRIVALS || self.now_ns == last.at_ns {
            return;
        }
        let waiting: Vec<u64> = self.fleet.pools().iter().map(|pool| self.waiting_in(pool.role())).collect();
        let (pool, _) = waiting.iter().enumerate().max_by_key(|(_, waiting)| **waiting).unwrap_or((0, &0));
        let waiting: u64 = waiting.iter().sum();
        let running: u64 = self.fleet.workers().iter().map(|worker| worker.engine().num_running() as u64).sum();
        let new_arrivals = arrived - last.arrived;
        let is_long = waiting >= MIN_WAITING.max(MIN_WAITING_PER_RUNNING * running);
        let has_grown = waiting as f64 >= last.waiting as f64 + MIN_GROWTH * new_arrivals as f64;
        let grown = if is_long && has_grown { last.grown + 1 } else { 0 };
        let seconds = (self.now_ns - last.at_ns) as f64 / 1e9;
        let overload = Overload {
            pool: &self.fleet.pools()[pool].config().name,
            at_ns: self.now_ns,
            arrivals_per_s: new_arrivals as f64 / seconds,
            served_per_s: (self.ledger.ended() - last.ended) as f64 / seconds,
            waiting,
        };
        let is_reported = grown >= CHECKS;
        if is_reported {
            self.observer.overloaded(&overload);
        }
        self.overload =
            OverloadWatch { at_ns: self.now_ns, arrived, ended: self.ledger.ended(), waiting, grown, is_reported };
    }

    /// Requests that wait for an engine of a pool, or in one.
    fn waiting_in(&self, pool: PoolRole) -> u64 {
        let in_engines: usize = self.fleet.workers_of(pool).iter().map(|worker| worker.engine().num_waiting()).sum();
        let (in_router, _) = self.routing.queued(pool);
        (in_engines + self.routing.parked(pool).len()) as u64 + in_router
    }
}
