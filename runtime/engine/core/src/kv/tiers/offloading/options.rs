//! Settings of the connector for offloading.

use crate::config::error::ConfigError;

/// Eviction order of chunks in the host (vLLM's `eviction_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// The least recently used chunk.
    #[default]
    Lru,
    /// An adaptive replacement cache, which separates entries used once from entries used more often.
    Arc,
}

/// Settings of vLLM's `OffloadingConnector` (its `kv_connector_extra_config`). A chunk is stored,
/// found and evicted as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadingOptions {
    /// Chunks that the host holds.
    pub chunks: u32,
    /// Blocks of a chunk.
    pub blocks_per_chunk: u32,
    /// Eviction order of chunks in the host.
    pub eviction_policy: EvictionPolicy,
    /// Offers of a chunk until it is stored; 0 and 1 for the first.
    pub store_threshold: u32,
    /// The most chunks whose offers are counted.
    pub max_tracker_size: u32,
    /// Store no chunk that ends behind the prompt.
    pub offload_prompt_only: bool,
}

impl Default for OffloadingOptions {
    /// vLLM's defaults. The size has no default in vLLM.
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
