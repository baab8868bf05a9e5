//! Host and disk tiers of engines: loads that requests wait for, and what is told of them.
//!
//! What moves when is the engines' own matter ([`vcr_core::KvTiers`]). Here are
//! the instants at which a load goes on, and where its time is booked.

use vcr_core::ServingEngine;
use vcr_core::plan::TierLoad;

use crate::event::Event;
use crate::metrics::{Counter, Trend};
use crate::record::RequestRecord;
use crate::sim::{PoolRouter, Simulation};

impl Simulation<'_> {
    /// Something may have arrived for a load of a worker.
    pub(crate) fn progress_tiers(&mut self, index: u32, incarnation: u32) {
        let worker = &mut self.workers[index as usize];
        if worker.incarnation != incarnation {
            return;
        }
        worker.tiers_wake_ns = None;
        self.loaded.clear();
        worker.engine.advance_tiers(self.now_ns, &mut self.loaded);
        for &tag in &self.loaded {
            self.records[tag as usize].end_load(self.now_ns);
        }
        if !self.loaded.is_empty() {
            self.dirty.push(index);
        }
        self.expect_tiers(index);
    }

    /// Loads of a worker have started.
    pub(crate) fn note_tier_loads(&mut self, index: u32, loads: &[TierLoad]) {
        for load in loads {
            self.records[load.tag as usize].start_load(self.now_ns, load);
        }
        if !loads.is_empty() {
            self.expect_tiers(index);
        }
    }

    /// Sees to it that the loads of a worker go on.
    fn expect_tiers(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        if let Some(at_ns) = worker.engine.kv_tiers().and_then(vcr_core::KvTiers::next_load_ns)
            && worker.tiers_wake_ns.is_none_or(|earlier_ns| at_ns < earlier_ns)
        {
            worker.tiers_wake_ns = Some(at_ns);
            let progress = Event::TierProgress { worker: index, incarnation: worker.incarnation };
            self.events.push(at_ns.max(self.now_ns), progress);
        }
    }

    /// Tells the KV routers of a pool, if they hear events late, what has come to
    /// the tiers of its workers and left them.
    pub(crate) fn tell_tier_changes(&mut self, pool: usize) {
        let workers = self.pools[pool].workers();
        let PoolRouter::Kv(router) = &mut self.pools[pool].router else { return };
        if !router.needs_events() {
            return;
        }
        for worker in &mut self.workers[workers] {
            if let Some(tiers) = worker.engine.kv_tiers_mut() {
                tiers.advance(self.now_ns);
                tiers.take_changes().for_each(|change| router.tier_change(worker.index, change));
            }
        }
    }

    /// Counts what a completed request has had from the tiers.
    pub(crate) fn count_tiers(&mut self, tag: u64) {
        let record = &self.records[tag as usize];
        let Some(load_ns) = record.detail.load_ns else { return };
        let metrics = &mut self.metrics[record.workload as usize];
        metrics.sample(Trend::KvLoad, load_ns);
        metrics.add(Counter::HostCachedTokens, u64::from(record.detail.host_cached_tokens));
        metrics.add(Counter::DiskCachedTokens, u64::from(record.detail.disk_cached_tokens));
    }
}

impl RequestRecord {
    fn start_load(&mut self, now_ns: u64, load: &TierLoad) {
        let detail = &mut self.detail;
        detail.load_since_ns = Some(now_ns);
        // What it had when it was first admitted counts, as in `cached_tokens`.
        if self.scheduled_ns.is_none() {
            detail.host_cached_tokens = load.host_tokens;
            detail.disk_cached_tokens = load.disk_tokens;
        }
    }

    fn end_load(&mut self, now_ns: u64) {
        let detail = &mut self.detail;
        let waited_ns = detail.load_since_ns.take().map_or(0, |since_ns| now_ns - since_ns);
        *detail.load_ns.get_or_insert(0) += waited_ns;
        if self.scheduled_ns.is_none() {
            detail.first_load_ns = Some(waited_ns);
        }
    }
}
