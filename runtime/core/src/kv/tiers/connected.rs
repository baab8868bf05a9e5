//! Tiers whose host is vLLM's connector for offloading, with our disk below it. They belong to one engine.

use super::blocks::Slot;
use super::offloading::{BegunLoad, Known, Offloading};
use super::{KvTier, KvTiers, TierRun, Way};
use crate::kv::pool::BlockId;
use crate::request::RequestId;

/// A store that begins when its step is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnsentStore {
    /// Number of the step.
    step: u64,
    job: u64,
    num_blocks: u32,
}

impl KvTiers {
    /// The connector, if the host is kept by its rules.
    pub(crate) fn offloading(&self) -> Option<&Offloading> {
        self.offloading.as_deref()
    }

    pub(crate) fn offloading_mut(&mut self) -> Option<&mut Offloading> {
        self.offloading.as_deref_mut()
    }

    /// Tokens that host and disk have of a request behind the first `local_tokens`; none if that is not known yet.
    pub(crate) fn lookup(&mut self, known: Known<'_>, local_tokens: u32, is_skipped: bool) -> Option<u32> {
        let disk = &self.disks[0];
        let offloading = self.offloading.as_mut()?;
        let found = offloading.lookup(known, local_tokens, is_skipped, |key| disk.find_ready(key).is_some());
        self.has_deferred |= found.is_none();
        found
    }

    /// Starts to load `external_tokens` behind the first `local_tokens` of a request that has got its blocks.
    pub(crate) fn begin_load(
        &mut self,
        known: Known<'_>,
        request: RequestId,
        blocks: &[BlockId],
        local_tokens: u32,
        external_tokens: u32,
    ) -> TierRun {
        let Some(offloading) = &mut self.offloading else { return TierRun::default() };
        let begun = offloading.begin_load(known, request, blocks, local_tokens, external_tokens);
        let BegunLoad { job, host_chunks, below } = begun;
        let run = TierRun { host_blocks: host_chunks, disk_blocks: below.len() as u32 };
        if host_chunks > 0 {
            self.send(Way::HostToDevice, self.at, Some(job as u32), host_chunks, &[]);
        }
        if !below.is_empty() {
            let slots: Vec<Slot> = below.iter().filter_map(|&key| self.disk().find_ready(key)).collect();
            for &slot in &slots {
                self.disks[0].pin(slot);
                self.disks[0].touch(slot);
            }
            let mut places = Vec::with_capacity(2 * slots.len());
            for (&slot, &key) in slots.iter().zip(&below) {
                let has_place = self.offloading.as_mut().is_some_and(|offloading| offloading.begin_fill(key));
                places.extend([slot, Slot::from(has_place)]);
            }
            self.send(Way::DiskToHost, self.at, Some(job as u32), run.disk_blocks, &places);
            self.spill_evicted();
        }
        let stats = &mut self.client_mut().stats;
        stats.loads += 1;
        stats.host_hit_blocks += u64::from(run.host_blocks);
        stats.disk_hit_blocks += u64::from(run.disk_blocks);
        run
    }

    /// The stores of a step are known. They are sent when it is over, or at once if it computes nothing.
    pub(crate) fn queue_stores(&mut self, step: Option<u64>) {
        let Some(offloading) = &self.offloading else { return };
        let stores = offloading.latest().stores.iter();
        let unsent = stores.map(|store| UnsentStore {
            step: step.unwrap_or(0),
            job: store.job,
            num_blocks: store.places.len() as u32,
        });
        self.unsent.extend(unsent);
        let flushed: Vec<u64> = offloading.latest().flushed.iter().copied().collect();
        self.flushes.extend(step.filter(|_| !flushed.is_empty()).map(|step| (step, flushed)));
        self.spill_evicted();
        if step.is_none() {
            // Those of steps in flight stay behind them.
            let (now, later): (Vec<UnsentStore>, Vec<UnsentStore>) =
                self.unsent.drain(..).partition(|one| one.step == 0);
            self.unsent.extend(later);
            now.iter().for_each(|store| self.send_store(store));
        }
    }

    /// Sends the stores of steps up to this one, which is over.
    pub(crate) fn send_stores(&mut self, step: u64) {
        while let Some(store) = self.unsent.pop_front_if(|store| store.step <= step) {
            self.send_store(&store);
        }
    }

    /// A step is about to begin at `start_ns`. Gives how long it waits for copies of blocks that it takes again.
    pub(crate) fn flush_stores(&mut self, step: u64, start_ns: u64) -> u64 {
        let mut until_ns = start_ns;
        while let Some((_, jobs)) = self.flushes.pop_front_if(|(other, _)| *other <= step) {
            for job in jobs {
                if let Some(index) = self.unsent.iter().position(|store| store.job == job)
                    && let Some(store) = self.unsent.remove(index)
                {
                    let start_ns = start_ns.max(self.now_ns);
                    let (client, size) = (self.at, (store.num_blocks, self.block_bytes));
                    self.roads[Way::DeviceToHost as usize].send(start_ns, client, Some(job as u32), size, &[]);
                }
                let arrival_ns = self.roads[Way::DeviceToHost as usize].arrival_ns(self.at, job as u32);
                until_ns = until_ns.max(arrival_ns.unwrap_or(start_ns));
            }
        }
        until_ns - start_ns
    }

    /// Whether a step in flight, or the next one, stores something.
    pub(crate) fn has_pending_stores(&self) -> bool {
        let is_pending = |offloading: &Offloading| offloading.has_pending_work() || offloading.stores_outputs();
        // One that was stepped over may be admitted when a copy is over.
        !self.unsent.is_empty() || self.has_deferred || self.offloading().is_some_and(is_pending)
    }

    /// Whether a request was stepped over because of a transfer, since the step began.
    #[must_use]
    pub fn has_deferred(&self) -> bool {
        self.has_deferred
    }

    /// A step is about to be decided.
    pub(crate) fn begin_step(&mut self) {
        self.has_deferred = false;
    }

    fn send_store(&mut self, store: &UnsentStore) {
        self.send(Way::DeviceToHost, self.at, Some(store.job as u32), store.num_blocks, &[]);
    }

    /// A transfer of the connector has arrived.
    pub(super) fn arrive_connected(&mut self, way: Way, job: u64, num_blocks: u32, places: &[Slot]) {
        let Some(mut offloading) = self.offloading.take() else { return };
        match way {
            Way::DeviceToHost => {
                for &key in offloading.keys_of(job) {
                    self.note(self.at, KvTier::Host, key, true);
                }
                offloading.end_job(job);
            }
            Way::DiskToHost => {
                for pair in places.chunks_exact(2) {
                    self.disks[0].unpin(pair[0]);
                    if pair[1] != 0 {
                        let key = self.disk().hash(pair[0]);
                        offloading.end_fill(job, key);
                        self.note(self.at, KvTier::Host, key, true);
                    }
                }
                self.send(Way::HostToDevice, self.at, Some(job as u32), num_blocks, &[]);
            }
            Way::HostToDevice => {
                let load = offloading.end_part(job);
                self.complete_mut().extend(load.map(|load| (load.request, load.end_tokens)));
            }
            Way::HostToDisk => {}
        }
        self.offloading = Some(offloading);
    }

    /// Chunks that have left the host go to the disk.
    fn spill_evicted(&mut self) {
        let evicted = self.offloading.as_mut().map(|offloading| offloading.take_evicted()).unwrap_or_default();
        for key in evicted {
            self.note(self.at, KvTier::Host, key, false);
            self.spill(self.at, key);
        }
    }
}
