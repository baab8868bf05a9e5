//! Kinds of engines.

use crate::compat::Reservations;
use crate::config::{EngineConfig, Policy};
use crate::kv::hash::HashedBlocks;
use crate::kv::tiers::KvTiersConfig;
use crate::plugins::latency::EngineInfo;
use crate::sglang::{PrefixLookup, SglangConfig};
use crate::ticks::TickConfig;

/// Checked settings of an engine. The variant selects the scheduler.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a pool has one, and its engines take it apart when they start")]
pub enum EngineKind {
    /// vLLM's scheduler, or TensorRT-LLM's with [`CapacityPolicy::GuaranteedNoEvict`].
    ///
    /// [`CapacityPolicy::GuaranteedNoEvict`]: crate::CapacityPolicy::GuaranteedNoEvict
    Vllm(EngineConfig),
    /// SGLang's scheduler.
    Sglang(SglangConfig),
    /// The scheduler of ticks.
    Ticks(TickConfig),
}

impl EngineKind {
    /// Tokens per KV block, or page.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        match self {
            Self::Vllm(config) => config.block_size(),
            Self::Sglang(config) => config.page_size(),
            Self::Ticks(config) => config.page_size_tokens(),
        }
    }

    /// The tokens that the hash of a block covers.
    #[must_use]
    pub fn hashed_blocks(&self) -> HashedBlocks {
        self.as_vllm().map_or(self.block_size().into(), EngineConfig::hashed_blocks)
    }

    /// Maximum number of tokens computed in one step.
    #[must_use]
    pub fn max_num_batched_tokens(&self) -> u32 {
        match self {
            Self::Vllm(config) => config.max_num_batched_tokens(),
            Self::Sglang(config) => config.max_prefill_tokens(),
            Self::Ticks(config) => config.prefill_tokens_per_tick(),
        }
    }

    /// Number of KV blocks, or pages, including a block that is never used.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        match self {
            Self::Vllm(config) => config.num_gpu_blocks(),
            Self::Sglang(config) => config.num_pages(),
            Self::Ticks(config) => config.total_kv_pages(),
        }
    }

    /// Whether the earlier chunks of a prompt count as cached when its next chunk begins, as
    /// `dynamo-mocker` 1.4 reports for SGLang.
    #[must_use]
    pub fn reports_chunks_as_cached(&self) -> bool {
        matches!(self, Self::Sglang(config) if config.prefix_lookup() == PrefixLookup::FirstChunk)
    }

    /// Whether blocks for a prompt are allocated before another engine computes it, as Dynamo does with SGLang
    /// engines.
    #[must_use]
    pub fn reserves_before_prefill(&self) -> bool {
        matches!(self, Self::Sglang(config) if config.reservations() == Reservations::BetweenSteps)
    }

    /// When blocks are allocated for prompts that other engines compute.
    #[must_use]
    pub fn reservations(&self) -> Reservations {
        match self {
            Self::Vllm(config) => config.reservations(),
            Self::Sglang(config) => config.reservations(),
            Self::Ticks(_) => Reservations::default(),
        }
    }

    /// Whether a request's KV can be transferred from or to another engine of a cluster. States cannot be transferred.
    #[must_use]
    pub fn transfers_kv(&self) -> bool {
        match self {
            Self::Vllm(config) => !config.keeps_states(),
            Self::Sglang(_) => true,
            Self::Ticks(_) => false,
        }
    }

    /// Whether requests may have structured outputs.
    #[must_use]
    pub fn simulates_structured_outputs(&self) -> bool {
        self.as_vllm().is_some_and(EngineConfig::simulates_structured_outputs)
    }

    /// The engine's properties that latency models use.
    #[must_use]
    pub fn info(&self) -> EngineInfo {
        match self {
            Self::Vllm(config) => config.info(),
            Self::Sglang(_) | Self::Ticks(_) => EngineInfo {
                kv_total_blocks: self.num_blocks().into(),
                block_size_tokens: self.block_size().into(),
                ..EngineInfo::default()
            },
        }
    }

    /// KV tiers below the device, if any.
    #[must_use]
    pub fn kv_tiers(&self) -> Option<&KvTiersConfig> {
        self.as_vllm().and_then(EngineConfig::kv_tiers)
    }

    /// Whether a scheduling policy ranks the requests.
    #[must_use]
    pub fn is_ranked(&self) -> bool {
        matches!(self, Self::Vllm(config) if config.policy() == Policy::Ranked)
    }

    /// The settings, if the engine has vLLM's scheduler.
    #[must_use]
    pub fn as_vllm(&self) -> Option<&EngineConfig> {
        match self {
            Self::Vllm(config) => Some(config),
            Self::Sglang(_) | Self::Ticks(_) => None,
        }
    }
}

impl From<EngineConfig> for EngineKind {
    fn from(config: EngineConfig) -> Self {
        Self::Vllm(config)
    }
}

impl From<SglangConfig> for EngineKind {
    fn from(config: SglangConfig) -> Self {
        Self::Sglang(config)
    }
}

impl From<TickConfig> for EngineKind {
    fn from(config: TickConfig) -> Self {
        Self::Ticks(config)
    }
}
