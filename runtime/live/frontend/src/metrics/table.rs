//! The table of all metrics: names, types, buckets and help of vLLM 0.33's Rust frontend, followed by our own.

use super::buckets::Buckets;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A gauge with integer values.
    Gauge,
    /// A gauge with floating-point values.
    Ratio,
    /// A counter. Its samples end in `_total`.
    Counter,
    /// A counter of seconds.
    Seconds,
    Histogram(Buckets),
}

/// The series that a metric has from the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Series {
    /// No series.
    Later,
    Process,
    /// One series per engine.
    One,
    /// One series per engine and value of this label.
    ByLabel(&'static str, &'static [&'static str]),
    /// One series per combination of these labels' values, shared by all engines.
    OfModel(&'static [(&'static str, &'static [&'static str])]),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// The name, without the suffix of counters.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// The series from the start.
    pub series: Series,
    /// The help text. The exposition appends a full stop.
    pub help: &'static str,
}

/// Declares each metric once, and derives the index and the table from that.
macro_rules! metrics {
    ($($index:ident, $name:literal, $kind:expr, $series:expr, $help:literal;)*) => {
        /// The index of a metric in [`TABLE`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the help of each is in the table")]
        pub enum Name {
            $($index,)*
        }

        /// All metrics, in the order of the exposition.
        pub const TABLE: &[Metric] = {
            use Kind::{Counter, Gauge, Histogram, Ratio, Seconds};
            &[$(Metric { name: $name, kind: $kind, series: $series, help: $help },)*]
        };

        /// All indexes, in order.
        pub(super) const NAMES: &[Name] = &[$(Name::$index,)*];
    };
}

metrics! {
    NumRequestsRunning, "vllm:num_requests_running", Gauge, Series::One,
        "Number of requests in model execution batches";
    NumRequestsWaiting, "vllm:num_requests_waiting", Gauge, Series::One,
        "Number of requests waiting to be processed";
    NumRequestsWaitingByReason, "vllm:num_requests_waiting_by_reason", Gauge, Series::ByLabel("reason", &["capacity", "deferred"]),
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.";
    KvCacheUsagePerc, "vllm:kv_cache_usage_perc", Ratio, Series::One,
        "KV-cache usage. 1 means 100 percent usage";
    LoraRequestsInfo, "vllm:lora_requests_info", Ratio, Series::Later,
        "Running stats on lora requests.";
    PrefixCacheQueries, "vllm:prefix_cache_queries", Counter, Series::One,
        "Prefix cache queries, in terms of number of queried tokens";
    PrefixCacheHits, "vllm:prefix_cache_hits", Counter, Series::One,
        "Prefix cache hits, in terms of number of cached tokens.";
    ExternalPrefixCacheQueries, "vllm:external_prefix_cache_queries", Counter, Series::One,
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.";
    PromptTokensCachedBySource, "vllm:prompt_tokens_cached_by_source", Counter, Series::ByLabel("source", &["device", "disk", "external_unspecified", "host", "p2p"]),
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.";
    ExternalPrefixCacheHits, "vllm:external_prefix_cache_hits", Counter, Series::One,
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.";
    SpecDecodeNumDrafts, "vllm:spec_decode_num_drafts", Counter, Series::One,
        "Number of spec decoding drafts.";
    SpecDecodeNumDraftTokens, "vllm:spec_decode_num_draft_tokens", Counter, Series::One,
        "Number of draft tokens.";
    SpecDecodeNumAcceptedTokens, "vllm:spec_decode_num_accepted_tokens", Counter, Series::One,
        "Number of accepted tokens.";
    SpecDecodeNumAcceptedTokensPerPos, "vllm:spec_decode_num_accepted_tokens_per_pos", Counter, Series::Later,
        "Accepted tokens per draft position.";
    EstimatedFlopsPerGpu, "vllm:estimated_flops_per_gpu", Counter, Series::One,
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).";
    EstimatedReadBytesPerGpu, "vllm:estimated_read_bytes_per_gpu", Counter, Series::One,
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).";
    EstimatedWriteBytesPerGpu, "vllm:estimated_write_bytes_per_gpu", Counter, Series::One,
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).";
    KvBlockLifetimeSeconds, "vllm:kv_block_lifetime_seconds", Histogram(Buckets::KvCacheResidency), Series::One,
        "Histogram of KV cache block lifetime from allocation to eviction. Sampled metrics (controlled by --kv-cache-metrics-sample).";
    KvBlockIdleBeforeEvictSeconds, "vllm:kv_block_idle_before_evict_seconds", Histogram(Buckets::KvCacheResidency), Series::One,
        "Histogram of idle time before KV cache block eviction. Sampled metrics (controlled by --kv-cache-metrics-sample).";
    KvBlockReuseGapSeconds, "vllm:kv_block_reuse_gap_seconds", Histogram(Buckets::KvCacheResidency), Series::One,
        "Histogram of time gaps between consecutive KV cache block accesses. Only the most recent accesses are recorded (ring buffer). Sampled metrics (controlled by --kv-cache-metrics-sample).";
    MooncakeStoreOperationTimeSeconds, "vllm:mooncake_store_operation_time_seconds", Histogram(Buckets::TransferTime), Series::Later,
        "Histogram of Mooncake store communication time.";
    MooncakeStoreOperation, "vllm:mooncake_store_operation", Counter, Series::Later,
        "Number of Mooncake store communication operations.";
    MooncakeStoreOperationKeys, "vllm:mooncake_store_operation_keys", Counter, Series::Later,
        "Number of Mooncake store keys touched by operations.";
    MooncakeStoreOperationBytes, "vllm:mooncake_store_operation_bytes", Counter, Series::Later,
        "Number of bytes transferred by Mooncake store operations.";
    MooncakeStoreOperationFailedKeys, "vllm:mooncake_store_operation_failed_keys", Counter, Series::Later,
        "Number of Mooncake store keys that failed in operations.";
    MooncakeXferTimeSeconds, "vllm:mooncake_xfer_time_seconds", Histogram(Buckets::TransferTime), Series::One,
        "Histogram of transfer duration for Mooncake KV Cache transfers.";
    MooncakeBytesTransferred, "vllm:mooncake_bytes_transferred", Histogram(Buckets::TransferBytes), Series::One,
        "Histogram of bytes transferred per Mooncake KV Cache transfer.";
    MooncakeNumDescriptors, "vllm:mooncake_num_descriptors", Histogram(Buckets::Descriptors), Series::One,
        "Histogram of number of descriptors per Mooncake KV Cache transfer.";
    MooncakeNumFailedTransfers, "vllm:mooncake_num_failed_transfers", Counter, Series::One,
        "Number of failed Mooncake KV Cache transfers.";
    MooncakeNumFailedRecvs, "vllm:mooncake_num_failed_recvs", Counter, Series::One,
        "Number of failed Mooncake KV Cache receives.";
    MooncakeNumKvExpiredReqs, "vllm:mooncake_num_kv_expired_reqs", Counter, Series::One,
        "Number of requests that had their KV expire. NOTE: This metric is tracked on the P instance.";
    NixlXferTimeSeconds, "vllm:nixl_xfer_time_seconds", Histogram(Buckets::TransferTime), Series::One,
        "Histogram of transfer duration for NIXL KV Cache transfers.";
    NixlPostTimeSeconds, "vllm:nixl_post_time_seconds", Histogram(Buckets::PostTime), Series::One,
        "Histogram of transfer post time for NIXL KV Cache transfers.";
    NixlBytesTransferred, "vllm:nixl_bytes_transferred", Histogram(Buckets::TransferBytes), Series::One,
        "Histogram of bytes transferred per NIXL KV Cache transfers.";
    NixlNumDescriptors, "vllm:nixl_num_descriptors", Histogram(Buckets::Descriptors), Series::One,
        "Histogram of number of descriptors per NIXL KV Cache transfers.";
    NixlNumFailedTransfers, "vllm:nixl_num_failed_transfers", Counter, Series::One,
        "Number of failed NIXL KV Cache transfers.";
    NixlNumFailedNotifications, "vllm:nixl_num_failed_notifications", Counter, Series::One,
        "Number of failed NIXL KV Cache notifications.";
    NixlNumKvExpiredReqs, "vllm:nixl_num_kv_expired_reqs", Counter, Series::One,
        "Number of requests that had their KV expire. NOTE: This metric is tracked on the P instance.";
    IterationTokensTotal, "vllm:iteration_tokens_total", Histogram(Buckets::IterationTokens), Series::One,
        "Histogram of computed prompt and generated tokens per nonempty engine output batch.";
    NumPreemptions, "vllm:num_preemptions", Counter, Series::One,
        "Cumulative number of preemption events.";
    PromptTokens, "vllm:prompt_tokens", Counter, Series::Later,
        "Number of prefill tokens processed.";
    PromptTokensBySource, "vllm:prompt_tokens_by_source", Counter, Series::ByLabel("source", &["local_compute"]),
        "Number of prompt tokens by source.";
    PromptTokensCached, "vllm:prompt_tokens_cached", Counter, Series::Later,
        "Number of prompt tokens with prefix cache hits.";
    GenerationTokens, "vllm:generation_tokens", Counter, Series::One,
        "Number of generation tokens processed.";
    CorruptedRequests, "vllm:corrupted_requests", Counter, Series::Later,
        "Corrupted requests, in terms of total number of requests with NaNs in logits.";
    RequestSuccess, "vllm:request_success", Counter, Series::Later,
        "Count of successfully processed requests.";
    RequestPromptTokens, "vllm:request_prompt_tokens", Histogram(Buckets::RequestTokens), Series::Later,
        "Number of prefill tokens processed.";
    RequestGenerationTokens, "vllm:request_generation_tokens", Histogram(Buckets::RequestTokens), Series::Later,
        "Number of generation tokens processed.";
    RequestMaxNumGenerationTokens, "vllm:request_max_num_generation_tokens", Histogram(Buckets::RequestTokens), Series::Later,
        "Histogram of maximum number of requested generation tokens.";
    RequestParamsMaxTokens, "vllm:request_params_max_tokens", Histogram(Buckets::RequestTokens), Series::Later,
        "Histogram of the max_tokens request parameter.";
    RequestParamsN, "vllm:request_params_n", Histogram(Buckets::RequestParamsN), Series::Later,
        "Histogram of the n request parameter.";
    RequestNumPreemptions, "vllm:request_num_preemptions", Histogram(Buckets::RequestNumPreemptions), Series::Later,
        "Histogram of the number of times a request was preempted.";
    RequestPrefillKvComputedTokens, "vllm:request_prefill_kv_computed_tokens", Histogram(Buckets::RequestTokens), Series::Later,
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).";
    TimeToFirstTokenSeconds, "vllm:time_to_first_token_seconds", Histogram(Buckets::TimeToFirstToken), Series::Later,
        "Histogram of time to first token in seconds.";
    InterTokenLatencySeconds, "vllm:inter_token_latency_seconds", Histogram(Buckets::InterTokenLatency), Series::Later,
        "Histogram of inter-token latency in seconds.";
    E2eRequestLatencySeconds, "vllm:e2e_request_latency_seconds", Histogram(Buckets::RequestLatency), Series::Later,
        "Histogram of e2e request latency in seconds.";
    RequestQueueTimeSeconds, "vllm:request_queue_time_seconds", Histogram(Buckets::RequestLatency), Series::Later,
        "Histogram of time spent in WAITING phase for request.";
    RequestPrefillTimeSeconds, "vllm:request_prefill_time_seconds", Histogram(Buckets::RequestLatency), Series::Later,
        "Histogram of time spent in PREFILL phase for request.";
    RequestDecodeTimeSeconds, "vllm:request_decode_time_seconds", Histogram(Buckets::RequestLatency), Series::Later,
        "Histogram of time spent in DECODE phase for request.";
    RequestInferenceTimeSeconds, "vllm:request_inference_time_seconds", Histogram(Buckets::RequestLatency), Series::Later,
        "Histogram of time spent in RUNNING phase for request.";
    RequestTimePerOutputTokenSeconds, "vllm:request_time_per_output_token_seconds", Histogram(Buckets::InterTokenLatency), Series::Later,
        "Histogram of time_per_output_token_seconds per request.";
    HttpRequests, "http_requests", Counter, Series::Later,
        "Total number of HTTP requests by method, status, and handler.";
    HttpRequestDurationSeconds, "http_request_duration_seconds", Histogram(Buckets::HttpDuration), Series::Later,
        "Duration of HTTP requests in seconds grouped by method and handler.";
    HttpRequestDurationHighrSeconds, "http_request_duration_highr_seconds", Histogram(Buckets::HttpDurationFine), Series::Process,
        "High-resolution duration of HTTP requests in seconds.";
    RlWeightUpdateOperationDurationSeconds, "vllm:rl_weight_update_operation_duration_seconds", Histogram(Buckets::Operation), Series::Later,
        "Duration of one weight-transfer operation.";
    RlWeightUpdateOperationsInFlight, "vllm:rl_weight_update_operations_in_flight", Gauge, Series::Later,
        "Weight-transfer operations currently awaited.";
    SleepModeOperationDurationSeconds, "vllm:sleep_mode_operation_duration_seconds", Histogram(Buckets::Operation), Series::Later,
        "Duration of one sleep-mode operation.";
    SleepModeOperationsInFlight, "vllm:sleep_mode_operations_in_flight", Gauge, Series::Later,
        "Sleep-mode operations currently awaited.";
    VcrStreamsOpen, "vcr:streams_open", Gauge, Series::Process, "Responses under way as server-sent events";
    VcrConnectionsOpen, "vcr:connections_open", Gauge, Series::Process, "Connections of clients";
    VcrFaultsInjected, "vcr:faults_injected", Counter, Series::Later, "Faults that clients met, by kind";
    VcrRequestsUnauthorized, "vcr:requests_unauthorized", Counter, Series::Process, "Requests without a valid API key";
    ProcessCpuSeconds, "process_cpu_seconds", Seconds, Series::Process, "User and system CPU time of the process";
    ProcessResidentMemoryBytes, "process_resident_memory_bytes", Gauge, Series::Process, "Resident memory of the process";
    ProcessVirtualMemoryBytes, "process_virtual_memory_bytes", Gauge, Series::Process, "Virtual memory of the process";
    ProcessStartTimeSeconds, "process_start_time_seconds", Ratio, Series::Process, "Start of the process since the Unix epoch";
    ProcessOpenFds, "process_open_fds", Gauge, Series::Process, "Open file descriptors of the process";
    EngineSleepState, "vllm:engine_sleep_state", Gauge, Series::ByLabel("sleep_state", &["awake", "weights_offloaded", "discard_all"]),
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.";
    MmCacheQueries, "vllm:mm_cache_queries", Counter, Series::One,
        "Multi-modal cache queries, in terms of number of queried items.";
    MmCacheHits, "vllm:mm_cache_hits", Counter, Series::One,
        "Multi-modal cache hits, in terms of number of cached items.";
    CacheConfigInfo, "vllm:cache_config_info", Gauge, Series::Later, "Information of the LLMEngine CacheConfig";
    HttpRequestSizeBytes, "http_request_size_bytes", Histogram(Buckets::None), Series::Later,
        "Content length of incoming requests by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. ";
    HttpResponseSizeBytes, "http_response_size_bytes", Histogram(Buckets::None), Series::Later,
        "Content length of outgoing responses by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. ";
    AdmissionRejections, "vllm:admission_rejections", Counter, Series::OfModel(&[("reason", &["max_num_queued_reqs", "max_num_queued_tokens"])]),
        "Number of admission attempts rejected by a queue limit, by reason.";
    ToolCallParserInvocations, "vllm:tool_call_parser_invocations", Counter, Series::OfModel(&[
            ("mode", &["streaming", "non_streaming"]),
            ("outcome", &["tool_call", "no_tool_call"]),
            ("request_type", &["chat_completions", "responses", "other"]),
        ]),
        "Total number of ToolParser invocations. Non-streaming increments once per choice; streaming increments once per delta.";
    NumUsedTokens, "sglang:num_used_tokens", Gauge, Series::One, "The number of used tokens.";
    MaxTotalNumTokens, "sglang:max_total_num_tokens", Gauge, Series::One,
        "Maximum total number of tokens in the KV cache pool.";
    CacheHitRate, "sglang:cache_hit_rate", Ratio, Series::One, "The prefix cache hit rate.";
    ProcessMaxFds, "process_max_fds", Gauge, Series::Process, "Limit of file descriptors of the process";
}
