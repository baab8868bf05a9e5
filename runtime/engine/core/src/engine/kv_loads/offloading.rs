//! vLLM's offloading connector in the scheduler. The tiers or the driver perform its transfers.

use super::{External, KvLoads};
use crate::OffloadingMoves;
use crate::engine::Engine;
use crate::kv::pool::BlockId;
use crate::kv::tiers::offloading::{EndedLoad, Known, Offloading, Storing};
use crate::kv::tiers::{KvTiers, TierRun};
use crate::plan::{ExternalHit, ExternalLookup, ScheduledKind, StepPlan, TierLoad};
use crate::request::table::RequestTable;
use crate::request::{Flags, Request, RequestId, RequestStatus};

impl Engine {
    /// The copies of the [offloading connector](crate::KvConnector::offloading) in the latest step, if there is a
    /// connector.
    #[must_use]
    pub fn offloading_moves(&self) -> Option<&OffloadingMoves> {
        self.kv_loads.offloading().map(Offloading::latest)
    }

    /// Tags of the requests whose loads are among these jobs of the offloading connector.
    #[must_use]
    pub fn loads_of_jobs(&self, jobs: &[u64]) -> Vec<u64> {
        let Some(offloading) = self.kv_loads.driven() else { return Vec::new() };
        let requests = jobs.iter().filter_map(|&job| offloading.loads_for(job));
        let mut tags: Vec<u64> = requests.map(|id| self.requests[id].tag).collect();
        tags.sort_unstable();
        tags
    }

    /// Whether a request waits for a transfer of the tiers or for blocks that are being copied, so that nothing else
    /// may wake it.
    #[must_use]
    pub fn has_deferred_lookups(&self) -> bool {
        self.kv_tiers().is_some_and(KvTiers::awaits_stores)
    }

    /// Nanoseconds for which the oldest step in flight waits for copies of blocks that it reuses, if it begins at
    /// `start_ns`.
    pub fn flush_for_oldest(&mut self, start_ns: u64) -> u64 {
        let step = self.steps.applied() + 1;
        self.kv_tiers_mut().map_or(0, |tiers| tiers.flush_stores(step, start_ns))
    }

    /// Nanoseconds for which the latest step waits for copies of blocks that it reuses, if it begins at `start_ns`.
    pub fn flush_for_newest(&mut self, start_ns: u64) -> u64 {
        let step = self.stats.steps;
        self.kv_tiers_mut().map_or(0, |tiers| tiers.flush_stores(step, start_ns))
    }

    /// Stores the remaining blocks of ended requests if nothing can run. vLLM makes an empty step for this.
    pub(in crate::engine) fn settle_offloading(&mut self) {
        let is_idle = self.steps_in_flight() == 0 && !self.has_schedulable_requests();
        let offloading = self.kv_tiers().and_then(|tiers| tiers.offloading());
        if !is_idle || !offloading.is_some_and(Offloading::has_ended_requests) {
            return;
        }
        let block_size = self.config.block_size();
        self.kv_loads.store_step(&StepPlan::default(), &self.requests, self.stats.steps, block_size);
    }

    /// After a transfer of the tiers has ended, wakes the requests that wait for one and frees the blocks held for
    /// finished copies.
    pub(in crate::engine) fn see_transfers(&mut self) {
        let Some(tiers) = &mut self.kv_loads.tiers else { return };
        if !tiers.take_progress() {
            return;
        }
        for blocks in tiers.take_copied() {
            self.kv_cache.pool_mut().release(&blocks);
            self.queues.set_destination_blocked(false);
        }
        self.queues.wake(&mut self.requests);
    }

    /// Keeps the blocks that the latest step copies to a shared host allocated until the copy ends.
    pub(in crate::engine) fn hold_copied_blocks(&mut self) {
        let Some(tiers) = &self.kv_loads.tiers else { return };
        for blocks in tiers.blocks_to_hold() {
            self.kv_cache.pool_mut().touch(blocks);
        }
    }

    pub(super) fn end_offloaded_load(&mut self, id: RequestId) {
        match self.requests[id].status {
            RequestStatus::WaitingForRemoteKv => {
                self.end_load(id);
                if self.config.host_rules().takes_over_on_arrival() {
                    self.take_over_load(id);
                }
            }
            // The request was aborted while its blocks were being written.
            RequestStatus::HoldingKv => self.release_held_kv(id),
            _ => {}
        }
    }
}

impl KvLoads {
    /// Whether stores are pending, so that a step of decodes cannot be predicted.
    pub(in crate::engine) fn has_pending_stores(&self) -> bool {
        self.offloads && self.tiers.as_ref().is_some_and(|tiers| tiers.has_pending_stores())
    }

    pub(in crate::engine) fn may_store(&self, request: &Request) -> bool {
        self.offloads && self.offloading().is_some_and(|offloading| offloading.may_store(request.sequence))
    }

    /// Records that a member of the steady decode got this block. It may still be copied for an ended request.
    pub(in crate::engine) fn note_taken_block(&mut self, block: Option<BlockId>) {
        if self.offloads
            && let Some(offloading) = self.offloading_mut()
        {
            offloading.take_block(block);
        }
    }

    /// Forgets the blocks taken in skipped steps, during which no copies were in progress.
    pub(in crate::engine) fn forget_taken_blocks(&mut self) {
        if self.offloads
            && let Some(offloading) = self.offloading_mut()
        {
            offloading.forget_taken_blocks();
        }
    }

    pub(in crate::engine) fn begin_offloading(&mut self, request: &Request) {
        if let Some(offloading) = self.offloading_mut() {
            offloading.begin(request.sequence, request.tag);
        }
    }

    /// The KV that the connector has for a request after the first `local_tokens` tokens.
    pub(super) fn lookup_offloading(
        &mut self,
        request: &mut Request,
        local_tokens: u32,
        block_size_tokens: u32,
        plan: &mut StepPlan,
    ) -> Option<External> {
        request.ensure_hashed(block_size_tokens);
        let is_skipped = request.flags.has(Flags::SKIPS_LOOKUP);
        let found = match (&mut self.connector, &mut self.tiers) {
            (_, Some(tiers)) => tiers.lookup(known(request), local_tokens, is_skipped),
            (Some(connector), None) => {
                connector.offloading_mut()?.lookup(known(request), local_tokens, is_skipped, |_| false)
            }
            (None, None) => Some(0),
        };
        if self.connector.is_some() {
            let hit = ExternalHit { tokens: found, is_async: found.is_some_and(|tokens| tokens > 0) };
            plan.external_lookups.push(ExternalLookup { tag: request.tag, local_tokens, hit });
        }
        // For a request that skips the lookup, the scheduler ignores every answer, even that none is known yet.
        if is_skipped {
            return Some(External::default());
        }
        found.map(|tokens| External { tokens, is_async: tokens > 0 })
    }

    /// Starts the load of the KV found for a request, which now holds its blocks.
    pub(in crate::engine) fn begin_offloaded_load(
        &mut self,
        id: RequestId,
        request: &Request,
        local_tokens: u32,
        external_tokens: u32,
        block_size_tokens: u32,
        plan: &mut StepPlan,
    ) {
        let blocks = &request.block_table;
        if let Some(tiers) = &mut self.tiers {
            let TierRun { disk_blocks, .. } =
                tiers.begin_load(known(request), id, blocks, local_tokens, external_tokens);
            // If the whole prompt was found, the last token or the last block is recomputed.
            let again = if tiers.recomputes_last_block() { block_size_tokens } else { 1 };
            let usable_tokens = (request.num_tokens - 1) / again * again;
            let loaded_tokens = external_tokens.min(usable_tokens - local_tokens);
            let disk_tokens = (disk_blocks * block_size_tokens).min(loaded_tokens);
            plan.tier_loads.push(TierLoad {
                request: id,
                tag: request.tag,
                device_tokens: local_tokens,
                host_tokens: loaded_tokens - disk_tokens,
                disk_tokens,
            });
        } else if let Some(offloading) = self.connector.as_mut().and_then(|connector| connector.offloading_mut()) {
            offloading.begin_load(known(request), id, blocks, local_tokens, external_tokens);
        }
    }

    /// Whether the connector is still writing the blocks of a request that waits for its load.
    pub(in crate::engine) fn is_loading_offloaded(&self, request: &Request) -> bool {
        let offloading = self.tiers.as_ref().and_then(|tiers| tiers.offloading());
        offloading.is_some_and(|offloading| offloading.has_jobs(request.sequence))
    }

    pub(in crate::engine) fn end_offloading(
        &mut self,
        request: &mut Request,
        computed_tokens: u32,
        block_size_tokens: u32,
    ) {
        if !self.offloads {
            return;
        }
        let Some(offloading) = self.offloading_mut() else { return };
        request.ensure_hashed(block_size_tokens);
        let (known_tokens, prompt) = (request.num_tokens, request.prompt_tokens);
        offloading.end(known(request), Storing { computed: computed_tokens, known: known_tokens, prompt });
    }

    /// Lets the connector store the blocks of step `step`, whose plan is complete.
    pub(in crate::engine) fn store_step(
        &mut self,
        plan: &StepPlan,
        requests: &RequestTable,
        step: u64,
        block_size_tokens: u32,
    ) {
        let Some(offloading) = self.offloading_mut() else { return };
        for entry in &plan.scheduled {
            let is_new = entry.kind != ScheduledKind::Running;
            if is_new || !entry.blocks.is_empty() {
                let blocks = &plan.block_ids[entry.blocks.start as usize..entry.blocks.end as usize];
                let known = if is_new { entry.num_computed_tokens / block_size_tokens } else { 0 };
                offloading.give(requests[entry.request].sequence, is_new, blocks, known as usize);
            }
        }
        for &tag in &plan.preempted {
            if let Some(id) = requests.find(tag) {
                offloading.preempt(requests[id].sequence);
            }
        }
        offloading.flush_given();
        for entry in &plan.scheduled {
            let request = &requests[entry.request];
            let goes_on = entry.kind == ScheduledKind::Running && !entry.is_prefill;
            if !goes_on || offloading.may_store(request.sequence) {
                let computed = entry.num_computed_tokens + entry.num_scheduled_tokens;
                let tokens = Storing { computed, known: request.num_tokens, prompt: request.prompt_tokens };
                offloading.store(request.sequence, &request.block_hashes, tokens);
            }
        }
        offloading.end_step();
        if let Some(tiers) = &mut self.tiers {
            tiers.queue_stores((!plan.is_empty()).then_some(step));
        }
    }

    /// Ends the jobs that the connector's workers report. Returns the tags of the requests whose loads are among
    /// them.
    pub(super) fn end_offloading_jobs(&mut self, jobs: &[u64], requests: &RequestTable) -> Vec<u64> {
        let driven = self.connector.as_mut().and_then(|connector| connector.offloading_mut());
        let Some(offloading) = driven else { return Vec::new() };
        let loads: Vec<EndedLoad> = jobs.iter().filter_map(|&job| offloading.end_job(job)).collect();
        let mut tags: Vec<u64> = loads.iter().map(|load| requests[load.request].tag).collect();
        tags.sort_unstable();
        tags
    }
}

fn known(request: &Request) -> Known<'_> {
    let (num_tokens, prompt_tokens) = (request.num_tokens, request.prompt_tokens);
    Known { sequence: request.sequence, hashes: &request.block_hashes, num_tokens, prompt_tokens }
}
