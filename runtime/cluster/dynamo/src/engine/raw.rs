//! Engine arguments as given, before they are checked against each other.

use vcr_cluster::{KvEviction, PoolRole, QueueOrder};
use vcr_core::KvTiersConfig;
use vcr_core::sglang::SchedulePolicy;

use super::{KvTransfer, PreemptionMode, Timing};

/// Maximum extra tokens of multi-token prediction.
pub(super) const MAX_EXTRA_TOKENS: u64 = 5;

pub(super) const ABOUT_MEMORY: &str = "the number of KV blocks is given, not estimated";

/// Values of the keys, before they are checked against each other.
#[derive(Default)]
pub(super) struct Raw {
    pub(super) engine_type: Option<Kind>,
    pub(super) num_gpu_blocks: Option<u32>,
    pub(super) block_size: Option<u32>,
    pub(super) max_model_len: Option<u32>,
    /// The inner none removes the bound.
    pub(super) max_num_seqs: Option<Option<u32>>,
    pub(super) max_num_batched_tokens: Option<Option<u32>>,
    pub(super) enable_prefix_caching: Option<bool>,
    pub(super) enable_chunked_prefill: Option<bool>,
    pub(super) async_scheduling: Option<bool>,
    pub(super) speedup_ratio: Option<f64>,
    pub(super) decode_speedup_ratio: Option<f64>,
    pub(super) nextn: Option<u64>,
    pub(super) rates: Option<Vec<f64>>,
    pub(super) worker_type: Option<PoolRole>,
    pub(super) preemption_mode: PreemptionMode,
    pub(super) kv_transfer: KvTransfer,
    /// Its bytes per token are 0 unless they are given.
    pub(super) kv_tiers: Option<KvTiersConfig>,
    pub(super) state_cache: Option<StateCache>,
    pub(super) kv_eviction: KvEviction,
    pub(super) sglang: Option<SglangRaw>,
    pub(super) prefill_schedule_interval: Option<u32>,
    pub(super) prefill_decode_interval: Option<u32>,
    pub(super) dp_size: Option<u32>,
    pub(super) tensor_parallel_size: Option<u32>,
    pub(super) attention_dp_size: Option<u32>,
    pub(super) moe_tp_size: Option<u32>,
    pub(super) moe_ep_size: Option<u32>,
    pub(super) startup_time_s: Option<f64>,
    pub(super) timing: Option<Timing>,
    pub(super) router_queue_policy: Option<QueueOrder>,
    pub(super) is_nested: bool,
}

/// Sizes that say how many blocks a state takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateCache {
    pub(super) bytes_per_request: u64,
    /// 0 unless it is given.
    pub(super) kv_bytes_per_token: u64,
}

impl StateCache {
    /// Blocks of a state, by the tokens of a block; none where the KV of a token has no size.
    pub(super) fn blocks(self, block_size: u32) -> Option<u64> {
        let block_bytes = self.kv_bytes_per_token.checked_mul(u64::from(block_size)).filter(|&bytes| bytes > 0)?;
        Some(self.bytes_per_request.div_ceil(block_bytes))
    }
}

/// Names of engine types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Vllm,
    Sglang,
    Trtllm,
}

#[derive(Default)]
pub(super) struct SglangRaw {
    pub(super) schedule_policy: Option<SchedulePolicy>,
    pub(super) page_size: Option<u32>,
    pub(super) max_prefill_tokens: Option<u32>,
    pub(super) chunked_prefill_size: Option<u32>,
    pub(super) clip_max_new_tokens: Option<u32>,
    pub(super) schedule_conservativeness: Option<f64>,
}
