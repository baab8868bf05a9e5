//! Counts that travel with outputs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codec::derived::is_default;
use crate::codec::error::DecodeError;
use crate::codec::value::Raw;
use crate::codec::{serde_message, serde_wire};
use crate::versions::ProtocolRules;

/// Where the tokens of a prompt came from. With the first output of a
/// request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefillStats {
    /// Tokens of the prompt.
    pub num_prompt_tokens: u64,
    /// Tokens that were computed.
    pub num_computed_tokens: u64,
    /// Tokens that were not: the sum of the next two.
    pub num_cached_tokens: u64,
    /// Tokens found in the engine's own cache.
    pub num_local_cached_tokens: u64,
    /// Tokens that another engine sent.
    pub num_external_cached_tokens: u64,
    /// Tokens that were computed and cached.
    pub num_cache_creation_tokens: u64,
}

/// The statistics of a request's drafts. With its last output; from 0.29.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestSpecDecodeMetrics {
    /// Drafted tokens of a full step.
    pub num_spec_tokens: u64,
    /// Steps by the number of accepted tokens.
    pub histogram: Vec<u64>,
    /// Drafted tokens.
    pub num_draft_tokens: u64,
    /// Accepted tokens of each step.
    pub per_step_accepted: Vec<u64>,
    /// Drafted tokens of each step.
    pub per_step_drafted: Vec<u64>,
}

/// Lookups in the prefix cache since the last statistics, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefixCacheStats {
    /// Whether the cache was reset.
    pub reset: bool,
    /// Requests that looked.
    pub requests: u64,
    /// Their tokens.
    pub queries: u64,
    /// Tokens they found.
    pub hits: u64,
    /// Requests that looked again after a preemption.
    pub preempted_requests: u64,
    /// Their tokens.
    pub preempted_queries: u64,
    /// Tokens they found.
    pub preempted_hits: u64,
    /// Hits by tier of an external cache; on some versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits_by_source: Option<HitsBySource>,
}

/// Hits in tokens, by the tier that had them. Tiers without hits are left
/// out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HitsBySource {
    /// The GPU.
    #[serde(skip_serializing_if = "is_default")]
    pub device: u64,
    /// The memory of the host.
    #[serde(skip_serializing_if = "is_default")]
    pub host: u64,
    /// Another engine.
    #[serde(skip_serializing_if = "is_default")]
    pub p2p: u64,
    /// A disk.
    #[serde(skip_serializing_if = "is_default")]
    pub disk: u64,
    /// Unknown.
    #[serde(skip_serializing_if = "is_default")]
    pub external_unspecified: u64,
}

/// The contents of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IterationDetails {
    /// Steps before this one.
    pub iteration_index: u64,
    /// Requests whose prompt was computed.
    pub num_ctx_requests: u64,
    /// Tokens of these requests.
    pub num_ctx_tokens: u64,
    /// Requests that generated.
    pub num_generation_requests: u64,
    /// Tokens of these requests.
    pub num_generation_tokens: u64,
    /// Its duration, in milliseconds.
    pub elapsed_ms: f64,
    /// Inputs of the encoder.
    pub num_encoder_inputs: u64,
    /// Tokens of these requests.
    pub num_encoder_output_tokens: u64,
    /// Whether it only kept the other engines of a wave company.
    pub is_dummy: bool,
}

/// The statistics of drafts since the last ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpecDecodingStats {
    /// Drafted tokens of a full step.
    pub num_spec_tokens: u64,
    /// Drafts.
    pub num_drafts: u64,
    /// Drafted tokens.
    pub num_draft_tokens: u64,
    /// Accepted tokens.
    pub num_accepted_tokens: u64,
    /// Accepted tokens by position.
    pub num_accepted_tokens_per_pos: Vec<u64>,
    /// Drafted tokens by position.
    pub num_draft_tokens_per_pos: Vec<u64>,
}

/// A block that left the cache. Only sampled blocks are reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvCacheEvictionEvent {
    /// Seconds since it was allocated.
    pub lifetime_seconds: f64,
    /// Seconds since it was last used.
    pub idle_seconds: f64,
    /// Seconds between its uses.
    pub reuse_gaps_seconds: Vec<f64>,
}

/// Requests that wait for KV blocks of another engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvFetchStages {
    /// Not begun.
    pub waiting_to_start: u64,
    /// Under way.
    pub in_progress: u64,
    /// Done, but not yet scheduled.
    pub completed_waiting: u64,
}

/// State of the scheduler, once a step. vllm-rs refuses the message without
/// the keys that are always written here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedulerStats {
    /// Requests in the running list.
    pub num_running_reqs: u64,
    /// Requests that wait; from 0.31 without the deferred ones.
    pub num_waiting_reqs: u64,
    /// Requests that wait and are passed over for now.
    pub num_skipped_waiting_reqs: u64,
    /// Requests that wait for KV blocks of another engine; on some versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_kv_fetch_reqs_by_stage: Option<KvFetchStages>,
    /// Steps of this wave, for the coordinator.
    pub step_counter: u64,
    /// The wave, for the coordinator.
    pub current_wave: u64,
    /// Share of the KV blocks in use, from 0 to 1.
    pub kv_cache_usage: f64,
    /// The contents of the step, if the engine is set to report them.
    pub iteration_details: Option<IterationDetails>,
    /// Lookups in the prefix cache.
    pub prefix_cache_stats: PrefixCacheStats,
    /// Lookups in the connector's cache.
    pub connector_prefix_cache_stats: Option<PrefixCacheStats>,
    /// Blocks that left the cache.
    pub kv_cache_eviction_events: Vec<KvCacheEvictionEvent>,
    /// The statistics of drafts; nil in a step without any.
    pub spec_decoding_stats: Option<SpecDecodingStats>,
    /// The connector's own counts.
    pub kv_connector_stats: Option<Raw>,
    /// The encoder connector's own counts.
    pub ec_connector_stats: Option<Raw>,
    /// Filled in by frontends.
    pub waiting_lora_adapters: BTreeMap<String, u64>,
    /// Filled in by frontends.
    pub running_lora_adapters: BTreeMap<String, u64>,
    /// The padding of steps to recorded graphs.
    pub cudagraph_stats: Option<Raw>,
    /// Estimates of operations and bytes.
    pub perf_stats: Option<Raw>,
}

/// Transfers of KV since the last statistics, as vLLM's NIXL connector counts them: the value of
/// `kv_connector_stats`. The first four lists have an item for each transfer that has ended well, the others an
/// item for each event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NixlStats {
    /// Seconds from the start of a transfer to its end.
    pub transfer_duration: Vec<f64>,
    /// Seconds until it had started.
    pub post_duration: Vec<f64>,
    /// Its bytes.
    pub bytes_transferred: Vec<u64>,
    /// Its pieces of memory.
    pub num_descriptors: Vec<u64>,
    /// Transfers that failed.
    pub num_failed_transfers: Vec<u64>,
    /// Prefill engines that could not be notified.
    pub num_failed_notifications: Vec<u64>,
    /// Peers that could not be reached.
    pub num_failed_handshakes: Vec<u64>,
    /// Prompts whose lease ended before a decode engine came.
    pub num_kv_expired_reqs: Vec<u64>,
    /// Notices for prompts that are not held.
    pub num_notifications_after_expiry: Vec<u64>,
}

serde_message!(SchedulerStats: "scheduler_stats");
serde_wire!(PrefillStats, RequestSpecDecodeMetrics, SchedulerStats, NixlStats);

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
