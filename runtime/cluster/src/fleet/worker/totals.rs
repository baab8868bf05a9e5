//! Totals of a worker over all its incarnations.

use vcr_core::latency::RangeUse;
use vcr_core::{EngineStats, KvTierStats};

/// Totals of a worker over all its incarnations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkerTotals {
    pub(crate) busy_ns: u64,
    /// Time in steps of other ranks, after its own part or without one.
    pub(crate) waited_ns: u64,
    pub(crate) computed_tokens: u64,
    pub(crate) prefill_tokens: u64,
    pub(crate) peak_active_blocks: u32,
    pub(crate) crashes: u32,
    lost: EngineStats,
    lost_tiers: KvTierStats,
    lost_range_use: Option<RangeUse>,
}

impl WorkerTotals {
    /// Adds the statistics of an engine that is gone. `tiers` are those of all incarnations
    /// until now.
    pub(super) fn lose(&mut self, engine: &EngineStats, tiers: KvTierStats) {
        add_stats(&mut self.lost, engine);
        self.lost_tiers = tiers;
    }

    /// The statistics of all engines, of which `present` is the last.
    pub(super) fn engine_stats(&self, present: &EngineStats) -> EngineStats {
        let mut all = self.lost;
        add_stats(&mut all, present);
        all
    }

    /// Adds the range use of a latency model that is gone.
    pub(super) fn lose_range_use(&mut self, model: Option<RangeUse>) {
        self.lost_range_use = self.range_use(model);
    }

    /// The range use of all latency models, of which `present` is the last.
    pub(super) fn range_use(&self, present: Option<RangeUse>) -> Option<RangeUse> {
        self.lost_range_use.into_iter().chain(present).reduce(RangeUse::plus)
    }

    /// The statistics of all tiers, of which `present` are the last.
    pub(super) fn tier_stats(&self, present: &KvTierStats) -> KvTierStats {
        let mut all = self.lost_tiers;
        all.add(present);
        all
    }
}

fn add_stats(into: &mut EngineStats, from: &EngineStats) {
    into.steps += from.steps;
    into.preemptions += from.preemptions;
    let (drafts, more) = (&mut into.spec_decode, &from.spec_decode);
    drafts.num_drafts += more.num_drafts;
    drafts.num_draft_tokens += more.num_draft_tokens;
    drafts.num_accepted_tokens += more.num_accepted_tokens;
    let (encoder, more) = (&mut into.encoder, &from.encoder);
    encoder.queries += more.queries;
    encoder.hits += more.hits;
    encoder.computed_items += more.computed_items;
    encoder.computed_embeds += more.computed_embeds;
    for (into, from) in [(&mut into.prefix, &from.prefix), (&mut into.preempted_prefix, &from.preempted_prefix)] {
        into.requests += from.requests;
        into.queried_tokens += from.queried_tokens;
        into.hit_tokens += from.hit_tokens;
    }
}
