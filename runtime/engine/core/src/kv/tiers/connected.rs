//! Tiers whose host tier is an offloading connector. This is vLLM's connector, for one engine and with our disk below
//! it, or the host tier of Dynamo's mocker, which several engines may share.

use super::blocks::Slot;
use super::offloading::{BegunLoad, Known, Offloading};
use super::{KvTier, KvTiers, TierRun, TransferDirection};
use crate::kv::pool::BlockId;
use crate::request::RequestId;

/// A store that begins when its step ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnsentStore {
    step: u64,
    job: u64,
    num_blocks: u32,
}

impl KvTiers {
    /// The current engine's connector, if it manages the host tier.
    pub(crate) fn offloading(&self) -> Option<&Offloading> {
        self.offloading.get(self.at as usize)
    }

    pub(crate) fn offloading_mut(&mut self) -> Option<&mut Offloading> {
        self.offloading.get_mut(self.at as usize)
    }

    /// Number of tokens that the host and disk have for a request after its first `local_tokens` tokens. None if that
    /// is not known yet.
    pub(crate) fn lookup(&mut self, known: Known<'_>, local_tokens: u32, is_skipped: bool) -> Option<u32> {
        let disk = &self.disks[self.disk_of(self.at)];
        let offloading = self.offloading.get_mut(self.at as usize)?;
        let found = offloading.lookup(known, local_tokens, is_skipped, |key| disk.find_ready(key).is_some());
        self.client_mut().has_deferred |= found.is_none();
        found
    }

    /// Starts to load `external_tokens` tokens after the first `local_tokens`, for a request that has been given its
    /// blocks.
    pub(crate) fn begin_load(
        &mut self,
        known: Known<'_>,
        request: RequestId,
        blocks: &[BlockId],
        local_tokens: u32,
        external_tokens: u32,
    ) -> TierRun {
        let Some(offloading) = self.offloading.get_mut(self.at as usize) else { return TierRun::default() };
        let mut start_ns = self.now_ns;
        if offloading.rules().loads_after_copies() {
            let written = &blocks[(local_tokens / offloading.block_tokens()) as usize..];
            let channel = &self.channels[TransferDirection::DeviceToHost as usize];
            let ends = offloading.copies_of(written).filter_map(|job| channel.arrival_ns(self.at, job as u32));
            start_ns = ends.fold(start_ns, u64::max);
        }
        let begun = offloading.begin_load(known, request, blocks, local_tokens, external_tokens);
        let BegunLoad { job, host_chunks, below } = begun;
        let run = TierRun { host_blocks: host_chunks, disk_blocks: below.len() as u32 };
        if host_chunks > 0 {
            let size = (host_chunks, self.block_bytes);
            self.channels[TransferDirection::HostToDevice as usize].send(
                start_ns,
                self.at,
                Some(job as u32),
                size,
                &[],
            );
        }
        if !below.is_empty() {
            let slots: Vec<Slot> = below.iter().filter_map(|&key| self.disk().find_ready(key)).collect();
            for &slot in &slots {
                self.disks[0].pin(slot);
                self.disks[0].touch(slot);
            }
            let mut places = Vec::with_capacity(2 * slots.len());
            for (&slot, &key) in slots.iter().zip(&below) {
                let has_place = self.offloading_mut().is_some_and(|offloading| offloading.begin_fill(key));
                places.extend([slot, Slot::from(has_place)]);
            }
            self.send(TransferDirection::DiskToHost, self.at, Some(job as u32), run.disk_blocks, &places);
            self.spill_evicted();
        }
        let client = self.client_mut();
        client.num_loads += 1;
        let stats = &mut client.stats;
        stats.loads += 1;
        stats.host_hit_blocks += u64::from(run.host_blocks);
        stats.disk_hit_blocks += u64::from(run.disk_blocks);
        run
    }

    /// Queues the stores of a step. They are sent when the step ends, or now if there is no step.
    pub(crate) fn queue_stores(&mut self, step: Option<u64>) {
        let Some(offloading) = self.offloading.get(self.at as usize) else { return };
        let stores = offloading.latest().stores.iter();
        let unsent = stores.map(|store| UnsentStore {
            step: step.unwrap_or(0),
            job: store.job,
            num_blocks: store.places.len() as u32,
        });
        let client = &mut self.clients[self.at as usize];
        client.unsent.extend(unsent);
        let flushed: Vec<u64> = offloading.latest().flushed.iter().copied().collect();
        client.flushes.extend(step.filter(|_| !flushed.is_empty()).map(|step| (step, flushed)));
        if offloading.rules().holds_copied_blocks() {
            client.num_held_copies += offloading.latest().stores.len() as u32;
        }
        self.spill_evicted();
        if step.is_none() {
            // Stores of steps in flight stay queued.
            let unsent = &mut self.client_mut().unsent;
            let (now, later): (Vec<UnsentStore>, Vec<UnsentStore>) = unsent.drain(..).partition(|one| one.step == 0);
            unsent.extend(later);
            now.iter().for_each(|store| self.send_store(store));
        }
    }

    pub(crate) fn send_stores(&mut self, step: u64) {
        while let Some(store) = self.client_mut().unsent.pop_front_if(|store| store.step <= step) {
            self.send_store(&store);
        }
    }

    /// Begins a step at `start_ns`. Returns how long the step waits for copies of blocks that it reuses, in
    /// nanoseconds.
    pub(crate) fn flush_stores(&mut self, step: u64, start_ns: u64) -> u64 {
        let mut until_ns = start_ns;
        while let Some((_, jobs)) = self.client_mut().flushes.pop_front_if(|(other, _)| *other <= step) {
            for job in jobs {
                let unsent = &mut self.client_mut().unsent;
                if let Some(index) = unsent.iter().position(|store| store.job == job)
                    && let Some(store) = unsent.remove(index)
                {
                    let start_ns = start_ns.max(self.now_ns);
                    let (client, size) = (self.at, (store.num_blocks, self.block_bytes));
                    self.channels[TransferDirection::DeviceToHost as usize].send(
                        start_ns,
                        client,
                        Some(job as u32),
                        size,
                        &[],
                    );
                }
                let arrival_ns =
                    self.channels[TransferDirection::DeviceToHost as usize].arrival_ns(self.at, job as u32);
                until_ns = until_ns.max(arrival_ns.unwrap_or(start_ns));
            }
        }
        until_ns - start_ns
    }

    /// Whether a step in flight or the next step stores anything.
    pub(crate) fn has_pending_stores(&self) -> bool {
        let is_pending = |offloading: &Offloading| offloading.has_pending_work() || offloading.stores_outputs();
        // A request that was skipped may be admitted when a copy ends.
        let client = self.client();
        !client.unsent.is_empty() || client.has_deferred || self.offloading().is_some_and(is_pending)
    }

    /// Whether a request has been skipped because of a transfer since the step began.
    #[must_use]
    pub fn has_deferred(&self) -> bool {
        self.client().has_deferred
    }

    /// Whether the current engine may continue when a copy to the host ends, because a request was skipped for
    /// a transfer or blocks are held until they are copied.
    #[must_use]
    pub fn awaits_stores(&self) -> bool {
        let client = self.client();
        client.has_deferred || client.num_held_copies > 0 || !client.copied.is_empty()
    }

    pub(crate) fn recomputes_last_block(&self) -> bool {
        self.config.rules.recomputes_last_block()
    }

    /// Whether a transfer that a request may wait for has ended since the last call.
    pub(crate) fn take_progress(&mut self) -> bool {
        let has_progress = std::mem::take(&mut self.client_mut().has_progress);
        if has_progress && self.config.rules.sleeps_until_transfers() {
            self.client_mut().has_deferred = false;
        }
        has_progress
    }

    /// Blocks held for copies that have ended since the last call, by transfer.
    pub(crate) fn take_copied(&mut self) -> Vec<Vec<BlockId>> {
        std::mem::take(&mut self.client_mut().copied)
    }

    /// The blocks that the latest step copies, by transfer. They are held until their transfer ends.
    pub(crate) fn blocks_to_hold(&self) -> impl Iterator<Item = &[BlockId]> {
        let offloading = self.offloading().filter(|offloading| offloading.rules().holds_copied_blocks());
        offloading
            .into_iter()
            .flat_map(|offloading| offloading.latest().stores.iter().map(|store| offloading.blocks_of(store.job)))
    }

    pub(super) fn cancel_store(&mut self, store: &UnsentStore) {
        if let Some(offloading) = self.offloading_mut() {
            offloading.cancel_store(store.job);
        }
    }

    pub(crate) fn begin_step(&mut self) {
        // Sleeping requests are not looked up again, but they still wait.
        if !self.config.rules.sleeps_until_transfers() {
            self.client_mut().has_deferred = false;
        }
    }

    /// Whether an engine other than the current one may continue when a transfer ends.
    #[must_use]
    pub fn others_await_stores(&self) -> bool {
        let others = self.clients.iter().enumerate().filter(|&(client, _)| client as u32 != self.at);
        others.into_iter().any(|(_, client)| client.has_deferred || client.num_held_copies > 0)
    }

    fn send_store(&mut self, store: &UnsentStore) {
        self.send(TransferDirection::DeviceToHost, self.at, Some(store.job as u32), store.num_blocks, &[]);
    }

    /// Handles the arrival of a transfer of the connector.
    pub(super) fn arrive_connected(&mut self, way: TransferDirection, job: u64, num_blocks: u32, places: &[Slot]) {
        let at = self.at as usize;
        match way {
            TransferDirection::DeviceToHost => {
                let offloading = &mut self.offloading[at];
                let keys = offloading.keys_of(job).to_vec();
                if offloading.rules().holds_copied_blocks() {
                    let client = &mut self.clients[at];
                    client.num_held_copies = client.num_held_copies.saturating_sub(1);
                    client.copied.push(offloading.blocks_of(job).to_vec());
                }
                offloading.end_job(job);
                for key in keys {
                    self.note(self.at, KvTier::Host, key, true);
                }
            }
            TransferDirection::DiskToHost => {
                for pair in places.chunks_exact(2) {
                    self.disks[0].unpin(pair[0]);
                    if pair[1] != 0 {
                        let key = self.disk().hash(pair[0]);
                        self.offloading[at].end_fill(job, key);
                        self.note(self.at, KvTier::Host, key, true);
                    }
                }
                self.send(TransferDirection::HostToDevice, self.at, Some(job as u32), num_blocks, &[]);
            }
            TransferDirection::HostToDevice => {
                let load = self.offloading[at].end_part(job);
                let client = self.client_mut();
                client.num_loads -= u32::from(load.is_some());
                client.complete.extend(load.map(|load| (load.request, load.end_tokens)));
            }
            TransferDirection::HostToDisk => {}
        }
        self.note_progress();
    }

    /// Wakes requests that wait for a transfer, of the current engine and of engines that share its host tier.
    pub(super) fn note_progress(&mut self) {
        let at = self.at as usize;
        let seen = if self.config.shared_host.is_some() { &mut self.clients[..] } else { &mut self.clients[at..=at] };
        seen.iter_mut().for_each(|client| client.has_progress = true);
    }

    /// Moves chunks that were evicted from the host to the disk.
    fn spill_evicted(&mut self) {
        let evicted = self.offloading_mut().map(Offloading::take_evicted).unwrap_or_default();
        for key in evicted {
            self.note(self.at, KvTier::Host, key, false);
            self.spill(self.at, key);
        }
    }
}
