//! Statistics that engines send with outputs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codec::derived::is_default;
use crate::codec::error::DecodeError;
use crate::codec::value::Raw;
use crate::codec::{serde_message, serde_wire};
use crate::versions::ProtocolRules;

/// The sources of a prompt's tokens. Sent with the first output of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefillStats {
    /// Number of prompt tokens.
    pub num_prompt_tokens: u64,
    /// Number of computed tokens.
    pub num_computed_tokens: u64,
    /// Number of tokens that were not computed: the sum of the next two fields.
    pub num_cached_tokens: u64,
    /// Number of tokens found in the engine's own cache.
    pub num_local_cached_tokens: u64,
    /// Number of tokens whose KV came from another engine.
    pub num_external_cached_tokens: u64,
    /// Number of tokens that were computed and cached.
    pub num_cache_creation_tokens: u64,
}

/// Speculative decoding of one request. Sent with its last output; from 0.29.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestSpecDecodeMetrics {
    /// Number of draft tokens in a full step.
    pub num_spec_tokens: u64,
    /// Number of steps by the number of accepted tokens.
    pub histogram: Vec<u64>,
    /// Number of draft tokens.
    pub num_draft_tokens: u64,
    /// Number of accepted tokens in each step.
    pub per_step_accepted: Vec<u64>,
    /// Number of draft tokens in each step.
    pub per_step_drafted: Vec<u64>,
}

/// Lookups in the prefix cache since the last statistics, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefixCacheStats {
    /// Whether the cache was reset.
    pub reset: bool,
    /// Number of requests that looked up their prompt.
    pub requests: u64,
    /// Number of tokens that they looked up.
    pub queries: u64,
    /// Number of tokens that they found.
    pub hits: u64,
    /// Number of requests that looked up their tokens again after a preemption.
    pub preempted_requests: u64,
    /// Number of tokens that these requests looked up.
    pub preempted_queries: u64,
    /// Number of tokens that these requests found.
    pub preempted_hits: u64,
    /// Hits by tier of an external cache; only in some versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits_by_source: Option<HitsBySource>,
}

/// Hits in tokens, by cache tier. Tiers without hits are omitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HitsBySource {
    /// GPU memory.
    #[serde(skip_serializing_if = "is_default")]
    pub device: u64,
    /// Host memory.
    #[serde(skip_serializing_if = "is_default")]
    pub host: u64,
    /// Another engine.
    #[serde(skip_serializing_if = "is_default")]
    pub p2p: u64,
    /// Disk.
    #[serde(skip_serializing_if = "is_default")]
    pub disk: u64,
    /// An unknown tier.
    #[serde(skip_serializing_if = "is_default")]
    pub external_unspecified: u64,
}

/// The work of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IterationDetails {
    /// Number of steps before this one.
    pub iteration_index: u64,
    /// Number of requests whose prompts were computed.
    pub num_ctx_requests: u64,
    /// Number of prompt tokens that were computed.
    pub num_ctx_tokens: u64,
    /// Number of requests that decoded.
    pub num_generation_requests: u64,
    /// Number of tokens that these requests computed.
    pub num_generation_tokens: u64,
    /// Duration of the step, in milliseconds.
    pub elapsed_ms: f64,
    /// Number of encoder inputs.
    pub num_encoder_inputs: u64,
    /// Number of tokens in the encoder's outputs.
    pub num_encoder_output_tokens: u64,
    /// Whether the engine had no work and stepped only because the other engines of its wave did.
    pub is_dummy: bool,
}

/// Speculative decoding since the last statistics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpecDecodingStats {
    /// Number of draft tokens in a full step.
    pub num_spec_tokens: u64,
    /// Number of drafts.
    pub num_drafts: u64,
    /// Number of draft tokens.
    pub num_draft_tokens: u64,
    /// Number of accepted tokens.
    pub num_accepted_tokens: u64,
    /// Number of accepted tokens by position.
    pub num_accepted_tokens_per_pos: Vec<u64>,
    /// Number of draft tokens by position.
    pub num_draft_tokens_per_pos: Vec<u64>,
}

/// The eviction of a block from the cache. Only a sample of blocks is reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvCacheEvictionEvent {
    /// Seconds since the block was allocated.
    pub lifetime_seconds: f64,
    /// Seconds since the block was last used.
    pub idle_seconds: f64,
    /// Seconds between the uses of the block.
    pub reuse_gaps_seconds: Vec<f64>,
}

/// Number of requests that wait for KV blocks of another engine, by stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvFetchStages {
    /// The transfer has not started.
    pub waiting_to_start: u64,
    /// The transfer is in progress.
    pub in_progress: u64,
    /// The transfer is complete, but the request is not scheduled yet.
    pub completed_waiting: u64,
}

/// The state of the scheduler in one step. vllm-rs refuses the message if a key that is always written here is
/// missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedulerStats {
    /// Number of requests in the running list.
    pub num_running_reqs: u64,
    /// Number of waiting requests; from 0.31 without the skipped ones.
    pub num_waiting_reqs: u64,
    /// Number of waiting requests that the scheduler skips for now.
    pub num_skipped_waiting_reqs: u64,
    /// Number of requests that wait for KV blocks of another engine; only in some versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_kv_fetch_reqs_by_stage: Option<KvFetchStages>,
    /// Number of steps in this wave, for the coordinator.
    pub step_counter: u64,
    /// Number of the wave, for the coordinator.
    pub current_wave: u64,
    /// Share of the KV blocks in use, from 0 to 1.
    pub kv_cache_usage: f64,
    /// The work of the step, if the engine reports it.
    pub iteration_details: Option<IterationDetails>,
    /// Lookups in the prefix cache.
    pub prefix_cache_stats: PrefixCacheStats,
    /// Lookups in the connector's cache.
    pub connector_prefix_cache_stats: Option<PrefixCacheStats>,
    /// Evictions of blocks from the cache.
    pub kv_cache_eviction_events: Vec<KvCacheEvictionEvent>,
    /// Speculative decoding; nil in a step without draft tokens.
    pub spec_decoding_stats: Option<SpecDecodingStats>,
    /// The KV connector's own statistics.
    pub kv_connector_stats: Option<Raw>,
    /// The encoder connector's own statistics.
    pub ec_connector_stats: Option<Raw>,
    /// Set by frontends.
    pub waiting_lora_adapters: BTreeMap<String, u64>,
    /// Set by frontends.
    pub running_lora_adapters: BTreeMap<String, u64>,
    /// Padding of steps to CUDA graphs.
    pub cudagraph_stats: Option<Raw>,
    /// Estimates of computed operations and moved bytes.
    pub perf_stats: Option<Raw>,
}

/// KV transfers since the last statistics, as vLLM's NIXL connector counts them: the value of `kv_connector_stats`.
/// The first four lists have an item for each successful transfer, the others an item for each event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NixlStats {
    /// Seconds from the start of a transfer to its end.
    pub transfer_duration: Vec<f64>,
    /// Seconds until the transfer had started.
    pub post_duration: Vec<f64>,
    /// Number of bytes in the transfer.
    pub bytes_transferred: Vec<u64>,
    /// Number of memory regions in the transfer.
    pub num_descriptors: Vec<u64>,
    /// Failed transfers.
    pub num_failed_transfers: Vec<u64>,
    /// Failed notices to prefill engines.
    pub num_failed_notifications: Vec<u64>,
    /// Failed connections to peers.
    pub num_failed_handshakes: Vec<u64>,
    /// Prompts whose lease ended before a decode engine came.
    pub num_kv_expired_reqs: Vec<u64>,
    /// Notices for prompts that are not held.
    pub num_notifications_after_expiry: Vec<u64>,
}

serde_message!(SchedulerStats: "scheduler_stats");
serde_wire!(PrefillStats, RequestSpecDecodeMetrics, SchedulerStats, NixlStats);

impl NixlStats {
    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The encoded value of `kv_connector_stats`.
    #[must_use]
    pub fn to_raw(&self) -> Raw {
        Raw::of_wire(self)
    }

    /// Decodes the value of `kv_connector_stats`.
    pub fn of_raw(raw: &Raw) -> Result<Self, DecodeError> {
        raw.wire("kv_connector_stats")
    }
}

impl SchedulerStats {
    /// Empty statistics, with the keys of a version.
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
