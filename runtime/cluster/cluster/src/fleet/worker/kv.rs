//! The externally visible KV of a worker: KV events of its cache, and its KV tiers.

use std::sync::Arc;

use vcr_core::hash::BlockHash;
use vcr_core::kv_event::{KvEvent, KvEventCursor};
use vcr_core::{Engine, Forecast, KvTierChange, KvTierStats, KvTiers, ServingEngine, TierRun};

use super::Worker;

impl Worker {
    pub(super) fn tiers_mut(&mut self) -> Option<&mut KvTiers> {
        self.engine.as_vllm_mut().and_then(Engine::kv_tiers_mut)
    }

    /// Takes the pool's shared tiers if the worker holds them.
    pub(super) fn take_tiers(&mut self) -> Option<Box<KvTiers>> {
        self.engine.as_vllm_mut().and_then(Engine::take_kv_tiers)
    }

    /// Gives the shared tiers to the worker.
    pub(super) fn give_tiers(&mut self, mut tiers: Option<Box<KvTiers>>) {
        if let Some(tiers) = &mut tiers {
            tiers.enter(self.tier_client);
        }
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.give_kv_tiers(tiers);
        }
    }

    /// Replaces the worker's own tiers by shared ones.
    pub(super) fn join_tiers(&mut self, tiers: &mut KvTiers) {
        self.give_tiers(None);
        self.tier_client = tiers.add_client();
        tiers.enter(self.tier_client);
        tiers.record_changes(self.facts.reports_to_router);
    }

    /// Makes the workers of a pool share the tiers of the first worker.
    pub(crate) fn share_tiers(pool: &mut [Self]) {
        let Some((first, others)) = pool.split_first_mut() else { return };
        let Some(mut tiers) = first.take_tiers() else { return };
        others.iter_mut().for_each(|worker| worker.join_tiers(&mut tiers));
        first.give_tiers(Some(tiers));
    }

    /// Moves shared tiers to another worker of the pool.
    pub(crate) fn hand_tiers(&mut self, other: &mut Self) {
        other.give_tiers(self.take_tiers());
    }

    fn has_tiers(&self) -> bool {
        self.engine.as_vllm().is_some_and(|engine| engine.kv_tiers().is_some())
    }

    /// Calls `act` with each worker of a pool while the worker holds its tiers.
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

    /// Advances loads from the worker's tiers, and adds the requests whose load is complete to `loaded`.
    pub(crate) fn advance_loads(&mut self, now_ns: u64, loaded: &mut Vec<u64>) {
        self.waits.look_at_loads();
        if let Some(engine) = self.engine.as_vllm_mut() {
            engine.advance_tiers(now_ns, loaded);
        }
    }

    /// Whether a request waits for another request's transfer between the worker's tiers.
    pub(crate) fn has_deferred_lookups(&self) -> bool {
        self.engine.as_vllm().is_some_and(Engine::has_deferred_lookups)
    }

    /// Whether requests of other workers that share the tiers wait for a store.
    pub(crate) fn others_await_stores(&self) -> bool {
        let tiers = self.engine.as_vllm().and_then(Engine::kv_tiers);
        tiers.is_some_and(KvTiers::others_await_stores)
    }

    /// The time at which a load from the tiers advances next, unless an event for it is already scheduled.
    pub(crate) fn expect_load_ns(&mut self) -> Option<u64> {
        let at_ns = self.engine.as_vllm()?.kv_tiers()?.next_load_ns()?;
        self.waits.expect_load(at_ns)
    }

    /// Finds the leading blocks of a prompt that the tiers hold.
    pub(crate) fn find_tier_run(&mut self, now_ns: u64, blocks: &[BlockHash]) -> TierRun {
        self.tiers_mut().map_or_else(TierRun::default, |tiers| {
            tiers.advance(now_ns);
            tiers.find_run(blocks)
        })
    }

    /// Shows the blocks that were added to or removed from the tiers since the last call.
    pub(crate) fn take_tier_changes(&mut self, now_ns: u64, show: impl FnMut(KvTierChange)) {
        if let Some(tiers) = self.tiers_mut() {
            tiers.advance(now_ns);
            tiers.take_changes().for_each(show);
        }
    }

    /// Totals of the tiers over all incarnations, from the beginning of the measurement until `now_ns`. None
    /// without tiers.
    pub(crate) fn tier_stats(&mut self, now_ns: u64) -> Option<KvTierStats> {
        let present = self.present_tier_stats(now_ns)?;
        Some(self.totals.tier_stats(&present))
    }

    /// Totals of the tiers over all incarnations until `now_ns`.
    pub(super) fn all_tier_stats(&mut self, now_ns: u64) -> KvTierStats {
        let present = self.present_tier_stats(now_ns);
        present.map_or_else(KvTierStats::default, |present| self.totals.all_tier_stats(&present))
    }

    fn present_tier_stats(&mut self, now_ns: u64) -> Option<KvTierStats> {
        let tiers = self.tiers_mut()?;
        tiers.advance(now_ns);
        Some(tiers.stats())
    }

    /// Passes the future prompts of the run to the cache, if the pool's eviction policy needs them.
    pub(crate) fn use_forecast(&mut self, forecast: &Arc<Forecast>) {
        if let Some(engine) = self.engine.as_vllm_mut().filter(|_| self.facts.uses_forecast) {
            engine.pool_mut().use_forecast(forecast);
        }
    }

    /// Tells the cache that the prompt of a request was scheduled on some worker, or never will be.
    pub(crate) fn mark_scheduled(&mut self, tag: u64) {
        if let Some(engine) = self.engine.as_vllm_mut().filter(|_| self.facts.uses_forecast) {
            engine.pool_mut().mark_scheduled(tag);
        }
    }

    /// Shows the KV events before `upto` in the pool's log that were not shown before.
    pub(crate) fn show_kv_events(&mut self, upto: usize, show: impl FnMut(KvEvent<'_>)) {
        if let Some(events) = self.engine.kv_events() {
            events.read(&mut self.reported_kv_events, upto, show);
        }
    }

    pub(crate) fn num_kv_events(&self) -> usize {
        self.engine.kv_events().map_or(0, |events| events.len())
    }

    /// The number of KV events after a step of the latest fast-forward.
    pub(crate) fn num_kv_events_by_step(&self, step: usize) -> Option<usize> {
        self.engine.as_vllm()?.fast_forward().events_by_step.get(step).map(|&upto| upto as usize)
    }

    pub(crate) fn clear_kv_events(&mut self) {
        self.engine.clear_kv_events();
        self.reported_kv_events = KvEventCursor::default();
    }

    /// Stops recording KV events for the observer. They are still recorded if the router needs them.
    pub(crate) fn stop_recording(&mut self) {
        if !self.facts.reports_to_router {
            self.engine.record_kv_events(false);
            self.reported_kv_events = KvEventCursor::default();
        }
    }
}
