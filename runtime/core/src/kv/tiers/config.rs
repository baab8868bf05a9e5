//! Settings of the tiers of one engine.

use crate::config::error::ConfigError;

/// A tier that the engines of a pool share, with the bandwidths of all of them together. The
/// bandwidths of [`KvTiersConfig`] are those of one engine then. None is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedTier {
    /// Of all writes.
    pub write_bytes_per_s: Option<u64>,
    /// Of all reads.
    pub read_bytes_per_s: Option<u64>,
}

/// Settings of the tiers of one engine. A bandwidth of none takes no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvTiersConfig {
    /// Blocks that the host's memory holds.
    pub host_blocks: u32,
    /// Blocks that the disk holds; 0 for no disk.
    pub disk_blocks: u32,
    /// KV bytes of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// Most blocks that go to the host as one transfer.
    pub offload_batch_size: u32,
    /// From the device to the host.
    pub device_to_host_bytes_per_s: Option<u64>,
    /// From the host to the device.
    pub host_to_device_bytes_per_s: Option<u64>,
    /// From the host to the disk.
    pub host_to_disk_bytes_per_s: Option<u64>,
    /// From the disk to the host.
    pub disk_to_host_bytes_per_s: Option<u64>,
    /// From when a transfer to or from the host is asked for until its first byte moves; it takes no
    /// bandwidth.
    pub host_latency_ns: u64,
    /// Added to every read of the disk. Of a shared disk it is the time until the first byte of
    /// a read, or a write, moves.
    pub disk_latency_ns: u64,
    /// Whether the host's memory is one for all engines of a pool, with `host_blocks` in all.
    pub shared_host: Option<SharedTier>,
    /// Whether the disk is one for all engines of a pool, with `disk_blocks` in all.
    pub shared_disk: Option<SharedTier>,
}

impl KvTiersConfig {
    /// Whether the engines of a pool share a tier.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared_host.is_some() || self.shared_disk.is_some()
    }

    /// Blocks that the tiers of so many engines hold.
    #[must_use]
    pub fn blocks_of(&self, engines: u64) -> u64 {
        let blocks = |each: u32, shared: Option<SharedTier>| {
            u64::from(each).saturating_mul(if shared.is_some() { 1 } else { engines })
        };
        blocks(self.host_blocks, self.shared_host).saturating_add(blocks(self.disk_blocks, self.shared_disk))
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
        if self.shared_host.is_some() && self.disk_blocks > 0 && self.shared_disk.is_none() {
            let reason = "what leaves memory that engines share belongs to none of them";
            errors.push(ConfigError::Needs { field: "host_scope", needed: "disk_scope", reason });
        }
    }
}

impl Default for KvTiersConfig {
    /// Bandwidths and batches of Dynamo 1.4's mocker; nothing is kept until a
    /// capacity and the size of a token are set.
    fn default() -> Self {
        Self {
            host_blocks: 0,
            disk_blocks: 0,
            kv_bytes_per_token: 0,
            offload_batch_size: 32,
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
