//! Reports of tiers: totals, changes, and hits of a prompt.

use crate::kv::hash::BlockHash;

/// Running totals of the tiers of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvTierStats {
    /// Number of loads started.
    pub loads: u64,
    /// Blocks that loads took from the host.
    pub host_hit_blocks: u64,
    /// Blocks that loads took from the disk.
    pub disk_hit_blocks: u64,
    /// Bytes sent from the device to the host.
    pub device_to_host_bytes: u64,
    /// Bytes sent from the host to the device.
    pub host_to_device_bytes: u64,
    /// Bytes sent from the host to the disk.
    pub host_to_disk_bytes: u64,
    /// Bytes sent from the disk to the host.
    pub disk_to_host_bytes: u64,
}

impl KvTierStats {
    /// Adds other totals.
    pub fn add(&mut self, more: &Self) {
        self.loads += more.loads;
        self.host_hit_blocks += more.host_hit_blocks;
        self.disk_hit_blocks += more.disk_hit_blocks;
        self.device_to_host_bytes = self.device_to_host_bytes.saturating_add(more.device_to_host_bytes);
        self.host_to_device_bytes = self.host_to_device_bytes.saturating_add(more.host_to_device_bytes);
        self.host_to_disk_bytes = self.host_to_disk_bytes.saturating_add(more.host_to_disk_bytes);
        self.disk_to_host_bytes = self.disk_to_host_bytes.saturating_add(more.disk_to_host_bytes);
    }

    /// The difference from the totals `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            loads: self.loads - earlier.loads,
            host_hit_blocks: self.host_hit_blocks - earlier.host_hit_blocks,
            disk_hit_blocks: self.disk_hit_blocks - earlier.disk_hit_blocks,
            device_to_host_bytes: self.device_to_host_bytes - earlier.device_to_host_bytes,
            host_to_device_bytes: self.host_to_device_bytes - earlier.host_to_device_bytes,
            host_to_disk_bytes: self.host_to_disk_bytes - earlier.host_to_disk_bytes,
            disk_to_host_bytes: self.disk_to_host_bytes - earlier.disk_to_host_bytes,
        }
    }
}

/// A tier below the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvTier {
    /// In the host's memory.
    Host,
    /// On the disk.
    Disk,
}

/// A block has arrived in a tier, or left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvTierChange {
    /// Time of the change, in nanoseconds.
    pub at_ns: u64,
    /// The tier.
    pub tier: KvTier,
    /// The block.
    pub hash: BlockHash,
    /// Whether the block has arrived. Otherwise it has left.
    pub stored: bool,
}

/// Consecutive blocks that the tiers hold. Each block counts at the tier from which it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierRun {
    /// Blocks read from the host.
    pub host_blocks: u32,
    /// Blocks read from the disk.
    pub disk_blocks: u32,
}

impl TierRun {
    /// Total number of blocks.
    #[must_use]
    pub fn blocks(self) -> u32 {
        self.host_blocks + self.disk_blocks
    }
}
