//! Data-parallel ranks: which workers are one engine, and steps behind a barrier.
//!
//! A rank is a worker like any other, with a scheduler, KV blocks and a clock of its
//! own. The ranks of an engine stand side by side; they come, go and break together.
//! With a barrier they also step together: those that have work start at the same
//! instant and all end at the slowest, and what comes meanwhile to a rank without
//! work waits until then. Such steps are taken one by one.

use std::ops::Range;

use crate::error::SimError;
use crate::sim::Simulation;
use crate::steps::pricing_error;

impl Simulation<'_> {
    /// The ranks of the engine that `worker` is one of.
    pub(crate) fn ranks_of(&self, worker: u32) -> Range<u32> {
        let pool = &self.pools[self.workers[worker as usize].pool as usize];
        let size = pool.config.data_parallel.size;
        let first = worker - (worker - pool.first_worker) % size;
        first..first + size
    }

    /// Whether `worker` is a rank that waits for others.
    pub(crate) fn has_barrier(&self, worker: u32) -> bool {
        self.barriers && self.pools[self.workers[worker as usize].pool as usize].config.has_barrier()
    }

    /// Adds the other ranks of those that step together.
    pub(crate) fn widen_to_engines(&self, dirty: &mut Vec<u32>) {
        if !self.barriers {
            return;
        }
        dirty.sort_unstable();
        let mut widened = 0;
        for position in 0..dirty.len() {
            let worker = dirty[position];
            if worker >= widened && self.has_barrier(worker) {
                let ranks = self.ranks_of(worker);
                widened = ranks.end;
                dirty.extend(ranks);
            }
        }
    }

    /// Whether no rank of an engine is in a step or held up, so that one can begin.
    pub(crate) fn is_at_barrier(&self, worker: u32) -> bool {
        self.ranks_of(worker).all(|rank| {
            let rank = &self.workers[rank as usize];
            rank.may_work() && !rank.executing
        })
    }

    /// Whether a worker may decide a step now.
    pub(crate) fn may_decide(&self, index: u32) -> bool {
        let worker = &self.workers[index as usize];
        // While its own part runs a rank may decide the next one, if it can.
        worker.can_step() && (worker.executing || !self.has_barrier(index) || self.is_at_barrier(index))
    }

    /// Whether a worker may start a step now.
    pub(crate) fn may_start(&self, index: u32) -> bool {
        self.workers[index as usize].can_start() && (!self.has_barrier(index) || self.is_at_barrier(index))
    }

    /// Starts a step of an engine with the ranks `ranks`, of which those in
    /// `together` have work.
    pub(crate) fn start_together(&mut self, ranks: Range<u32>, together: &[u32]) -> Result<(), SimError> {
        let now_ns = self.now_ns;
        let mut end_ns = now_ns;
        for &index in together {
            let worker = &mut self.workers[index as usize];
            // Without a horizon ahead the one step is priced.
            let priced = worker.price(now_ns, now_ns, false);
            let config = &self.pools[worker.pool as usize].config;
            let range = priced.map_err(|reason| pricing_error(config, worker, now_ns, reason))?;
            end_ns = end_ns.max(worker.book(now_ns, range));
        }
        self.steps += together.len() as u64;
        for rank in ranks {
            self.workers[rank as usize].wait(now_ns, end_ns);
        }
        for &index in together {
            self.tell_events_of_end(index, end_ns);
            self.expect_step_end(index, end_ns);
        }
        Ok(())
    }
}
