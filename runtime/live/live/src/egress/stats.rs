//! Statistics sent with each step, as differences of the engine's totals.

use vcr_core::plan::StepPlan;
use vcr_core::{AnyEngine, Engine, EngineStats, ServingEngine as _};
use vcr_transfer::Moved;
use vcr_wire::{
    HitsBySource, IterationDetails, NixlStats, PrefixCacheStats, ProtocolRules, SchedulerStats, SpecDecodingStats,
};

/// The totals in the last message, and the counts since then.
pub(crate) struct StatsKeeper {
    reported: EngineStats,
    was_reset: bool,
    /// Recorded cache lookups since the last message.
    recorded: PrefixCacheStats,
    iteration_index: u64,
    /// Accepted draft tokens by their place, since the last message.
    accepted_at: Vec<u64>,
    connector: ConnectorStats,
    /// Reused for each step; has the keys of the version.
    message: SchedulerStats,
}

/// KV from other engines, since the last message.
#[derive(Default)]
struct ConnectorStats {
    /// Whether each admission looks for KV at other engines, because a plane moves KV.
    asks_always: bool,
    /// Whether the frontend accepts the connector's own counts.
    is_reported: bool,
    requests: u64,
    hit_tokens: u64,
    transfers: NixlStats,
}

impl ConnectorStats {
    /// Takes the lookups of KV at other engines; `own` are the lookups in this engine's cache.
    fn take_lookups(&mut self, own: &PrefixCacheStats, has_sources: bool) -> Option<PrefixCacheStats> {
        let (requests, hits) = (std::mem::take(&mut self.requests), std::mem::take(&mut self.hit_tokens));
        if !self.asks_always && requests == 0 {
            return None;
        }
        // Without prefix caching there are no lookups in the engine's own cache.
        let asks = self.asks_always && own.requests > 0;
        Some(PrefixCacheStats {
            requests: if asks { own.requests } else { requests },
            queries: if asks { own.queries.saturating_sub(own.hits) } else { hits },
            hits,
            preempted_requests: if asks { own.preempted_requests } else { 0 },
            preempted_queries: if asks { own.preempted_queries.saturating_sub(own.preempted_hits) } else { 0 },
            hits_by_source: has_sources.then(|| HitsBySource { p2p: hits, ..HitsBySource::default() }),
            ..PrefixCacheStats::default()
        })
    }
}

/// The current wave of a mixture of experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WavePlace {
    pub(crate) wave: u64,
    pub(crate) step: u64,
}

impl StatsKeeper {
    /// `asks_always`: each admission looks for KV at other engines. `reports_transfers`: the frontend accepts the
    /// connector's own counts.
    pub(crate) fn new(rules: &ProtocolRules, asks_always: bool, reports_transfers: bool) -> Self {
        Self {
            reported: EngineStats::default(),
            was_reset: false,
            recorded: PrefixCacheStats::default(),
            iteration_index: 0,
            accepted_at: Vec::new(),
            connector: ConnectorStats { asks_always, is_reported: reports_transfers, ..ConnectorStats::default() },
            message: SchedulerStats::of_version(rules),
        }
    }

    /// Uses the message keys of another version.
    pub(crate) fn set_version(&mut self, rules: &ProtocolRules) {
        self.message = SchedulerStats::of_version(rules);
    }

    /// Records a reset of the prefix cache.
    pub(crate) fn cache_reset(&mut self) {
        self.was_reset = true;
    }

    /// Counts the recorded prefix cache lookup of a played-back request.
    pub(crate) fn looked_up(&mut self, prompt_tokens: u64, cached_tokens: u64) {
        self.recorded.requests += 1;
        self.recorded.queries += prompt_tokens;
        self.recorded.hits += cached_tokens;
    }

    /// Counts a request that gets the KV of this many tokens from another engine.
    pub(crate) fn found_elsewhere(&mut self, tokens: u32) {
        self.connector.requests += 1;
        self.connector.hit_tokens += u64::from(tokens);
    }

    /// Records KV that has arrived from another engine.
    pub(crate) fn moved(&mut self, moved: &Moved) {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let transfers = &mut self.connector.transfers;
        transfers.transfer_duration.push(seconds(moved.move_ns));
        transfers.post_duration.push(seconds(moved.queue_ns));
        transfers.bytes_transferred.push(moved.bytes);
        transfers.num_descriptors.push(moved.pages);
    }

    pub(crate) fn transfers(&mut self) -> &mut NixlStats {
        &mut self.connector.transfers
    }

    pub(crate) fn reports_transfers(&self) -> bool {
        self.connector.is_reported
    }

    /// Counts the verification of one request's draft tokens, of which `accepted` were accepted.
    pub(crate) fn drafts_verified(&mut self, accepted: u32) {
        let accepted = accepted as usize;
        if self.accepted_at.len() < accepted {
            self.accepted_at.resize(accepted, 0);
        }
        for count in &mut self.accepted_at[..accepted] {
            *count += 1;
        }
    }

    /// Counts the step `plan`, which took `elapsed_ns`, and returns its details.
    pub(crate) fn iteration(&mut self, plan: &StepPlan, elapsed_ns: u64) -> IterationDetails {
        let mut details = IterationDetails {
            iteration_index: self.iteration_index,
            elapsed_ms: elapsed_ns as f64 / 1e6,
            ..IterationDetails::default()
        };
        self.iteration_index += 1;
        for entry in &plan.scheduled {
            let tokens = u64::from(entry.num_scheduled_tokens);
            if entry.is_prefill {
                details.num_ctx_requests += 1;
                details.num_ctx_tokens += tokens;
            } else {
                details.num_generation_requests += 1;
                details.num_generation_tokens += tokens;
            }
        }
        details
    }

    /// The current statistics, including `(waiting, running)` requests that the engine does not know. Restarts the
    /// deltas.
    pub(crate) fn take(
        &mut self,
        engine: &AnyEngine,
        (also_waiting, also_running): (usize, usize),
        place: WavePlace,
        details: Option<IterationDetails>,
    ) -> &SchedulerStats {
        let now = *engine.stats();
        let reported = std::mem::replace(&mut self.reported, now);
        let load = engine.load();
        let skipped = engine.as_vllm().map_or(0, Engine::num_skipped_waiting) as u64;
        let message = &mut self.message;
        message.num_running_reqs = (load.num_running + also_running) as u64;
        message.num_skipped_waiting_reqs = skipped;
        message.num_waiting_reqs = ((load.num_waiting + also_waiting) as u64).saturating_sub(skipped);
        message.kv_cache_usage = usage(engine);
        (message.current_wave, message.step_counter) = (place.wave, place.step);
        message.iteration_details = details;
        let hits_by_source = message.prefix_cache_stats.hits_by_source.take();
        let recorded = std::mem::take(&mut self.recorded);
        message.prefix_cache_stats = PrefixCacheStats {
            reset: std::mem::take(&mut self.was_reset),
            requests: now.prefix.requests - reported.prefix.requests + recorded.requests,
            queries: now.prefix.queried_tokens - reported.prefix.queried_tokens + recorded.queries,
            hits: now.prefix.hit_tokens - reported.prefix.hit_tokens + recorded.hits,
            preempted_requests: now.preempted_prefix.requests - reported.preempted_prefix.requests,
            preempted_queries: now.preempted_prefix.queried_tokens - reported.preempted_prefix.queried_tokens,
            preempted_hits: now.preempted_prefix.hit_tokens - reported.preempted_prefix.hit_tokens,
            hits_by_source,
        };
        let has_sources = message.prefix_cache_stats.hits_by_source.is_some();
        message.connector_prefix_cache_stats = self.connector.take_lookups(&message.prefix_cache_stats, has_sources);
        let transfers = std::mem::take(&mut self.connector.transfers);
        message.kv_connector_stats = (self.connector.is_reported && !transfers.is_empty()).then(|| transfers.to_raw());
        let drafts = now.spec_decode.num_drafts - reported.spec_decode.num_drafts;
        message.spec_decoding_stats = (drafts > 0).then(|| {
            let k = engine.as_vllm().map_or(0, |engine| engine.config().num_speculative_tokens());
            self.accepted_at.resize(k as usize, 0);
            SpecDecodingStats {
                num_spec_tokens: k.into(),
                num_drafts: drafts,
                num_draft_tokens: now.spec_decode.num_draft_tokens - reported.spec_decode.num_draft_tokens,
                num_accepted_tokens: now.spec_decode.num_accepted_tokens - reported.spec_decode.num_accepted_tokens,
                num_accepted_tokens_per_pos: std::mem::take(&mut self.accepted_at),
                ..SpecDecodingStats::default()
            }
        });
        &self.message
    }
}

/// Share of the KV blocks in use.
pub(crate) fn usage(engine: &AnyEngine) -> f64 {
    let load = engine.load();
    f64::from(load.num_active_blocks) / f64::from(load.num_usable_blocks.max(1))
}
