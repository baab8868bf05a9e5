//! Passes that the ranks of an engine count together: those between two that prefill.
//!
//! vLLM's ranks all start prefills in every N-th step of a wave, which lasts as long as
//! any of them has requests. SGLang's all wait for as many passes after one in which any of
//! them prefills.

use std::ops::Range;

use super::{Fleet, Worker};
use crate::config::PoolConfig;

impl PoolConfig {
    /// Whether the ranks of an engine count their passes together.
    pub(crate) fn counts_passes(&self) -> bool {
        let has_interval = match &self.engine {
            vcr_core::EngineKind::Vllm(_) => self.prefill_schedule_interval > 1,
            vcr_core::EngineKind::Sglang(engine) => engine.prefill_decode_interval() > 0,
            vcr_core::EngineKind::Ticks(_) => false,
        };
        self.has_barrier() && has_interval
    }
}

impl Fleet {
    /// Whether the ranks of a worker's engine count their passes together.
    pub(crate) fn counts_passes(&self, worker: u32) -> bool {
        self.barriers && self.pool_of(worker).config.counts_passes()
    }

    /// A request comes to a worker. With the first one a wave of passes begins.
    pub(crate) fn note_request(&mut self, worker: u32) {
        if self.counts_passes(worker) {
            let ranks = self.ranks_of(worker);
            let is_idle = |worker: &Worker| !worker.has_decided() && !worker.has_requests();
            if ranks.clone().all(|rank| is_idle(self.worker(rank))) {
                self.wave_passes.insert(ranks.start, 0);
            }
        }
    }

    /// The ranks of a worker are about to decide, unless some have done so already.
    pub(crate) fn begin_pass(&mut self, worker: u32) {
        let ranks = self.ranks_of(worker);
        if !self.is_between_steps(worker) || ranks.clone().any(|rank| self.worker(rank).has_decided()) {
            return;
        }
        let any_decodes = ranks.clone().any(|rank| self.worker(rank).has_decodes());
        let interval = u64::from(self.pool_of(worker).config.prefill_schedule_interval);
        let passes = self.wave_passes.get(&ranks.start).copied().unwrap_or(0);
        for rank in ranks {
            self.worker_mut(rank).begin_pass(any_decodes, !passes.is_multiple_of(interval));
        }
    }

    /// The ranks have decided this many passes, of which those of `together` take part in the
    /// first.
    pub(crate) fn end_passes(&mut self, ranks: Range<u32>, together: &[u32], passes: u32) {
        if !self.counts_passes(ranks.start) {
            return;
        }
        let prefills = |&rank: &u32| self.worker(rank).plan().shape.prefill_requests > 0;
        let any_prefills = together.iter().any(prefills);
        *self.wave_passes.entry(ranks.start).or_insert(0) += u64::from(passes);
        for rank in ranks {
            self.worker_mut(rank).end_passes(passes, any_prefills);
        }
    }
}
