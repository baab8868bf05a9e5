//! Settings of the offloading connector.

use crate::config::error::ConfigError;

/// Eviction policy of the host (vLLM's `eviction_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Evicts the least recently used chunk.
    #[default]
    Lru,
    /// Adaptive replacement cache, which separates chunks used once from chunks used more often.
    Arc,
}

/// Settings of vLLM's `OffloadingConnector` (its `kv_connector_extra_config`). A chunk is stored,
/// found and evicted as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadingOptions {
    /// Capacity of the host in chunks.
    pub chunks: u32,
    /// Number of blocks per chunk.
    pub blocks_per_chunk: u32,
    /// Eviction policy of the host.
    pub eviction_policy: EvictionPolicy,
    /// A chunk is stored at this offer of it. 0 and 1 mean the first offer.
    pub store_threshold: u32,
    /// Maximum number of chunks whose offers are counted.
    pub max_tracker_size: u32,
    /// Whether chunks that end after the prompt are not stored.
    pub offload_prompt_only: bool,
}

impl Default for OffloadingOptions {
    /// vLLM's defaults. vLLM has no default for the capacity.
    fn default() -> Self {
        Self {
            chunks: 0,
            blocks_per_chunk: 1,
            eviction_policy: EvictionPolicy::Lru,
            store_threshold: 0,
            max_tracker_size: 64_000,
            offload_prompt_only: true,
        }
    }
}

impl OffloadingOptions {
    pub(crate) fn check(&self, errors: &mut Vec<ConfigError>) {
        let positive = [
            ("chunks", self.chunks),
            ("blocks_per_chunk", self.blocks_per_chunk),
            ("max_tracker_size", self.max_tracker_size),
        ];
        let zero = positive.iter().filter(|(_, value)| *value == 0);
        errors.extend(zero.map(|&(field, _)| ConfigError::TooSmall { field, value: 0, least: 1 }));
    }
}
