//! The engines that share tiers, and their separate state.

use std::collections::VecDeque;

use super::blocks::TierBlocks;
use super::connected::UnsentStore;
use super::{KvTier, KvTierChange, KvTierStats, KvTiers, TransferDirection};
use crate::kv::hash::BlockHash;
use crate::kv::pool::BlockId;
use crate::request::RequestId;

/// The state of an engine. The engine may have crashed.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// Completed loads that have not been reported yet, in order.
    pub(super) complete: Vec<(RequestId, u32)>,
    /// Number of loads that have not ended, including loads of aborted requests.
    pub(super) num_loads: u32,
    pub(super) stats: KvTierStats,
    changes: Option<Vec<KvTierChange>>,
    /// Stores of unfinished steps, if a connector is used, in order.
    pub(super) unsent: VecDeque<UnsentStore>,
    /// Stores that a step waits for before it begins, with the step's number.
    pub(super) flushes: VecDeque<(u64, Vec<u64>)>,
    /// Whether a request was skipped because of a transfer.
    pub(super) has_deferred: bool,
    /// Whether a transfer that a request may wait for has ended, and the engine has not noticed yet.
    pub(super) has_progress: bool,
    /// Device blocks of completed copies, by transfer. They are still held.
    pub(super) copied: Vec<Vec<BlockId>>,
    /// Number of copies in progress whose blocks are held.
    pub(super) num_held_copies: u32,
}

impl KvTiers {
    /// Adds an engine without any state. Returns its number, starting with 0.
    pub fn add_client(&mut self) -> u32 {
        if self.config.shared_host.is_none() {
            self.hosts.push(TierBlocks::new(self.config.host_blocks));
        }
        if self.config.shared_disk.is_none() {
            self.disks.push(TierBlocks::new(self.config.disk_blocks));
        }
        self.channels.iter_mut().for_each(super::Channel::add_client);
        let another = self.offloading.first().map(super::Offloading::empty_like);
        self.offloading.extend(another);
        self.clients.push(Client::default());
        self.clients.len() as u32 - 1
    }

    /// Makes `client` the current engine for all following calls.
    pub fn enter(&mut self, client: u32) {
        let at = std::mem::replace(&mut self.at, client);
        if self.config.shared_host.is_some()
            && let Ok([before, after]) = self.offloading.get_disjoint_mut([at as usize, client as usize])
        {
            before.swap_hosts(after);
        }
    }

    /// Removes the current engine and all its requests. Its transfers continue.
    pub fn leave(&mut self) {
        let at = self.at;
        for load in self.loads.iter_mut().filter(|load| load.client == at) {
            load.request = None;
        }
        let client = self.client_mut();
        client.complete.clear();
        client.changes = None;
        client.copied.clear();
        (client.has_deferred, client.num_held_copies) = (false, 0);
        let unsent = std::mem::take(&mut client.unsent);
        unsent.iter().for_each(|store| self.cancel_store(store));
        self.note_progress();
    }

    /// Starts or stops recording the changes that the current engine can see. To record them, start before the engine's
    /// first request. The present contents of shared tiers count as arriving now.
    pub fn record_changes(&mut self, on: bool) {
        let at_ns = self.now_ns;
        let stored = |tier, hash| KvTierChange { at_ns, tier, hash, stored: true };
        let changes = on.then(|| {
            let connected = self.offloading().into_iter().flat_map(super::Offloading::ready);
            let host = self.host().ready().chain(connected).map(|hash| stored(KvTier::Host, hash));
            host.chain(self.disk().ready().map(|hash| stored(KvTier::Disk, hash))).collect()
        });
        self.client_mut().changes = changes;
    }

    /// Removes and returns the recorded changes, in order of time.
    pub fn take_changes(&mut self) -> impl Iterator<Item = KvTierChange> + '_ {
        self.client_mut().changes.iter_mut().flat_map(|changes| changes.drain(..))
    }

    /// Totals of the current engine since the start, up to the time that it was advanced to.
    #[must_use]
    pub fn stats(&self) -> KvTierStats {
        let bytes = |way: TransferDirection| self.channels[way as usize].bytes(self.at);
        KvTierStats {
            device_to_host_bytes: bytes(TransferDirection::DeviceToHost),
            host_to_device_bytes: bytes(TransferDirection::HostToDevice),
            host_to_disk_bytes: bytes(TransferDirection::HostToDisk),
            disk_to_host_bytes: bytes(TransferDirection::DiskToHost),
            ..self.client().stats
        }
    }

    pub(crate) fn complete_mut(&mut self) -> &mut Vec<(RequestId, u32)> {
        &mut self.client_mut().complete
    }

    pub(super) fn client(&self) -> &Client {
        &self.clients[self.at as usize]
    }

    pub(super) fn client_mut(&mut self) -> &mut Client {
        &mut self.clients[self.at as usize]
    }

    pub(super) fn host_of(&self, client: u32) -> usize {
        if self.config.shared_host.is_some() { 0 } else { client as usize }
    }

    pub(super) fn disk_of(&self, client: u32) -> usize {
        if self.config.shared_disk.is_some() { 0 } else { client as usize }
    }

    pub(super) fn host(&self) -> &TierBlocks {
        &self.hosts[self.host_of(self.at)]
    }

    pub(super) fn disk(&self) -> &TierBlocks {
        &self.disks[self.disk_of(self.at)]
    }

    /// Records that a block enters or leaves a tier of an engine, for all engines that share the tier.
    pub(super) fn note(&mut self, client: u32, tier: KvTier, hash: BlockHash, stored: bool) {
        let is_shared = match tier {
            KvTier::Host => self.config.shared_host.is_some(),
            KvTier::Disk => self.config.shared_disk.is_some(),
        };
        let change = KvTierChange { at_ns: self.now_ns, tier, hash, stored };
        let seen = if is_shared { &mut self.clients[..] } else { &mut self.clients[client as usize..=client as usize] };
        seen.iter_mut().filter_map(|client| client.changes.as_mut()).for_each(|changes| changes.push(change));
    }
}
