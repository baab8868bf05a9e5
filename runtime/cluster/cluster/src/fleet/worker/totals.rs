//! Totals of a worker over all its incarnations.

use vcr_core::latency::RangeUse;
use vcr_core::{EngineStats, KvTierStats};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkerTotals {
    pub(crate) busy_ns: u64,
    /// Time of waiting for other ranks' steps, with or without an own part of the step.
    pub(crate) waited_ns: u64,
    pub(crate) computed_tokens: u64,
    pub(crate) prefill_tokens: u64,
    pub(crate) peak_active_blocks: u32,
    pub(crate) crashes: u32,
    /// Statistics from before the measurement. `measured_from_ns` is the start of the measurement.
    unmeasured: EngineStats,
    unmeasured_tiers: KvTierStats,
    pub(crate) measured_from_ns: u64,
    lost: EngineStats,
    lost_tiers: KvTierStats,
    lost_range_use: Option<RangeUse>,
}

impl WorkerTotals {
    /// Adds the statistics of an engine whose process ended. `tiers` covers all incarnations so far.
    pub(super) fn lose(&mut self, engine: &EngineStats, tiers: KvTierStats) {
        combine(&mut self.lost, engine, u64::saturating_add);
        self.lost_tiers = tiers;
    }

    /// The statistics of all incarnations since the measurement began; `present` is the current one's.
    pub(super) fn engine_stats(&self, present: &EngineStats) -> EngineStats {
        let mut all = self.lost;
        combine(&mut all, present, u64::saturating_add);
        combine(&mut all, &self.unmeasured, u64::saturating_sub);
        all
    }

    /// Starts the measurement at `now_ns`. `engine` and `tiers` are the statistics so far.
    pub(super) fn begin_measuring(&mut self, now_ns: u64, engine: &EngineStats, tiers: KvTierStats) {
        let mut unmeasured = self.lost;
        combine(&mut unmeasured, engine, u64::saturating_add);
        *self = Self {
            unmeasured,
            unmeasured_tiers: tiers,
            measured_from_ns: now_ns,
            lost: self.lost,
            lost_tiers: self.lost_tiers,
            lost_range_use: self.lost_range_use,
            ..Self::default()
        };
    }

    /// Adds the range use of a replaced latency model.
    pub(super) fn lose_range_use(&mut self, model: Option<RangeUse>) {
        self.lost_range_use = self.range_use(model);
    }

    /// The range use of all latency models; `present` is the current one's.
    pub(super) fn range_use(&self, present: Option<RangeUse>) -> Option<RangeUse> {
        self.lost_range_use.into_iter().chain(present).reduce(RangeUse::plus)
    }

    /// The tier statistics of all incarnations; `present` is the current one's.
    pub(super) fn all_tier_stats(&self, present: &KvTierStats) -> KvTierStats {
        let mut all = self.lost_tiers;
        all.add(present);
        all
    }

    pub(super) fn tier_stats(&self, present: &KvTierStats) -> KvTierStats {
        self.all_tier_stats(present).since(&self.unmeasured_tiers)
    }
}

/// Combines each count of `from` into `into`, by addition or subtraction.
fn combine(into: &mut EngineStats, from: &EngineStats, by: fn(u64, u64) -> u64) {
    let each = |into: &mut u64, from: u64| *into = by(*into, from);
    each(&mut into.steps, from.steps);
    each(&mut into.preemptions, from.preemptions);
    each(&mut into.adapter_loads, from.adapter_loads);
    let (drafts, more) = (&mut into.spec_decode, &from.spec_decode);
    each(&mut drafts.num_drafts, more.num_drafts);
    each(&mut drafts.num_draft_tokens, more.num_draft_tokens);
    each(&mut drafts.num_accepted_tokens, more.num_accepted_tokens);
    let (encoder, more) = (&mut into.encoder, &from.encoder);
    each(&mut encoder.queries, more.queries);
    each(&mut encoder.hits, more.hits);
    each(&mut encoder.computed_items, more.computed_items);
    each(&mut encoder.computed_embeds, more.computed_embeds);
    for (into, from) in [(&mut into.prefix, &from.prefix), (&mut into.preempted_prefix, &from.preempted_prefix)] {
        each(&mut into.requests, from.requests);
        each(&mut into.queried_tokens, from.queried_tokens);
        each(&mut into.hit_tokens, from.hit_tokens);
    }
}
