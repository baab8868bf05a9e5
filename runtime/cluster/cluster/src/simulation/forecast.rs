//! The prompts of a run before it begins, for caches that know the future.

use vcr_core::Forecast;

use super::Simulation;
use crate::config::{KvEviction, RunConfig};
use crate::event::EventQueue;
use crate::fleet::Worker;
use crate::observe::Observer;
use crate::traffic::{Start, Traffic};

/// The blocks of all requests, in the order in which they arrive; none where no pool asks.
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
    // All sessions start at times of their own.
    while let Some((at_ns, workload)) = events.pop_arrival(last_ns) {
        if let Start::Turn(turn) = traffic.start_session(workload, at_ns, &mut events) {
            prompts.push(turn.prompt.block_hashes().to_vec());
        }
    }
    Some(Forecast::new(&prompts))
}

impl<O: Observer> Simulation<'_, O> {
    /// Requests are scheduled for the first time, or never will be.
    pub(super) fn mark_scheduled(&mut self, tags: &[u64]) {
        for &tag in tags.iter().filter(|_| self.facts.foresees) {
            self.fleet.workers_mut().iter_mut().for_each(|worker: &mut Worker| worker.mark_scheduled(tag));
        }
    }
}
