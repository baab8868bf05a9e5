//! Shows the settings of the engines' caches as labels of a metric.

use super::page::{CacheConfig, Labels, Metrics};
use super::table::Name;

/// Settings that simulated caches do not have, with vLLM's default values.
const UNSET: &[(&str, &str)] = &[
    ("_block_size_resolved", "True"),
    ("cache_hit_alignment_tokens", "None"),
    ("enable_mamba_shared_prefix_checkpoint", "False"),
    ("gpu_memory_utilization", "0.92"),
    ("hash_block_size", "None"),
    ("is_attention_free", "False"),
    ("kv_cache_dtype_skip_layers", "[]"),
    ("kv_cache_layout", "None"),
    ("kv_cache_memory_bytes", "None"),
    ("kv_offloading_backend", "native"),
    ("kv_offloading_size", "None"),
    ("kv_sharing_fast_prefill", "False"),
    ("mamba_block_size", "None"),
    ("mamba_cache_dtype", "auto"),
    ("mamba_page_size_padded", "None"),
    ("mamba_ssm_cache_dtype", "float32"),
    ("num_cpu_blocks", "None"),
    ("num_gpu_blocks_override", "None"),
    ("prefix_match_unit", "None"),
    ("replayssm_buffer_len", "16"),
    ("simple_cpu_offload_num_blocks", "None"),
    ("skip_page_size_padded", "None"),
    ("sliding_window", "None"),
    ("swa_bounded_replay", "True"),
    ("use_kda_recoverssm", "False"),
    ("use_replayssm", "False"),
    ("user_specified_block_size", "False"),
];

impl Metrics {
    /// Shows the settings of an engine's KV cache.
    pub(super) fn show_cache(&self, cache: &CacheConfig, max_model_len_tokens: u64, engine: u32) {
        let python = |value: bool| if value { "True" } else { "False" }.to_owned();
        // The null block is never used.
        let size_tokens = u64::from(cache.block_size) * u64::from(cache.num_gpu_blocks.saturating_sub(1));
        let concurrency = size_tokens as f64 / max_model_len_tokens.max(1) as f64;
        let mut labels: Labels = vec![
            ("effective_attention_block_size", cache.block_size.to_string()),
            ("kv_cache_max_concurrency", format!("{concurrency:?}")),
            ("block_size", cache.block_size.to_string()),
            ("cache_dtype", cache.cache_dtype.clone()),
            ("enable_prefix_caching", python(cache.enable_prefix_caching)),
            ("engine", engine.to_string()),
            ("kv_cache_size_tokens", size_tokens.to_string()),
            ("mamba_cache_mode", cache.mamba_cache_mode.clone()),
            ("num_gpu_blocks", cache.num_gpu_blocks.to_string()),
            ("prefix_cache_retention_interval", cache.prefix_cache_retention_interval.to_string()),
            ("prefix_caching_hash_algo", cache.prefix_caching_hash_algo.clone()),
        ];
        labels.extend(UNSET.iter().map(|(label, value)| (*label, (*value).to_owned())));
        labels.sort_unstable();
        self.gauge(Name::CacheConfigInfo, &labels).set(1);
    }
}
