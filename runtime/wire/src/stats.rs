//! Counts that travel with outputs.

use crate::codec::error::DecodeError;
use crate::codec::map_struct;
use crate::codec::value::{Raw, Value};
use crate::versions::ProtocolRules;

map_struct! {
    /// Where the tokens of a prompt came from. With the first output of a
    /// request.
    PrefillStats, "prefill_stats" {
        /// Tokens of the prompt.
        always num_prompt_tokens: u64 = 0,
        /// Tokens that were computed.
        always num_computed_tokens: u64 = 0,
        /// Tokens that were not: the sum of the next two.
        always num_cached_tokens: u64 = 0,
        /// Tokens found in the engine's own cache.
        always num_local_cached_tokens: u64 = 0,
        /// Tokens that another engine sent.
        always num_external_cached_tokens: u64 = 0,
        /// Tokens that were computed and cached.
        always num_cache_creation_tokens: u64 = 0,
    }
}

map_struct! {
    /// The statistics of a request's drafts. With its last output; from 0.29.
    RequestSpecDecodeMetrics, "spec_decode_metrics" {
        /// Drafted tokens of a full step.
        always num_spec_tokens: u64 = 0,
        /// Steps by the number of accepted tokens.
        always histogram: Vec<u64> = Vec::new(),
        /// Drafted tokens.
        always num_draft_tokens: u64 = 0,
        /// Accepted tokens of each step.
        always per_step_accepted: Vec<u64> = Vec::new(),
        /// Drafted tokens of each step.
        always per_step_drafted: Vec<u64> = Vec::new(),
    }
}

map_struct! {
    /// Lookups in the prefix cache since the last statistics, in tokens.
    PrefixCacheStats, "prefix_cache_stats" {
        /// Whether the cache was reset.
        always reset: bool = false,
        /// Requests that looked.
        always requests: u64 = 0,
        /// Tokens they asked for.
        always queries: u64 = 0,
        /// Tokens they found.
        always hits: u64 = 0,
        /// Requests that looked again after a preemption.
        always preempted_requests: u64 = 0,
        /// Tokens they asked for.
        always preempted_queries: u64 = 0,
        /// Tokens they found.
        always preempted_hits: u64 = 0,
        /// Hits by tier of an external cache; on some versions.
        sparse hits_by_source: Option<HitsBySource> = None,
    }
}

map_struct! {
    /// Hits in tokens, by the tier that had them. Tiers without hits are left
    /// out.
    HitsBySource, "hits_by_source" {
        /// The GPU.
        sparse device: u64 = 0,
        /// The memory of the host.
        sparse host: u64 = 0,
        /// Another engine.
        sparse p2p: u64 = 0,
        /// A disk.
        sparse disk: u64 = 0,
        /// Unknown.
        sparse external_unspecified: u64 = 0,
    }
}

map_struct! {
    /// The contents of one step.
    IterationDetails, "iteration_details" {
        /// Steps before this one.
        always iteration_index: u64 = 0,
        /// Requests whose prompt was computed.
        always num_ctx_requests: u64 = 0,
        /// Tokens of those.
        always num_ctx_tokens: u64 = 0,
        /// Requests that generated.
        always num_generation_requests: u64 = 0,
        /// Tokens of those.
        always num_generation_tokens: u64 = 0,
        /// Its duration, in milliseconds.
        always elapsed_ms: f64 = 0.0,
        /// Inputs of the encoder.
        always num_encoder_inputs: u64 = 0,
        /// Tokens of those.
        always num_encoder_output_tokens: u64 = 0,
        /// Whether it only kept the other engines of a wave company.
        always is_dummy: bool = false,
    }
}

map_struct! {
    /// The statistics of drafts since the last ones.
    SpecDecodingStats, "spec_decoding_stats" {
        /// Drafted tokens of a full step.
        always num_spec_tokens: u64 = 0,
        /// Drafts.
        always num_drafts: u64 = 0,
        /// Drafted tokens.
        always num_draft_tokens: u64 = 0,
        /// Accepted tokens.
        always num_accepted_tokens: u64 = 0,
        /// Accepted tokens by position.
        always num_accepted_tokens_per_pos: Vec<u64> = Vec::new(),
        /// Drafted tokens by position.
        always num_draft_tokens_per_pos: Vec<u64> = Vec::new(),
    }
}

map_struct! {
    /// A block that left the cache. Only sampled blocks are reported.
    KvCacheEvictionEvent, "kv_cache_eviction_events" {
        /// Seconds since it was allocated.
        always lifetime_seconds: f64 = 0.0,
        /// Seconds since it was last used.
        always idle_seconds: f64 = 0.0,
        /// Seconds between its uses.
        always reuse_gaps_seconds: Vec<f64> = Vec::new(),
    }
}

map_struct! {
    /// Requests that wait for KV blocks of another engine.
    KvFetchStages, "num_kv_fetch_reqs_by_stage" {
        /// Not begun.
        always waiting_to_start: u64 = 0,
        /// Under way.
        always in_progress: u64 = 0,
        /// Done, but not yet scheduled.
        always completed_waiting: u64 = 0,
    }
}

map_struct! {
    /// State of the scheduler, once a step. vllm-rs refuses the message without
    /// the keys that are always written here.
    SchedulerStats, "scheduler_stats" {
        /// Requests in the running list.
        always num_running_reqs: u64 = 0,
        /// Requests that wait; from 0.31 without the deferred ones.
        always num_waiting_reqs: u64 = 0,
        /// Requests that wait and are passed over for now.
        always num_skipped_waiting_reqs: u64 = 0,
        /// Requests that wait for KV blocks of another engine; on some versions.
        sparse num_kv_fetch_reqs_by_stage: Option<KvFetchStages> = None,
        /// Steps of this wave, for the coordinator.
        always step_counter: u64 = 0,
        /// The wave, for the coordinator.
        always current_wave: u64 = 0,
        /// Share of the KV blocks in use, from 0 to 1.
        always kv_cache_usage: f64 = 0.0,
        /// The contents of the step, if the engine is set to report them.
        always iteration_details: Option<IterationDetails> = None,
        /// Lookups in the prefix cache.
        always prefix_cache_stats: PrefixCacheStats = PrefixCacheStats::default(),
        /// Lookups in the connector's cache.
        always connector_prefix_cache_stats: Option<PrefixCacheStats> = None,
        /// Blocks that left the cache.
        always kv_cache_eviction_events: Vec<KvCacheEvictionEvent> = Vec::new(),
        /// The statistics of drafts; nil in a step without any.
        always spec_decoding_stats: Option<SpecDecodingStats> = None,
        /// The connector's own counts.
        always kv_connector_stats: Option<Raw> = None,
        /// The encoder connector's own counts.
        always ec_connector_stats: Option<Raw> = None,
        /// Filled in by frontends.
        always waiting_lora_adapters: Value = Value::Map(Vec::new()),
        /// Filled in by frontends.
        always running_lora_adapters: Value = Value::Map(Vec::new()),
        /// The padding of steps to recorded graphs.
        always cudagraph_stats: Option<Raw> = None,
        /// Estimates of operations and bytes.
        always perf_stats: Option<Raw> = None,
    }
}

map_struct! {
    /// Transfers of KV since the last statistics, as vLLM's NIXL connector counts them: the value of
    /// `kv_connector_stats`. The first four lists have an item for each transfer that has ended well, the others an
    /// item for each event.
    NixlStats, "kv_connector_stats" {
        /// Seconds from the start of a transfer to its end.
        always transfer_duration: Vec<f64> = Vec::new(),
        /// Seconds until it had started.
        always post_duration: Vec<f64> = Vec::new(),
        /// Its bytes.
        always bytes_transferred: Vec<u64> = Vec::new(),
        /// Its pieces of memory.
        always num_descriptors: Vec<u64> = Vec::new(),
        /// Transfers that failed.
        always num_failed_transfers: Vec<u64> = Vec::new(),
        /// Prefill engines that could not be notified.
        always num_failed_notifications: Vec<u64> = Vec::new(),
        /// Peers that could not be reached.
        always num_failed_handshakes: Vec<u64> = Vec::new(),
        /// Prompts whose lease ended before a decode engine came.
        always num_kv_expired_reqs: Vec<u64> = Vec::new(),
        /// Notices for prompts that are not held.
        always num_notifications_after_expiry: Vec<u64> = Vec::new(),
    }
}

impl NixlStats {
    /// Whether nothing has happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The value as statistics carry it.
    #[must_use]
    pub fn to_raw(&self) -> Raw {
        Raw::of_wire(self)
    }

    /// The counts in `raw`.
    ///
    /// # Errors
    ///
    /// When these are the counts of another connector.
    pub fn of_raw(raw: &Raw) -> Result<Self, DecodeError> {
        raw.wire("kv_connector_stats")
    }
}

impl SchedulerStats {
    /// Counts of nothing, with the keys that a version has.
    #[must_use]
    pub fn of_version(rules: &ProtocolRules) -> Self {
        let has = |key: &str| rules.scheduler_stats_keys.iter().any(|known| known == key);
        Self {
            num_kv_fetch_reqs_by_stage: has("num_kv_fetch_reqs_by_stage").then(KvFetchStages::default),
            prefix_cache_stats: PrefixCacheStats {
                hits_by_source: has("hits_by_source").then(HitsBySource::default),
                ..PrefixCacheStats::default()
            },
            ..Self::default()
        }
    }
}
