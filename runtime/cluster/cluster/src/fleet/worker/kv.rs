//! The externally visible KV of a worker: events of its cache, and its tiers below the device.

use std::sync::Arc;

use vcr_core::hash::BlockHash;
use vcr_core::kv_event::{KvEvent, KvEventCursor};
use vcr_core::{Engine, Forecast, KvTierChange, KvTierStats, KvTiers, ServingEngine, TierRun};

use super::Worker;

impl Worker {
    /// Its tiers below the device, if it has any.
    pub(super) fn tiers_mut(&mut self) -> Option<&mut KvTiers> {
        self.engine.as_vllm_mut().and_then(Engine::kv_tiers_mut)
    }

    /// Takes its pool's shared tiers, if it holds them.
    pub(super) fn take_tiers(&mut self) -> Option<Box<KvTiers>> {
        self.engine.as_vllm_mut().and_then(Engine::take_kv_tiers)
    }

    /// Receives the shared tiers.
    pub(super) fn give_tiers(&mut self, mut tiers: Option<Box<KvTiers>>) {
        if let Some(tiers) = &mut tiers {
            tiers.enter(self.tier_client);
        }
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.give_kv_tiers(tiers);
        }
    }

    /// Replaces its own tiers by these.
    pub(super) fn join_tiers(&mut self, tiers: &mut KvTiers) {
        self.give_tiers(None);
        self.tier_client = tiers.add_client();
        tiers.enter(self.tier_client);
        tiers.record_changes(self.facts.reports_to_router);
    }

    /// Has the workers of a pool share the tiers of the first.
    pub(crate) fn share_tiers(pool: &mut [Self]) {
        let Some((first, others)) = pool.split_first_mut() else { return };
        let Some(mut tiers) = first.take_tiers() else { return };
        others.iter_mut().for_each(|worker| worker.join_tiers(&mut tiers));
        first.give_tiers(Some(tiers));
    }

    /// Passes shared tiers to another worker of the pool.
    pub(crate) fn hand_tiers(&mut self, other: &mut Self) {
        other.give_tiers(self.take_tiers());
    }

    fn has_tiers(&self) -> bool {
        self.engine.as_vllm().is_some_and(|engine| engine.kv_tiers().is_some())
    }

    /// Does something with each worker of a pool while it has its tiers.
    pub(crate) fn each_with_tiers(pool: &mut [Self], mut act: impl FnMut(&mut Self)) {
        let holder = pool.iter().position(|worker| worker.facts.shares_tiers && worker.has_tiers());
        let Some(holder) = holder else { return pool.iter_mut().for_each(act) };
        let mut tiers = pool[holder].take_tiers();
        for worker in &mut *pool {
            worker.give_tiers(tiers);
            act(worker);
            tiers = worker.take_tiers();
        }
        pool[holder].give_tiers(tiers);
    }

    /// Advances loads from its tiers, and adds the requests whose load is complete.
    pub(crate) fn advance_loads(&mut self, now_ns: u64, loaded: &mut Vec<u64>) {
        self.waits.look_at_loads();
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.advance_tiers(now_ns, loaded);
        }
    }

    /// Whether a request waits for a transfer of its tiers that is not its own.
    pub(crate) fn has_deferred_lookups(&self) -> bool {
        self.engine.as_vllm().is_some_and(Engine::has_deferred_lookups)
    }

    /// Whether requests of other workers with the same tiers wait for a transfer.
    pub(crate) fn others_await_stores(&self) -> bool {
        let tiers = self.engine.as_vllm().and_then(Engine::kv_tiers);
        tiers.is_some_and(KvTiers::others_await_stores)
    }

    /// When a load from its tiers advances next, unless that is known.
    pub(crate) fn expect_load_ns(&mut self) -> Option<u64> {
        let at_ns = self.engine.as_vllm()?.kv_tiers()?.next_load_ns()?;
        self.waits.expect_load(at_ns)
    }

    /// Leading blocks that its tiers keep.
    pub(crate) fn find_tier_run(&mut self, now_ns: u64, blocks: &[BlockHash]) -> TierRun {
        self.tiers_mut().map_or_else(TierRun::default, |tiers| {
            tiers.advance(now_ns);
            tiers.find_run(blocks)
        })
    }

    /// Shows the blocks that were added to its tiers and removed since the last call.
    pub(crate) fn take_tier_changes(&mut self, now_ns: u64, show: impl FnMut(KvTierChange)) {
        if let Some(tiers) = self.tiers_mut() {
            tiers.advance(now_ns);
            tiers.take_changes().for_each(show);
        }
    }

    /// Totals of its tiers over all incarnations from the beginning of the measurement until
    /// `now_ns`, if it has any.
    pub(crate) fn tier_stats(&mut self, now_ns: u64) -> Option<KvTierStats> {
        let present = self.present_tier_stats(now_ns)?;
        Some(self.totals.tier_stats(&present))
    }

    /// Totals of its tiers over all incarnations until `now_ns`.
    pub(super) fn all_tier_stats(&mut self, now_ns: u64) -> KvTierStats {
        let present = self.present_tier_stats(now_ns);
        present.map_or_else(KvTierStats::default, |present| self.totals.all_tier_stats(&present))
    }

    fn present_tier_stats(&mut self, now_ns: u64) -> Option<KvTierStats> {
        let tiers = self.tiers_mut()?;
        tiers.advance(now_ns);
        Some(tiers.stats())
    }

    /// Passes all prompts of the run to its cache, if its pool requires this.
    pub(crate) fn use_forecast(&mut self, forecast: &Arc<Forecast>) {
        if let Some(engine) = self.engine.as_vllm_mut().filter(|_| self.facts.foresees) {
            engine.pool_mut().use_forecast(forecast);
        }
    }

    /// The prompt of a request is scheduled somewhere, or it never will be.
    pub(crate) fn mark_scheduled(&mut self, tag: u64) {
        if let Some(engine) = self.engine.as_vllm_mut().filter(|_| self.facts.foresees) {
            engine.pool_mut().mark_scheduled(tag);
        }
    }

    /// Shows the KV events before `upto` in the pool's log that were not shown yet.
    pub(crate) fn show_kv_events(&mut self, upto: usize, show: impl FnMut(KvEvent<'_>)) {
        if let Some(events) = self.engine.kv_events() {
            events.read(&mut self.reported_kv_events, upto, show);
        }
    }

    pub(crate) fn num_kv_events(&self) -> usize {
        self.engine.kv_events().map_or(0, |events| events.len())
    }

    /// Their number after a step of the latest fast-forward.
    pub(crate) fn num_kv_events_by_step(&self, step: usize) -> Option<usize> {
        self.engine.as_vllm()?.fast_forward().events_by_step.get(step).map(|&upto| upto as usize)
    }

    /// Forgets the KV events of its pool.
    pub(crate) fn clear_kv_events(&mut self) {
        self.engine.clear_kv_events();
        self.reported_kv_events = KvEventCursor::default();
    }

    /// The observer needs its KV events no longer; its router may.
    pub(crate) fn stop_recording(&mut self) {
        if !self.facts.reports_to_router {
            self.engine.record_kv_events(false);
            self.reported_kv_events = KvEventCursor::default();
        }
    }
}
