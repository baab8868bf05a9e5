//! KV below the device: blocks kept in host memory and on a disk.
//!
//! Owns the contents of an engine's two tiers, and the transfers between them and the device. There is no
//! clock: callers pass the time, and all transfers that have arrived by then are processed. The
//! results do not depend on how often that is done, nor on any iteration order.
//!
//! * **Host**: stores full blocks of prompts. Under vLLM's [rules](HostRules), the
//!   [connector](offloading) decides what is stored, found and evicted. Under the rules of Dynamo's KV block
//!   manager, new blocks are stored when the step that computes them ends. They are sent in batches that arrive as a
//!   whole (`offload_batch_size`). Blocks that do not fit are not stored.
//! * **Disk**: stores blocks evicted from the host. Blocks evicted from the disk are lost. Both tiers
//!   evict the least recently used block.
//! * **Device**: loads the blocks of a prompt that its own cache does not have. Blocks on the disk are read
//!   into the host and stay there if they fit; the copy on the disk stays as well.
//!
//! Each of the four directions has its own bandwidth, and its transfers run one after another.
//! A block is not evicted while a transfer reads or writes it.
//!
//! Engines may share the disk, or both tiers. Then they share one [`KvTiers`], which is handed to the engine whose turn
//! it is. Each engine is a *client* with its own loads, changes and totals. Transfers of a shared tier share its
//! bandwidth ([`shared_transfer_queue`]).

mod blocks;
mod change;
mod channel;
mod clients;
mod config;
mod connected;
pub(crate) mod offloading;
mod shared_transfer_queue;
mod transfer_queue;

use crate::config::rules::SchedulerRules;
use crate::kv::hash::BlockHash;
use crate::request::RequestId;
use blocks::{NIL, Slot, TierBlocks};
pub use change::{KvTier, KvTierChange, KvTierStats, TierRun};
use channel::Channel;
use clients::Client;
pub use config::{HostRules, KvTiersConfig, SharedTier};
use offloading::{ConnectorRules, Offloading};
use shared_transfer_queue::{Arrived, SharedTransferQueue};
use transfer_queue::TransferQueue;

/// The transfer directions, in the order in which simultaneous arrivals are processed.
#[derive(Clone, Copy, Debug)]
enum TransferDirection {
    DeviceToHost,
    HostToDisk,
    DiskToHost,
    HostToDevice,
}

const TRANSFER_DIRECTIONS: [TransferDirection; 4] = [
    TransferDirection::DeviceToHost,
    TransferDirection::HostToDisk,
    TransferDirection::DiskToHost,
    TransferDirection::HostToDevice,
];

/// Blocks that are being loaded to the device for a request.
#[derive(Clone, Copy, Debug)]
struct Load {
    client: u32,
    /// None if the request was aborted.
    request: Option<RequestId>,
    /// Number of computed tokens of the request once the load is complete.
    end_tokens: u32,
    /// Number of transfers that have not arrived yet.
    parts: u32,
}

/// The tiers of one engine, or of engines that share a tier.
#[derive(Debug)]
pub struct KvTiers {
    config: KvTiersConfig,
    block_bytes: u64,
    now_ns: u64,
    /// Host tiers by client, or one for all clients.
    hosts: Vec<TierBlocks>,
    disks: Vec<TierBlocks>,
    channels: [Channel; TRANSFER_DIRECTIONS.len()],
    loads: Vec<Load>,
    vacant_loads: Vec<u32>,
    clients: Vec<Client>,
    /// The current client.
    at: u32,
    /// Scratch buffer: places of a transfer.
    slots: Vec<Slot>,
    /// Scratch buffer: places on the disk that a load reads.
    disk_slots: Vec<Slot>,
    /// For each client, the connector that decides the contents of its host tier. Empty under the rules of Dynamo's
    /// KV block manager. With a connector, `hosts` and `loads` are empty. Shared tiers use the connector of the current
    /// engine.
    offloading: Vec<Offloading>,
}

impl KvTiers {
    /// Empty tiers of an engine with `block_size_tokens` tokens per block.
    #[must_use]
    pub fn new(config: KvTiersConfig, block_size_tokens: u32, rules: SchedulerRules) -> Self {
        let by_connector = config.rules.is_connector();
        let rules = match config.rules {
            HostRules::Dynamo16 => ConnectorRules::Dynamo { is_shared: config.shared_host.is_some() },
            HostRules::Dynamo | HostRules::Vllm => ConnectorRules::Vllm(rules),
        };
        let offloading = by_connector.then(|| Offloading::new(config.offloading(), rules, block_size_tokens, true));
        let own = |way: TransferDirection| match way {
            TransferDirection::DeviceToHost => {
                TransferQueue::new(config.device_to_host_bytes_per_s, config.host_latency_ns, 0)
            }
            TransferDirection::HostToDisk => TransferQueue::new(config.host_to_disk_bytes_per_s, 0, 0),
            TransferDirection::DiskToHost => {
                TransferQueue::new(config.disk_to_host_bytes_per_s, 0, config.disk_latency_ns)
            }
            TransferDirection::HostToDevice => {
                TransferQueue::new(config.host_to_device_bytes_per_s, config.host_latency_ns, 0)
            }
        };
        let shared = |way: TransferDirection| {
            let (tier, latency_ns) = match way {
                TransferDirection::DeviceToHost | TransferDirection::HostToDevice => {
                    (config.shared_host?, config.host_latency_ns)
                }
                TransferDirection::HostToDisk | TransferDirection::DiskToHost => {
                    (config.shared_disk?, config.disk_latency_ns)
                }
            };
            let (own_bytes_per_s, of_all) = match way {
                TransferDirection::DeviceToHost => (config.device_to_host_bytes_per_s, tier.write_bytes_per_s),
                TransferDirection::HostToDevice => (config.host_to_device_bytes_per_s, tier.read_bytes_per_s),
                TransferDirection::HostToDisk => (config.host_to_disk_bytes_per_s, tier.write_bytes_per_s),
                TransferDirection::DiskToHost => (config.disk_to_host_bytes_per_s, tier.read_bytes_per_s),
            };
            Some(SharedTransferQueue::new(own_bytes_per_s, of_all, latency_ns))
        };
        let channel =
            |way: TransferDirection| shared(way).map_or_else(|| Channel::Own(vec![own(way)]), Channel::Shared);
        Self {
            block_bytes: config.kv_bytes_per_token.saturating_mul(u64::from(block_size_tokens)),
            now_ns: 0,
            hosts: vec![TierBlocks::new(if by_connector { 0 } else { config.host_blocks })],
            disks: vec![TierBlocks::new(config.disk_blocks)],
            channels: TRANSFER_DIRECTIONS.map(channel),
            loads: Vec::new(),
            vacant_loads: Vec::new(),
            clients: vec![Client::default()],
            at: 0,
            slots: Vec::new(),
            disk_slots: Vec::new(),
            offloading: offloading.into_iter().collect(),
            config,
        }
    }

    /// Processes all transfers that have arrived by `now_ns`.
    pub fn advance(&mut self, now_ns: u64) {
        while let Some((at_ns, client, way)) = self.next_arrival().filter(|(at_ns, ..)| *at_ns <= now_ns) {
            self.now_ns = at_ns;
            self.arrive(way, client);
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// When the next transfer of a load arrives, if nothing else is sent. The tiers must be advanced at that time.
    /// While a request is skipped because of a transfer, the next transfer of any kind counts.
    #[must_use]
    pub fn next_load_ns(&self) -> Option<u64> {
        let awaits_stores = self.awaits_stores();
        if self.config.is_shared() {
            let client = self.client();
            if !client.complete.is_empty() {
                return Some(self.now_ns);
            }
            // Loads of other engines may occupy the whole shared channel.
            if client.num_loads == 0 && !awaits_stores {
                return None;
            }
        }
        let stores = awaits_stores.then_some(TransferDirection::DeviceToHost);
        let ways = [TransferDirection::DiskToHost, TransferDirection::HostToDevice].into_iter().chain(stores);
        ways.filter_map(|way| self.channels[way as usize].next_of(self.at)).min()
    }

    /// Length of the longest prefix of `hashes` that the tiers hold.
    #[must_use]
    pub fn find_run(&self, hashes: &[BlockHash]) -> TierRun {
        let mut run = TierRun::default();
        for &hash in hashes {
            if self.is_in_host(hash) {
                run.host_blocks += 1;
            } else if self.disk().find_ready(hash).is_some() {
                run.disk_blocks += 1;
            } else {
                break;
            }
        }
        run
    }

    fn is_in_host(&self, hash: BlockHash) -> bool {
        match self.offloading() {
            Some(offloading) => offloading.is_ready(hash),
            None => self.host().find_ready(hash).is_some(),
        }
    }

    /// Marks all blocks of `hashes` in the tiers as used. The first block of the sequence is marked last,
    /// so that it is evicted last.
    pub(crate) fn touch(&mut self, hashes: &[BlockHash]) {
        let (host, disk) = (self.host_of(self.at), self.disk_of(self.at));
        for &hash in hashes.iter().rev() {
            for tier in [&mut self.hosts[host], &mut self.disks[disk]] {
                if let Some(slot) = tier.find(hash) {
                    tier.touch(slot);
                }
            }
        }
    }

    /// Sends blocks to the host, except those that the host already holds. `hashes` are the blocks of a sequence from
    /// its start; blocks before index `first` are not sent.
    pub(crate) fn offload(&mut self, hashes: &[BlockHash], first: usize) {
        let mut batch = std::mem::take(&mut self.slots);
        batch.clear();
        for &hash in &hashes[first..] {
            if self.host().find(hash).is_some() {
                continue;
            }
            // No block can be evicted: all places are being read or written.
            let Some(slot) = self.reserve_in_host(self.at, hash) else { break };
            batch.push(slot);
            if batch.len() == self.config.offload_batch_size as usize {
                self.send(TransferDirection::DeviceToHost, self.at, None, batch.len() as u32, &batch);
                batch.clear();
            }
        }
        if !batch.is_empty() {
            self.send(TransferDirection::DeviceToHost, self.at, None, batch.len() as u32, &batch);
        }
        self.slots = batch;
        self.touch(hashes);
    }

    /// Starts to load `hashes` to the device. The tiers hold all of these blocks.
    pub(crate) fn start_load(&mut self, request: RequestId, hashes: &[BlockHash], end_tokens: u32) -> TierRun {
        let mut host_slots = std::mem::take(&mut self.slots);
        let mut disk_slots = std::mem::take(&mut self.disk_slots);
        host_slots.clear();
        disk_slots.clear();
        // All blocks are pinned first, because blocks from the disk can evict other blocks from the host.
        let (client, host, disk) = (self.at, self.host_of(self.at), self.disk_of(self.at));
        for &hash in hashes {
            if let Some(slot) = self.hosts[host].find_ready(hash) {
                self.hosts[host].pin(slot);
                host_slots.push(slot);
            } else {
                let slot = self.disks[disk].find_ready(hash).expect("the tiers hold every block of a load");
                self.disks[disk].pin(slot);
                disk_slots.push(slot);
            }
        }
        let run = TierRun { host_blocks: host_slots.len() as u32, disk_blocks: disk_slots.len() as u32 };
        let parts = u32::from(run.host_blocks > 0) + u32::from(run.disk_blocks > 0);
        let load = self.add_load(Load { client, request: Some(request), end_tokens, parts });
        if run.host_blocks > 0 {
            self.send(TransferDirection::HostToDevice, client, Some(load), run.host_blocks, &host_slots);
        }
        if run.disk_blocks > 0 {
            // Pairs of a place on the disk and a place in the host, if there is one.
            host_slots.clear();
            for &slot in &disk_slots {
                let hash = self.disks[disk].hash(slot);
                let is_there = self.hosts[host].find(hash).is_some();
                let in_host = if is_there { None } else { self.reserve_in_host(client, hash) };
                host_slots.extend([slot, in_host.unwrap_or(NIL)]);
            }
            self.send(TransferDirection::DiskToHost, client, Some(load), run.disk_blocks, &host_slots);
        }
        let client = self.client_mut();
        client.num_loads += 1;
        client.stats.loads += 1;
        client.stats.host_hit_blocks += u64::from(run.host_blocks);
        client.stats.disk_hit_blocks += u64::from(run.disk_blocks);
        self.slots = host_slots;
        self.disk_slots = disk_slots;
        self.touch(hashes);
        run
    }

    /// Detaches a load from its request, which has ended. The load itself continues.
    pub(crate) fn forget_load(&mut self, request: RequestId) {
        let at = self.at;
        for load in self.loads.iter_mut().filter(|load| load.client == at && load.request == Some(request)) {
            load.request = None;
        }
        self.client_mut().complete.retain(|&(other, _)| other != request);
    }

    /// Number of blocks in the host and on the disk, including blocks that are still being written.
    #[must_use]
    pub fn num_blocks(&self) -> (u32, u32) {
        let in_host = self.offloading().map_or(self.host().len(), Offloading::num_chunks);
        (in_host, self.disk().len())
    }

    /// The blocks of a tier that may be evicted, in eviction order.
    pub fn evictable(&self, tier: KvTier) -> impl Iterator<Item = BlockHash> + '_ {
        // If a connector manages the host tier, the list of that tier is empty.
        let (blocks, connector) = match tier {
            KvTier::Host => (self.host(), self.offloading()),
            KvTier::Disk => (self.disk(), None),
        };
        let own = blocks.evictable().map(|slot| blocks.hash(slot));
        own.chain(connector.into_iter().flat_map(Offloading::evictable))
    }

    /// Checks all invariants by walking both tiers.
    ///
    /// # Panics
    /// If any invariant is violated.
    pub fn assert_consistent(&self) {
        self.hosts.iter().chain(&self.disks).for_each(TierBlocks::assert_consistent);
        self.offloading.iter().for_each(Offloading::assert_consistent);
    }

    fn next_arrival(&self) -> Option<(u64, u32, TransferDirection)> {
        let next = TRANSFER_DIRECTIONS.into_iter().filter_map(|way| {
            let (at_ns, client) = self.channels[way as usize].next()?;
            Some((at_ns, client, way))
        });
        // If several transfers arrive at the same time, this is the first in order.
        next.min_by_key(|&(at_ns, ..)| at_ns)
    }

    fn arrive(&mut self, way: TransferDirection, client: u32) {
        let mut slots = std::mem::take(&mut self.slots);
        if let Some(transfer) = self.channels[way as usize].pop(self.now_ns, client, &mut slots) {
            match transfer.load {
                Some(job) if !self.offloading.is_empty() => {
                    let at = self.at;
                    self.enter(transfer.client);
                    self.arrive_connected(way, u64::from(job), transfer.num_blocks, &slots);
                    self.enter(at);
                }
                _ => self.end_transfer(way, transfer, &mut slots),
            }
        }
        self.slots = slots;
    }

    fn end_transfer(&mut self, way: TransferDirection, transfer: Arrived, slots: &mut Vec<Slot>) {
        let client = transfer.client;
        let (host, disk) = (self.host_of(client), self.disk_of(client));
        match way {
            TransferDirection::DeviceToHost => {
                for &slot in &*slots {
                    self.hosts[host].set_ready(slot);
                    self.note(client, KvTier::Host, self.hosts[host].hash(slot), true);
                }
                slots.iter().for_each(|&slot| self.hosts[host].unpin(slot));
            }
            TransferDirection::HostToDisk => {
                for &slot in &*slots {
                    self.disks[disk].set_ready(slot);
                    self.note(client, KvTier::Disk, self.disks[disk].hash(slot), true);
                    self.disks[disk].unpin(slot);
                }
            }
            TransferDirection::DiskToHost => {
                let load = transfer.load.expect("the disk is read for loads");
                self.leave_disk(client, slots);
                if self.loads[load as usize].request.is_some() {
                    self.send(TransferDirection::HostToDevice, client, Some(load), transfer.num_blocks, slots);
                } else {
                    slots.iter().for_each(|&slot| self.hosts[host].unpin(slot));
                    self.end_part(load);
                }
            }
            TransferDirection::HostToDevice => {
                slots.iter().for_each(|&slot| self.hosts[host].unpin(slot));
                self.end_part(transfer.load.expect("the device is written for loads"));
            }
        }
    }

    /// Replaces each pair of places by the place in the host, which now holds the block.
    fn leave_disk(&mut self, client: u32, pairs: &mut Vec<Slot>) {
        let (host, disk) = (self.host_of(client), self.disk_of(client));
        let mut kept = 0;
        for index in (0..pairs.len()).step_by(2) {
            let (on_disk, in_host) = (pairs[index], pairs[index + 1]);
            self.disks[disk].unpin(on_disk);
            if in_host != NIL {
                self.hosts[host].set_ready(in_host);
                self.note(client, KvTier::Host, self.hosts[host].hash(in_host), true);
                pairs[kept] = in_host;
                kept += 1;
            }
        }
        pairs.truncate(kept);
    }

    fn add_load(&mut self, load: Load) -> u32 {
        if let Some(index) = self.vacant_loads.pop() {
            self.loads[index as usize] = load;
            return index;
        }
        self.loads.push(load);
        self.loads.len() as u32 - 1
    }

    fn end_part(&mut self, index: u32) {
        let load = &mut self.loads[index as usize];
        load.parts -= 1;
        if load.parts == 0 {
            self.vacant_loads.push(index);
            let end_tokens = load.end_tokens;
            let request = load.request.take();
            let client = &mut self.clients[load.client as usize];
            client.num_loads -= 1;
            client.complete.extend(request.map(|request| (request, end_tokens)));
        }
    }

    /// Reserves a place in the host. This may move another block to the disk.
    fn reserve_in_host(&mut self, client: u32, hash: BlockHash) -> Option<Slot> {
        let host = self.host_of(client);
        let (slot, evicted) = self.hosts[host].reserve(hash)?;
        if let Some(evicted) = evicted {
            self.note(client, KvTier::Host, evicted, false);
            self.spill(client, evicted);
        }
        Some(slot)
    }

    /// Moves a block that was evicted from the host to the disk.
    fn spill(&mut self, client: u32, hash: BlockHash) {
        let disk = self.disk_of(client);
        if let Some(slot) = self.disks[disk].find(hash) {
            self.disks[disk].touch(slot);
        } else if self.config.disk_blocks > 0
            && let Some((slot, evicted)) = self.disks[disk].reserve(hash)
        {
            if let Some(evicted) = evicted {
                self.note(client, KvTier::Disk, evicted, false);
            }
            self.send(TransferDirection::HostToDisk, client, None, 1, &[slot]);
        }
    }

    fn send(&mut self, way: TransferDirection, client: u32, load: Option<u32>, num_blocks: u32, slots: &[Slot]) {
        self.channels[way as usize].send(self.now_ns, client, load, (num_blocks, self.block_bytes), slots);
    }
}

#[cfg(test)]
mod tests;
