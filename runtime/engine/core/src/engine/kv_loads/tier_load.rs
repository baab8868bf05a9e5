//! KV tiers of an engine: loads from the tiers, and offloads to them.

use super::KvLoads;
use crate::engine::Engine;
use crate::kv::tiers::{KvTiers, TierRun};
use crate::plan::{ScheduledKind, StepPlan, TierLoad};
use crate::request::{Flags, Request, RequestId, RequestStatus};

impl Engine {
    /// The tiers below the device, if there are any.
    #[must_use]
    pub fn kv_tiers(&self) -> Option<&KvTiers> {
        self.kv_loads.tiers.as_deref()
    }

    /// The tiers, mutable so that the driver can record their changes and advance them.
    pub fn kv_tiers_mut(&mut self) -> Option<&mut KvTiers> {
        self.kv_loads.tiers.as_deref_mut()
    }

    /// Takes the tiers out, because other engines share them. Until the tiers are given back, the engine
    /// must not be called in a way that may change with a request or with time.
    pub fn take_kv_tiers(&mut self) -> Option<Box<KvTiers>> {
        self.kv_loads.tiers.take()
    }

    /// Sets the shared tiers, or removes the tiers.
    pub fn give_kv_tiers(&mut self, tiers: Option<Box<KvTiers>>) {
        self.kv_loads.tiers = tiers;
    }

    /// Starts to load `blocks` blocks after the latest hit into new blocks of the request. The request waits
    /// without a running slot until they arrive.
    pub(in crate::engine) fn start_tier_load(&mut self, id: RequestId, blocks: u32, plan: &mut StepPlan) {
        let first = self.kv_cache.num_hit_blocks();
        let block_size = self.config.block_size();
        let request = &self.requests[id];
        let end = first + blocks as usize;
        let tiers = self.kv_loads.tiers.as_mut().expect("what is loaded was found in the tiers");
        let hashes = &request.block_hashes[first..end];
        let TierRun { host_blocks, disk_blocks } = tiers.start_load(id, hashes, end as u32 * block_size);
        plan.tier_loads.push(TierLoad {
            request: id,
            tag: request.tag,
            device_tokens: request.num_computed_tokens,
            host_tokens: host_blocks * block_size,
            disk_tokens: disk_blocks * block_size,
        });
        self.begin_load(id, false);
    }

    /// Processes the transfers to and from the tiers that have arrived by `now_ns`. Requests with a complete
    /// load may now be admitted; their tags are appended to `loaded`.
    pub fn advance_tiers(&mut self, now_ns: u64, loaded: &mut Vec<u64>) {
        let Some(tiers) = self.kv_tiers_mut() else { return };
        tiers.advance(now_ns);
        let mut complete = std::mem::take(tiers.complete_mut());
        for (id, end_tokens) in complete.drain(..) {
            if self.requests[id].status == RequestStatus::WaitingForRemoteKv {
                loaded.push(self.requests[id].tag);
            }
            if self.kv_loads.offloads() {
                self.end_offloaded_load(id);
            } else {
                self.tier_load_complete(id, end_tokens);
            }
        }
        if let Some(tiers) = self.kv_tiers_mut() {
            *tiers.complete_mut() = complete;
        }
        // While a step is in flight, nothing is decided. The step's blocks are then freed before the blocks of copies
        // that end in the meantime.
        if self.steps_in_flight() == 0 {
            self.see_transfers();
        }
    }

    fn tier_load_complete(&mut self, id: RequestId, end_tokens: u32) {
        self.end_load(id);
        self.kv_cache.clear_hit();
        self.set_computed(id, end_tokens);
    }

    /// Sends blocks to the host that the oldest step in flight computed; the step ends at `now_ns` and
    /// is not yet applied. By Dynamo's rules, these are the full blocks of prompts.
    pub fn offload_prompts(&mut self, now_ns: u64) {
        let offloads = self.kv_loads.offloads();
        let Some(tiers) = &mut self.kv_loads.tiers else { return };
        tiers.advance(now_ns);
        if offloads {
            return tiers.send_stores(self.steps.applied() + 1);
        }
        let block_size = self.config.block_size();
        for entry in &self.steps.oldest().scheduled {
            let request = &self.requests[entry.request];
            // If a request was aborted or preempted in the meantime, its blocks may already be reused.
            if !entry.is_prefill || request.status != RequestStatus::Running || request.num_stale_tokens > 0 {
                continue;
            }
            let end_tokens = (entry.num_computed_tokens + entry.num_scheduled_tokens).min(request.prompt_tokens);
            let full = ((end_tokens / block_size) as usize).min(request.block_hashes.len());
            // Earlier blocks were offered when they were computed, except blocks found in the cache at an admission.
            let first = match entry.kind {
                ScheduledKind::Running => (entry.num_computed_tokens / block_size) as usize,
                ScheduledKind::New | ScheduledKind::Resumed => 0,
            };
            tiers.offload(&request.block_hashes[..full], first.min(full));
        }
    }
}

impl KvLoads {
    /// Number of blocks that the tiers hold for a request after its first `first` blocks, which are on the device. At
    /// least one token is left to compute.
    pub(in crate::engine) fn lookup_tiers(&mut self, request: &Request, first: usize, block_size_tokens: u32) -> u32 {
        let Some(tiers) = self.tiers.as_mut().filter(|_| !self.offloads) else { return 0 };
        if request.flags.has(Flags::SKIPS_LOOKUP) {
            return 0;
        }
        let most = ((request.num_tokens - 1) / block_size_tokens) as usize;
        let usable = &request.block_hashes[..most.min(request.block_hashes.len())];
        let beyond = &usable[first.min(usable.len())..];
        let run = tiers.find_run(beyond);
        // Found blocks count as used, even if they cannot be loaded now.
        tiers.touch(&beyond[..run.blocks() as usize]);
        run.blocks()
    }
}
