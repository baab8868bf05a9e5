//! Engine arguments: read in both layouts, checked, and converted into a pool.

mod names;
mod pool;
mod read;
mod rules;
mod state;
mod tables;
mod tiers;

use std::path::PathBuf;
use std::str::FromStr;

use vcr_cluster::{KvEviction, PoolRole, QueueOrder, SourceOutput, TransferScope};
use vcr_core::KvTiersConfig;
use vcr_core::sglang::SchedulePolicy;
use vcr_latency::PassSemantics;
use vcr_latency::tables::TablesInput;

use crate::problem::{DynamoError, Findings, Remark};

pub use names::known_engine_key;
pub use pool::PoolOptions;

/// The version of Dynamo whose pass rules and report layout apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// Dynamo 1.4: the first token needs a prefill and a decode step.
    Dynamo1_4,
    /// Dynamo 1.6: the prefill step yields the first token.
    #[default]
    Dynamo1_6,
}

impl Preset {
    /// Names and presets, for help texts and errors.
    pub const NAMES: [(&'static str, Self); 2] = [("dynamo-1.4", Self::Dynamo1_4), ("dynamo-1.6", Self::Dynamo1_6)];

    /// Part of the output that prefill workers generate before the KV transfer. In 1.4.2 they generate the whole
    /// output. Passes without prompts to compute take no time there.
    #[must_use]
    pub fn source_output(self) -> SourceOutput {
        match self {
            Self::Dynamo1_4 => SourceOutput::Whole,
            Self::Dynamo1_6 => SourceOutput::FirstToken,
        }
    }

    pub(crate) fn semantics(self) -> PassSemantics {
        match self {
            Self::Dynamo1_4 => PassSemantics::Dynamo1_4,
            Self::Dynamo1_6 => PassSemantics::Dynamo1_6,
        }
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, preset)| preset).ok_or_else(|| "expected dynamo-1.4 or dynamo-1.6".to_owned())
    }
}

/// Settings of an SGLang-style engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SglangArgs {
    /// Order of admission.
    pub schedule_policy: SchedulePolicy,
    /// Maximum prompt tokens of the requests admitted in one pass.
    pub max_prefill_tokens: u32,
    /// Maximum prompt tokens of one request in a pass.
    pub chunked_prefill_size: u32,
    /// Maximum number of output tokens that are reserved for a request.
    pub clip_max_new_tokens: u32,
    /// Factor by which the reserved share of outputs is multiplied.
    pub schedule_conservativeness: f64,
    /// Number of decode passes between two passes that prefill.
    pub prefill_decode_interval: u32,
}

/// The scheduler of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EngineType {
    /// vLLM's scheduler.
    Vllm,
    /// SGLang's scheduler.
    Sglang(SglangArgs),
    /// TensorRT-LLM's scheduler with guaranteed no evict.
    Trtllm,
}

impl EngineType {
    /// The engine type's name in engine arguments.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang(_) => "sglang",
            Self::Trtllm => "trtllm",
        }
    }
}

/// The latency model of passes.
#[derive(Clone, Debug, PartialEq)]
pub enum Timing {
    /// Dynamo's default formula.
    Polynomial,
    /// Constant times.
    Fixed {
        /// Milliseconds of a pass with prefills.
        prefill_ms: f64,
        /// Milliseconds of a pass with decodes.
        decode_ms: f64,
    },
    /// A planner profile: an `.npz` file, or a profiler's folder.
    Profile(PathBuf),
    /// Operator tables (`aic_backend` and related arguments).
    Tables(Box<TablesInput>),
}

impl Timing {
    /// What sets the times of passes, in words.
    #[must_use]
    pub fn source(&self) -> &'static str {
        match self {
            Self::Polynomial => "Dynamo's polynomial",
            Self::Fixed { .. } => "set by the engine arguments",
            Self::Profile(_) => "interpolated in a planner profile",
            Self::Tables(_) => "operator tables",
        }
    }
}

/// Multi-token prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Mtp {
    /// Maximum extra tokens per pass, 1 to 5.
    pub extra_tokens: u32,
    /// The probability that the first, second, ... extra token is accepted if the previous ones were accepted.
    pub acceptance_rates: Vec<f64>,
}

/// Costs of KV transfers from a prefill engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KvTransfer {
    /// KV bytes of one token.
    pub bytes_per_token: Option<u64>,
    /// Bandwidth in decimal gigabytes per second.
    pub bandwidth_gb_per_s: Option<f64>,
    /// The tokens that are moved.
    pub scope: Option<TransferScope>,
}

/// The preemption victim when KV blocks run out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreemptionMode {
    /// The newest running request.
    #[default]
    Lifo,
    /// The oldest running request.
    Fifo,
}

/// Checked engine arguments. The fields are named like the keys.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineArgs {
    /// The scheduler (`engine_type`; in 1.6 `backend`).
    pub engine_type: EngineType,
    /// Number of usable KV blocks.
    pub num_gpu_blocks: u32,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Maximum length of a sequence in tokens.
    pub max_model_len: Option<u32>,
    /// Maximum number of running requests; None for no limit.
    pub max_num_seqs: Option<u32>,
    /// Maximum tokens per pass; None for no limit.
    pub max_num_batched_tokens: Option<u32>,
    /// Whether full blocks are kept for later requests.
    pub enable_prefix_caching: bool,
    /// Whether a prompt may be computed in several passes.
    pub enable_chunked_prefill: bool,
    /// Whether each step is scheduled before the outputs of the previous step are known, as in vLLM. Dynamo does
    /// not simulate this. Only for vLLM engines.
    pub async_scheduling: bool,
    /// Number of passes between two passes that start prefills while any request decodes. Engines with one rank
    /// start prefills in every pass.
    pub prefill_schedule_interval: u32,
    /// Factor by which all times are divided; above 0.
    pub speedup_ratio: f64,
    /// Further factor by which decode times are divided; above 0.
    pub decode_speedup_ratio: f64,
    /// Number of data-parallel ranks of a worker.
    pub dp_size: u32,
    /// Number of GPUs of one rank.
    pub tensor_parallel_size: u32,
    /// Nanoseconds until an added worker serves.
    pub startup_time_ns: u64,
    /// Role of the engines, if given.
    pub worker_type: Option<PoolRole>,
    /// The latency model of passes.
    pub timing: Timing,
    /// Multi-token prediction.
    pub mtp: Option<Mtp>,
    /// Costs of KV transfers.
    pub kv_transfer: KvTransfer,
    /// KV tiers (`num_g2_blocks`; in 1.6 `native_host_offload`), if any.
    pub kv_tiers: Option<KvTiersConfig>,
    /// Number of blocks of a Mamba or linear attention state (`state_cache`); 0 without states.
    pub state_blocks: u32,
    /// The eviction order of cached blocks (`kv_eviction_policy`).
    pub kv_eviction: KvEviction,
    /// The preemption victim.
    pub preemption_mode: PreemptionMode,
    /// Order of the router's queue, unless the router's configuration sets it.
    pub router_queue_policy: Option<QueueOrder>,
}

impl EngineArgs {
    /// Reads the JSON text `text`, which may be the flat object of 1.4 or the nested one of 1.6. `place` names its
    /// origin in errors. Keys without meaning in a simulation are returned as remarks, or are errors if `strict`.
    ///
    /// # Errors
    /// Every key that is unknown, has an invalid value, contradicts another key or is not simulated.
    pub fn read(place: &str, text: &str, strict: bool) -> Result<(Self, Vec<Remark>), DynamoError> {
        let mut findings = Findings::default();
        let args = read::engine_args(place, text, &mut findings);
        findings.finish(strict, args)
    }

    /// Number of GPUs of a worker, over all its ranks.
    #[must_use]
    pub fn gpus_per_worker(&self) -> u32 {
        self.tensor_parallel_size.saturating_mul(self.dp_size)
    }
}

impl Default for EngineArgs {
    fn default() -> Self {
        Self::read("engine arguments", "{}", false).expect("the defaults are valid").0
    }
}

#[cfg(test)]
mod tests;

const MAX_EXTRA_TOKENS: u64 = 5;

const ABOUT_MEMORY: &str = "the number of KV blocks is given, not estimated";

/// Values of the keys, before they are checked against each other.
#[derive(Default)]
pub(crate) struct Raw {
    engine_type: Option<Kind>,
    num_gpu_blocks: Option<u32>,
    block_size: Option<u32>,
    max_model_len: Option<u32>,
    /// The inner None removes the limit.
    max_num_seqs: Option<Option<u32>>,
    max_num_batched_tokens: Option<Option<u32>>,
    enable_prefix_caching: Option<bool>,
    enable_chunked_prefill: Option<bool>,
    async_scheduling: Option<bool>,
    speedup_ratio: Option<f64>,
    decode_speedup_ratio: Option<f64>,
    nextn: Option<u64>,
    rates: Option<Vec<f64>>,
    worker_type: Option<PoolRole>,
    preemption_mode: PreemptionMode,
    kv_transfer: KvTransfer,
    /// `kv_bytes_per_token` is 0 if it is not given.
    kv_tiers: Option<KvTiersConfig>,
    state_cache: Option<StateCache>,
    kv_eviction: KvEviction,
    sglang: Option<SglangRaw>,
    prefill_schedule_interval: Option<u32>,
    prefill_decode_interval: Option<u32>,
    dp_size: Option<u32>,
    tensor_parallel_size: Option<u32>,
    attention_dp_size: Option<u32>,
    moe_tp_size: Option<u32>,
    moe_ep_size: Option<u32>,
    startup_time_s: Option<f64>,
    timing: Option<Timing>,
    router_queue_policy: Option<QueueOrder>,
    is_nested: bool,
}

/// Sizes that determine how many blocks a state takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateCache {
    bytes_per_request: u64,
    /// 0 if not given.
    kv_bytes_per_token: u64,
}

impl StateCache {
    /// Number of blocks of a state; None if `kv_bytes_per_token` is not given.
    fn blocks(self, block_size: u32) -> Option<u64> {
        let block_bytes = self.kv_bytes_per_token.checked_mul(u64::from(block_size)).filter(|&bytes| bytes > 0)?;
        Some(self.bytes_per_request.div_ceil(block_bytes))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Vllm,
    Sglang,
    Trtllm,
}

#[derive(Default)]
pub(crate) struct SglangRaw {
    schedule_policy: Option<SchedulePolicy>,
    page_size: Option<u32>,
    max_prefill_tokens: Option<u32>,
    chunked_prefill_size: Option<u32>,
    clip_max_new_tokens: Option<u32>,
    schedule_conservativeness: Option<f64>,
}
