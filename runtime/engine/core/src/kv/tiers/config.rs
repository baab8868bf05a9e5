//! Settings of the tiers of one engine.

use super::offloading::{EvictionPolicy, OffloadingOptions};
use crate::config::error::ConfigError;

/// A tier that the engines of a pool share, with bandwidth limits for all engines together. The bandwidths of
/// [`KvTiersConfig`] are then limits per engine. None means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedTier {
    /// Total write bandwidth.
    pub write_bytes_per_s: Option<u64>,
    /// Total read bandwidth.
    pub read_bytes_per_s: Option<u64>,
}

/// Rules for storing, finding and evicting blocks in the host tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostRules {
    /// Dynamo's KV block manager, as Dynamo 1.4's mocker models it.
    #[default]
    Dynamo,
    /// The host tier of Dynamo 1.6's mocker, which follows vLLM 0.24's connector.
    Dynamo16,
    /// vLLM's `OffloadingConnector`, in the engine's release.
    Vllm,
}

impl HostRules {
    /// Whether an offloading connector decides which blocks are stored, found and loaded.
    #[must_use]
    pub fn is_connector(self) -> bool {
        self != Self::Dynamo
    }

    /// Whether a request that waits for a transfer is retried only after a transfer has ended. It keeps its
    /// position among the loading requests, before all others. Source: Dynamo 1.6's mocker.
    pub(crate) fn sleeps_until_transfers(self) -> bool {
        self == Self::Dynamo16
    }

    /// Whether other requests may hit KV as soon as it is loaded, before the request that loaded it is admitted.
    /// Source: Dynamo 1.6's mocker.
    pub(crate) fn takes_over_on_arrival(self) -> bool {
        self == Self::Dynamo16
    }

    /// Whether the last block is recomputed after a whole prompt has been loaded. Otherwise only the last token is.
    /// Source: Dynamo 1.6's mocker.
    pub(crate) fn recomputes_last_block(self) -> bool {
        self == Self::Dynamo16
    }

    /// Whether a load needs the reserved free blocks in addition to the blocks of the whole prompt. Otherwise it needs
    /// them in addition to the loaded blocks only. Source: Dynamo 1.6's mocker.
    pub(crate) fn reserves_beside_whole_prompts(self) -> bool {
        self == Self::Dynamo16
    }

    /// Whether the tiers are not asked for a prompt that the device caches as a whole, although its last
    /// block is recomputed. Source: Dynamo 1.6's mocker.
    pub(crate) fn looks_nothing_up_for_whole_prompts(self) -> bool {
        self == Self::Dynamo16
    }
}

/// Settings of an engine's tiers. If a bandwidth is missing, transfers are instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvTiersConfig {
    /// Rules of the host tier.
    pub rules: HostRules,
    /// Capacity of the host tier in blocks.
    pub host_blocks: u32,
    /// Capacity of the disk in blocks; 0 for no disk.
    pub disk_blocks: u32,
    /// KV bytes of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// Maximum number of blocks in one transfer to the host, under Dynamo's rules. Under vLLM's rules, all blocks that
    /// a request stores in a step are one transfer.
    pub offload_batch_size: u32,
    /// The host tier's eviction policy under vLLM's rules.
    pub eviction_policy: EvictionPolicy,
    /// Under vLLM's rules, a block is stored at this offer of it. 0 and 1 mean the first offer.
    pub store_threshold: u32,
    /// Under vLLM's rules, whether blocks that end after the prompt are not stored.
    pub offload_prompt_only: bool,
    /// Bandwidth from the device to the host.
    pub device_to_host_bytes_per_s: Option<u64>,
    /// Bandwidth from the host to the device.
    pub host_to_device_bytes_per_s: Option<u64>,
    /// Bandwidth from the host to the disk.
    pub host_to_disk_bytes_per_s: Option<u64>,
    /// Bandwidth from the disk to the host.
    pub disk_to_host_bytes_per_s: Option<u64>,
    /// Latency between the request for a transfer to or from the host and its first byte. It uses
    /// no bandwidth.
    pub host_latency_ns: u64,
    /// Added to every read of the disk. On a shared disk, it is the time until the first byte of a read or a
    /// write is transferred.
    pub disk_latency_ns: u64,
    /// Whether all engines of a pool share one host tier, with `host_blocks` in total.
    pub shared_host: Option<SharedTier>,
    /// Whether all engines of a pool share one disk, with `disk_blocks` in total.
    pub shared_disk: Option<SharedTier>,
}

impl KvTiersConfig {
    /// Whether the engines of a pool share any tier.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared_host.is_some() || self.shared_disk.is_some()
    }

    /// Total capacity of the tiers of this number of engines, in blocks.
    #[must_use]
    pub fn blocks_of(&self, engines: u64) -> u64 {
        let blocks = |each: u32, shared: Option<SharedTier>| {
            u64::from(each).saturating_mul(if shared.is_some() { 1 } else { engines })
        };
        blocks(self.host_blocks, self.shared_host).saturating_add(blocks(self.disk_blocks, self.shared_disk))
    }

    /// The settings of the connector that manages the host tier under vLLM's rules.
    pub(super) fn offloading(&self) -> OffloadingOptions {
        OffloadingOptions {
            chunks: self.host_blocks,
            eviction_policy: self.eviction_policy,
            store_threshold: self.store_threshold,
            offload_prompt_only: self.offload_prompt_only,
            ..OffloadingOptions::default()
        }
    }

    pub(crate) fn check(&self, errors: &mut Vec<ConfigError>) {
        let bandwidth = |bytes_per_s: Option<u64>| bytes_per_s.unwrap_or(1);
        let positive = [
            ("host_blocks", u64::from(self.host_blocks)),
            ("kv_bytes_per_token", self.kv_bytes_per_token),
            ("offload_batch_size", u64::from(self.offload_batch_size)),
            ("device_to_host", bandwidth(self.device_to_host_bytes_per_s)),
            ("host_to_device", bandwidth(self.host_to_device_bytes_per_s)),
            ("host_to_disk", bandwidth(self.host_to_disk_bytes_per_s)),
            ("disk_to_host", bandwidth(self.disk_to_host_bytes_per_s)),
            ("shared_device_to_host", bandwidth(self.shared_host.and_then(|shared| shared.write_bytes_per_s))),
            ("shared_host_to_device", bandwidth(self.shared_host.and_then(|shared| shared.read_bytes_per_s))),
            ("shared_host_to_disk", bandwidth(self.shared_disk.and_then(|shared| shared.write_bytes_per_s))),
            ("shared_disk_to_host", bandwidth(self.shared_disk.and_then(|shared| shared.read_bytes_per_s))),
        ];
        let zero = positive.iter().filter(|(_, value)| *value == 0);
        errors.extend(zero.map(|&(field, _)| ConfigError::TooSmall { field, value: 0, least: 1 }));
        if self.shared_disk.is_some() && self.disk_blocks == 0 {
            let reason = "there is no disk to share";
            errors.push(ConfigError::Needs { field: "disk_scope", needed: "disk_blocks", reason });
        }
        if self.rules == HostRules::Dynamo16 && self.disk_blocks > 0 {
            let reason = "the disk of Dynamo 1.6's mocker is not known: `rules: \"dynamo\"` has one";
            errors.push(ConfigError::Exclusive { field: "rules", other_field: "disk_blocks", reason });
        }
        if self.shared_host.is_some() && self.disk_blocks > 0 && self.shared_disk.is_none() {
            let reason = "what leaves memory that engines share belongs to none of them";
            errors.push(ConfigError::Needs { field: "host_scope", needed: "disk_scope", reason });
        }
    }
}

impl Default for KvTiersConfig {
    /// Bandwidths and batch size of Dynamo 1.4's mocker. Nothing is stored until a
    /// capacity and `kv_bytes_per_token` are set.
    fn default() -> Self {
        Self {
            rules: HostRules::Dynamo,
            host_blocks: 0,
            disk_blocks: 0,
            kv_bytes_per_token: 0,
            offload_batch_size: 32,
            eviction_policy: EvictionPolicy::Lru,
            store_threshold: 0,
            offload_prompt_only: true,
            device_to_host_bytes_per_s: Some(14_000_000_000),
            host_to_device_bytes_per_s: Some(14_000_000_000),
            host_to_disk_bytes_per_s: Some(7_000_000_000),
            disk_to_host_bytes_per_s: Some(7_000_000_000),
            host_latency_ns: 0,
            disk_latency_ns: 0,
            shared_host: None,
            shared_disk: None,
        }
    }
}
