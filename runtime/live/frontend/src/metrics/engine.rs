//! Records the metrics of one engine.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use vcr_base::finish_reason::FinishReason;
use vcr_wire::{NixlStats, PrefillStats, SchedulerStats};

use super::page::Metrics;
use super::series::EngineSeries;
use super::table::Name;

/// Records the metrics of one engine. Each series is looked up once, so that a token costs only a few atomic
/// additions. Clones share the series.
#[derive(Clone, Debug)]
pub struct EngineRecorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    series: EngineSeries,
    running: Gauge,
    waiting: Gauge,
    waiting_for_capacity: Gauge,
    waiting_deferred: Gauge,
    kv_cache_usage: Gauge<f64, AtomicU64>,
    generation_tokens: Counter,
    preemptions: Counter,
    iteration_tokens: Histogram,
    counts_all_failures: bool,
    of_sglang: Option<OfSglang>,
}

/// Additional metrics of an SGLang server.
#[derive(Debug)]
struct OfSglang {
    used_tokens: Gauge,
    max_tokens: Gauge,
    cache_hit_rate: Gauge<f64, AtomicU64>,
}

impl OfSglang {
    fn scheduler(&self, stats: &SchedulerStats) {
        self.used_tokens.set((stats.kv_cache_usage * self.max_tokens.get() as f64).round() as i64);
        let prefix = &stats.prefix_cache_stats;
        if prefix.queries > 0 {
            self.cache_hit_rate.set(prefix.hits as f64 / prefix.queries as f64);
        }
    }
}

/// Totals over all requests in one message of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iteration {
    /// Prompt tokens that were computed.
    pub computed_prompt_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
    pub preemptions: u64,
}

/// The durations of a finished request, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases {
    /// From arrival to the end.
    pub e2e_s: f64,
    /// From queueing to admission.
    pub queue_s: f64,
    /// From admission to the first token.
    pub prefill_s: f64,
    /// From the first token to the last.
    pub decode_s: f64,
    /// From admission to the last token.
    pub inference_s: f64,
    /// The mean time per token after the first.
    pub time_per_output_token_s: f64,
}

/// The counts of a finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    pub prompt_tokens: u64,
    /// Prompt tokens that were cached.
    pub cached_tokens: u64,
    /// Output tokens.
    pub generated_tokens: u64,
    /// The engine's `max_tokens` for the request.
    pub max_tokens: Option<u64>,
    pub preemptions: u64,
}

impl EngineRecorder {
    /// Creates the recorder of an engine.
    #[must_use]
    pub fn new(metrics: &Metrics, engine: u32) -> Self {
        let labels = metrics.engine_labels(engine);
        let waiting = |reason| {
            let labels = metrics.engine_labels_and(engine, "reason", reason);
            metrics.gauge(Name::NumRequestsWaitingByReason, &labels)
        };
        Self(Arc::new(Inner {
            series: EngineSeries::new(metrics, engine),
            running: metrics.gauge(Name::NumRequestsRunning, &labels),
            waiting: metrics.gauge(Name::NumRequestsWaiting, &labels),
            waiting_for_capacity: waiting("capacity"),
            waiting_deferred: waiting("deferred"),
            kv_cache_usage: metrics.ratio(Name::KvCacheUsagePerc, &labels),
            generation_tokens: metrics.counter(Name::GenerationTokens, &labels),
            preemptions: metrics.counter(Name::NumPreemptions, &labels),
            iteration_tokens: metrics.histogram(Name::IterationTokensTotal, &labels),
            counts_all_failures: metrics.is_of_python(),
            of_sglang: metrics.is_of_sglang().then(|| OfSglang {
                used_tokens: metrics.gauge(Name::NumUsedTokens, &labels),
                max_tokens: metrics.gauge(Name::MaxTotalNumTokens, &labels),
                cache_hit_rate: metrics.ratio(Name::CacheHitRate, &labels),
            }),
        }))
    }

    /// Records the scheduler's state after a step.
    pub fn scheduler(&self, stats: &SchedulerStats) {
        let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.0.running.set(whole(stats.num_running_reqs));
        self.0.waiting.set(whole(stats.num_waiting_reqs + stats.num_skipped_waiting_reqs));
        self.0.waiting_for_capacity.set(whole(stats.num_waiting_reqs));
        self.0.waiting_deferred.set(whole(stats.num_skipped_waiting_reqs));
        self.0.kv_cache_usage.set(stats.kv_cache_usage);
        if let Some(of_sglang) = &self.0.of_sglang {
            of_sglang.scheduler(stats);
        }
        let prefix = &stats.prefix_cache_stats;
        self.count(Name::PrefixCacheQueries, prefix.queries);
        self.count(Name::PrefixCacheHits, prefix.hits);
        self.count_by(Name::PromptTokensCachedBySource, "source", "device", prefix.hits);
        if let Some(external) = &stats.connector_prefix_cache_stats {
            self.count(Name::ExternalPrefixCacheQueries, external.queries);
            self.count(Name::ExternalPrefixCacheHits, external.hits);
            let by = external.hits_by_source.clone().unwrap_or_default();
            let known = by.host + by.p2p + by.disk;
            for (source, hits) in [
                ("host", by.host),
                ("p2p", by.p2p),
                ("disk", by.disk),
                ("external_unspecified", external.hits.saturating_sub(known)),
            ] {
                self.count_by(Name::PromptTokensCachedBySource, "source", source, hits);
            }
        }
        if let Some(Ok(transfers)) = stats.kv_connector_stats.as_ref().map(NixlStats::of_raw) {
            self.transfers(&transfers);
        }
        for event in &stats.kv_cache_eviction_events {
            self.observe(Name::KvBlockLifetimeSeconds, event.lifetime_seconds);
            self.observe(Name::KvBlockIdleBeforeEvictSeconds, event.idle_seconds);
            for gap in &event.reuse_gaps_seconds {
                self.observe(Name::KvBlockReuseGapSeconds, *gap);
            }
        }
        if let Some(drafts) = &stats.spec_decoding_stats {
            self.count(Name::SpecDecodeNumDrafts, drafts.num_drafts);
            self.count(Name::SpecDecodeNumDraftTokens, drafts.num_draft_tokens);
            self.count(Name::SpecDecodeNumAcceptedTokens, drafts.num_accepted_tokens);
            for (position, accepted) in drafts.num_accepted_tokens_per_pos.iter().enumerate() {
                self.count_by(Name::SpecDecodeNumAcceptedTokensPerPos, "position", &position.to_string(), *accepted);
            }
        }
    }

    /// Records KV transfers from and to other engines.
    fn transfers(&self, transfers: &NixlStats) {
        for (name, seconds) in [
            (Name::NixlXferTimeSeconds, &transfers.transfer_duration),
            (Name::NixlPostTimeSeconds, &transfers.post_duration),
        ] {
            seconds.iter().for_each(|seconds| self.observe(name, *seconds));
        }
        for (name, numbers) in [
            (Name::NixlBytesTransferred, &transfers.bytes_transferred),
            (Name::NixlNumDescriptors, &transfers.num_descriptors),
        ] {
            numbers.iter().for_each(|number| self.observe(name, *number as f64));
        }
        let count = |events: &[u64]| events.iter().sum::<u64>();
        let (failed, unnotified) = (&transfers.num_failed_transfers, &transfers.num_failed_notifications);
        // The Python frontend counts all failures in one metric.
        let also_failed =
            if self.0.counts_all_failures { count(unnotified) + count(&transfers.num_failed_handshakes) } else { 0 };
        self.count(Name::NixlNumFailedTransfers, count(failed) + also_failed);
        self.count(Name::NixlNumFailedNotifications, count(unnotified));
        self.count(Name::NixlNumKvExpiredReqs, count(&transfers.num_kv_expired_reqs));
    }

    /// Records a message with outputs. Messages without outputs are not counted.
    pub fn iteration(&self, iteration: &Iteration) {
        self.0.generation_tokens.inc_by(iteration.generated_tokens);
        self.0.preemptions.inc_by(iteration.preemptions);
        self.0.iteration_tokens.observe((iteration.computed_prompt_tokens + iteration.generated_tokens) as f64);
    }

    /// Records the first output of a request.
    pub fn first_token(&self, since_arrival_s: f64, prefill: Option<&PrefillStats>) {
        self.observe(Name::TimeToFirstTokenSeconds, since_arrival_s);
        self.add(Name::CorruptedRequests, 0);
        let Some(prefill) = prefill else { return };
        self.add(Name::PromptTokens, prefill.num_prompt_tokens);
        self.add(Name::PromptTokensCached, prefill.num_cached_tokens);
        for (source, tokens) in [
            ("local_compute", prefill.num_computed_tokens),
            ("local_cache_hit", prefill.num_local_cached_tokens),
            ("external_kv_transfer", prefill.num_external_cached_tokens),
        ] {
            self.add_by(Name::PromptTokensBySource, "source", source, tokens);
        }
    }

    /// The histogram of inter-token latency, for requests to keep.
    pub(crate) fn inter_token_latency(&self) -> Histogram {
        self.0.series.histogram(Name::InterTokenLatencySeconds).clone()
    }

    /// Records a finished request.
    pub fn finished(&self, reason: FinishReason, counts: &Finished, phases: &Phases) {
        self.add_by(Name::RequestSuccess, "finished_reason", reason.name(), 1);
        self.observe(Name::RequestPromptTokens, counts.prompt_tokens as f64);
        self.observe(Name::RequestGenerationTokens, counts.generated_tokens as f64);
        if let Some(max_tokens) = counts.max_tokens {
            self.observe(Name::RequestParamsMaxTokens, max_tokens as f64);
        }
        self.observe(Name::RequestNumPreemptions, counts.preemptions as f64);
        let computed = counts.prompt_tokens.saturating_sub(counts.cached_tokens);
        self.observe(Name::RequestPrefillKvComputedTokens, computed as f64);
        self.observe(Name::E2eRequestLatencySeconds, phases.e2e_s);
        self.observe(Name::RequestQueueTimeSeconds, phases.queue_s);
        self.observe(Name::RequestPrefillTimeSeconds, phases.prefill_s);
        self.observe(Name::RequestDecodeTimeSeconds, phases.decode_s);
        self.observe(Name::RequestInferenceTimeSeconds, phases.inference_s);
        self.observe(Name::RequestTimePerOutputTokenSeconds, phases.time_per_output_token_s);
    }

    /// Records a finished call: its `n`, and the number of tokens of its longest answer.
    pub fn call_finished(&self, n: u64, longest_choice_tokens: u64) {
        self.observe(Name::RequestParamsN, n as f64);
        self.observe(Name::RequestMaxNumGenerationTokens, longest_choice_tokens as f64);
    }

    /// Adds to a counter. An amount of 0 does not create the counter.
    pub(super) fn count(&self, name: Name, amount: u64) {
        if amount > 0 {
            self.add(name, amount);
        }
    }

    fn count_by(&self, name: Name, label: &'static str, value: &str, amount: u64) {
        if amount > 0 {
            self.add_by(name, label, value, amount);
        }
    }

    fn add(&self, name: Name, amount: u64) {
        self.0.series.counter(name).inc_by(amount);
    }

    fn add_by(&self, name: Name, label: &'static str, value: &str, amount: u64) {
        self.0.series.counter_by(name, label, value).inc_by(amount);
    }

    fn observe(&self, name: Name, value: f64) {
        self.0.series.histogram(name).observe(value);
    }
}
