//! The requests of a run whose start does not depend on what becomes of others, in order.

use vcr_core::{AnyEngine, RejectReason, ServingEngine};

use crate::config::{PoolConfig, RunConfig};
use crate::event::EventQueue;
use crate::traffic::{Start, Traffic, Turn};

/// A request that arrives.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) at_ns: u64,
    /// Its number in the run.
    pub(super) tag: u64,
    pub(super) workload: u32,
    pub(super) turn: Turn,
}

pub(super) struct Arrivals<'a> {
    run: &'a RunConfig,
    traffic: Traffic,
    events: EventQueue,
    /// Knows which requests can never run.
    engine: AnyEngine,
    rejects_in_queue: bool,
    num_workers: u32,
    next_tag: u64,
}

impl<'a> Arrivals<'a> {
    pub(super) fn new(run: &'a RunConfig, pool: &PoolConfig) -> Self {
        let blocks = pool.engine.hashed_blocks();
        let mut traffic = Traffic::new(run, blocks, false);
        let mut events = EventQueue::new(1);
        traffic.begin(&mut events);
        let engine = AnyEngine::new(&pool.engine);
        let (num_workers, rejects_in_queue) = (pool.most_ranks(), pool.rejects_in_queue());
        Self { run, traffic, events, engine, rejects_in_queue, num_workers, next_tag: 0 }
    }

    /// Their number, where that is known.
    pub(super) fn known(&self) -> Option<u64> {
        self.traffic.sessions_known()
    }

    /// Ranks of all engines.
    pub(super) fn num_workers(&self) -> u32 {
        self.num_workers
    }

    pub(super) fn workload_names(&self) -> Vec<String> {
        self.traffic.names()
    }

    /// Number that has come.
    pub(super) fn arrived(&self) -> u64 {
        self.next_tag
    }

    /// Whether more are to come, which may be after the run's maximum time.
    pub(super) fn are_more(&self) -> bool {
        self.events.has_requests()
    }

    /// The next one.
    pub(super) fn next(&mut self) -> Option<Arrival> {
        loop {
            let last_ns = self.run.max_time_ns.unwrap_or(u64::MAX);
            // All sessions start at times of their own.
            let (at_ns, workload) = self.events.pop_arrival(last_ns)?;
            if let Start::Turn(turn) = self.traffic.start_session(workload, at_ns, &mut self.events) {
                let tag = self.next_tag;
                self.next_tag += 1;
                return Some(Arrival { at_ns, tag, workload, turn });
            }
        }
    }

    /// Whether a request goes to an engine.
    ///
    /// # Errors
    /// When it can never run and is rejected on arrival, and why.
    pub(super) fn check(&self, turn: &Turn) -> Result<(), RejectReason> {
        if self.rejects_in_queue {
            return Ok(());
        }
        self.engine.check(turn.prompt.len_tokens(), turn.max_tokens)
    }
}
