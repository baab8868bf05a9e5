//! A KV connector of the scheduler: KV found elsewhere, its loads, and their failures.
//!
//! Follows vLLM's `Scheduler` with a `KVConnectorBase_V1` (`vllm/v1/core/sched/scheduler.py`, 0.32 and 0.33). The
//! connector itself belongs to the driver. Before a step, the driver reports what the connector finds for each
//! request. After the step, it reports finished transfers. For the offloading connector it reports only
//! finished transfers.

use std::collections::BTreeMap;

use super::KvLoads;
use crate::config::{EngineConfig, LoadFailures, Policy};
use crate::engine::Engine;
use crate::kv::pool::BlockId;
use crate::kv::tiers::offloading::{ConnectorRules, Offloading};
use crate::plan::{ExternalHit, ExternalLookup, RequestOutput, StepOutputs, StepPlan};
use crate::request::{FinishReason, Flags, KvRole, Request, RequestId, RequestStatus};

/// The report of a connector's workers with the result of a step (vLLM's `KVConnectorOutput`). Requests are given by
/// their tags and handled in the given order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvTransferReport {
    /// Requests whose loads have ended, including failed loads.
    pub finished_recving: Vec<u64>,
    /// Ended requests whose held KV has been read.
    pub finished_sending: Vec<u64>,
    /// Blocks that loads failed to fill. With several groups, vLLM reports failed requests instead.
    pub invalid_blocks: Vec<BlockId>,
    /// Requests for which no KV arrived.
    pub failed_recving: Vec<u64>,
    /// Numbers of the finished jobs of the offloading connector. A request whose load is one of these jobs
    /// need not be in `finished_recving`.
    pub completed_jobs: Vec<u64>,
}

impl KvTransferReport {
    fn is_empty(&self) -> bool {
        self.finished_recving.is_empty()
            && self.finished_sending.is_empty()
            && self.invalid_blocks.is_empty()
            && self.failed_recving.is_empty()
            && self.completed_jobs.is_empty()
    }
}

/// KV found for a request beyond the local cache.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct External {
    pub(in crate::engine) tokens: u32,
    /// Whether the request waits while the KV is loaded.
    pub(in crate::engine) is_async: bool,
}

#[derive(Debug, Default)]
pub(super) struct ConnectorState {
    answers: BTreeMap<u64, ExternalHit>,
    report: KvTransferReport,
    /// vLLM's offloading connector, if it answers the lookups.
    offloading: Option<Box<Offloading>>,
}

impl ConnectorState {
    /// The connector for these settings, if there is one. For a connector that belongs to tiers, only the
    /// frees are handled here.
    pub(super) fn of(config: &EngineConfig) -> Option<Box<Self>> {
        let options = config.kv_connector()?.offloading;
        let rules = ConnectorRules::Vllm(config.rules());
        let (block_size, has_cache) = (config.block_size(), config.enable_prefix_caching());
        let offloading = options.map(|options| Box::new(Offloading::new(options, rules, block_size, has_cache)));
        Some(Box::new(Self { offloading, ..Self::default() }))
    }

    pub(super) fn offloading(&self) -> Option<&Offloading> {
        self.offloading.as_deref()
    }

    pub(super) fn offloading_mut(&mut self) -> Option<&mut Offloading> {
        self.offloading.as_deref_mut()
    }
}

impl KvLoads {
    /// The driver's connector.
    ///
    /// # Panics
    /// If there is no connector: a driver bug.
    fn connector_mut(&mut self) -> &mut ConnectorState {
        self.connector.as_mut().expect("an engine with a connector")
    }

    fn take_report(&mut self) -> Option<KvTransferReport> {
        self.connector.as_mut().map(|connector| std::mem::take(&mut connector.report))
    }

    /// The KV that the connector has for a request after the first `local_tokens` tokens. None if that is not known
    /// yet.
    pub(in crate::engine) fn lookup_external(
        &mut self,
        request: &mut Request,
        local_tokens: u32,
        block_size_tokens: u32,
        plan: &mut StepPlan,
    ) -> Option<External> {
        if self.offloads {
            return self.lookup_offloading(request, local_tokens, block_size_tokens, plan);
        }
        let Some(connector) = &self.connector else { return Some(External::default()) };
        let tag = request.tag;
        let hit = if request.kv_role == KvRole::Destination {
            let left_tokens = self.left_to_decode;
            let kept = if request.prompt_tokens > left_tokens { left_tokens } else { 0 };
            let tokens = (request.prompt_tokens - kept).saturating_sub(local_tokens);
            ExternalHit { tokens: Some(tokens), is_async: tokens > 0 }
        } else {
            connector.answers.get(&tag).copied().unwrap_or(ExternalHit { tokens: Some(0), is_async: false })
        };
        plan.external_lookups.push(ExternalLookup { tag, local_tokens, hit });
        // The connector is called even so, because it may record the request.
        if request.flags.has(Flags::SKIPS_LOOKUP) {
            return Some(External::default());
        }
        let most = request.num_tokens - local_tokens;
        let External { mut tokens, is_async } = External { tokens: hit.tokens?, is_async: hit.is_async };
        tokens = tokens.min(if is_async { most } else { most.saturating_sub(1) });
        Some(External { tokens, is_async: is_async && tokens > 0 })
    }
}

impl Engine {
    /// Sets the connector's answers for the lookups of the next step, by tag. Without an answer, a lookup
    /// finds nothing, except that a [`KvRole::Destination`] finds its whole prompt once. Afterwards,
    /// [`StepPlan::external_lookups`] lists the lookups of the step.
    ///
    /// # Panics
    /// If the engine has no connector: a driver bug.
    pub fn answer_lookups(&mut self, answers: impl IntoIterator<Item = (u64, ExternalHit)>) {
        let connector = self.kv_loads.connector_mut();
        connector.answers.clear();
        connector.answers.extend(answers);
    }

    /// Sets the workers' report for the result that the next [`Engine::update`] applies, or for an
    /// empty step ([`Engine::apply_transfers`]).
    ///
    /// # Panics
    /// If the engine has no connector, or the report has invalid blocks and there are several groups: a driver bug.
    pub fn report_transfers(&mut self, report: KvTransferReport) {
        let is_known = report.invalid_blocks.is_empty() || self.config.kv_cache_groups().len() < 2;
        assert!(is_known, "blocks of several groups are invalid");
        self.kv_loads.connector_mut().report = report;
    }

    /// Applies the result of an empty step: the [report](Engine::report_transfers), and the ends of
    /// requests whose [grammars have failed](Engine::has_failed_grammars).
    pub fn apply_transfers(&mut self) -> &StepOutputs {
        let mut out = std::mem::take(&mut self.outputs);
        out.clear();
        let (report, failed) = self.begin_report(None);
        self.end_report(&report, &failed, &mut out);
        self.outputs = out;
        &self.outputs
    }

    /// Marks that a prompt has been loaded from another engine, which happens once. Later, missing tokens are computed
    /// here.
    pub(in crate::engine) fn end_destination(&mut self, id: RequestId) {
        let request = &mut self.requests[id];
        if !self.kv_loads.has_connector() || request.kv_role != KvRole::Destination {
            return;
        }
        request.kv_role = KvRole::Local;
        self.prefills.recount(request, |request| request.prefill_target_tokens = request.num_tokens);
    }

    /// Counts the tokens that the connector found for a request that has just been given blocks.
    pub(in crate::engine) fn count_external(&mut self, id: RequestId, local_tokens: u32, external_tokens: u32) {
        let request = &self.requests[id];
        let queried = request.num_tokens - local_tokens;
        if !self.kv_loads.has_connector() || queried == 0 {
            return;
        }
        let resumed = request.flags.has(Flags::WAS_PREEMPTED);
        let stats = if resumed { &mut self.stats.preempted_external } else { &mut self.stats.external };
        stats.requests += 1;
        stats.queried_tokens += u64::from(queried);
        stats.hit_tokens += u64::from(external_tokens);
    }

    /// Lets a request that has been given blocks wait for their KV.
    pub(in crate::engine) fn begin_load(&mut self, id: RequestId, was_holding: bool) {
        let request = &mut self.requests[id];
        request.status = RequestStatus::WaitingForRemoteKv;
        request.flags.set(Flags::TAKEN_OVER, false);
        request.flags.set(Flags::LOST_LOAD, false);
        if !was_holding {
            request.load_order = self.kv_loads.next_order();
        }
        self.queues.begin_load();
        self.prefills.note_in_flight(id, &mut self.requests);
    }

    /// Ends the load of a request. The request continues after its computed tokens.
    pub(in crate::engine) fn end_load(&mut self, id: RequestId) {
        self.end_remote_load(id, RequestStatus::RemoteKvReady);
        let by_arrival = self.config.quirks().admits_in_order_of_arrival();
        self.queues.push_kv_ready(id, by_arrival, &mut self.requests);
    }

    /// Offers the blocks of an ended load to the cache, when the scheduler reaches the request. If nothing arrived, the
    /// request loses its blocks.
    pub(in crate::engine) fn take_over_load(&mut self, id: RequestId) {
        let request = &mut self.requests[id];
        let has_failed = request.flags.has(Flags::LOAD_FAILED);
        request.flags.set(Flags::LOAD_FAILED, false);
        request.flags.set(Flags::TAKEN_OVER, true);
        let computed = request.num_computed_tokens;
        if has_failed && computed == 0 {
            request.flags.set(Flags::LOST_LOAD, true);
            self.kv_cache.take_unfilled(id, request, self.config.block_size());
            return;
        }
        self.store_full_blocks(id, computed);
        // The last token is recomputed, because sampling needs its logits.
        if computed == self.requests[id].num_tokens {
            let is_from_host = self.requests[id].kv_role != KvRole::Destination;
            let whole_block = is_from_host && self.config.host_rules().recomputes_last_block();
            let again = if whole_block { self.config.block_size() } else { 1 };
            self.move_computed(id, computed - again);
        }
        // A request without computed tokens is looked up again, even though it holds a block.
        let request = &self.requests[id];
        let is_asked_again =
            self.kv_loads.has_connector() || self.kv_loads.offloads() && request.kv_role != KvRole::Destination;
        if is_asked_again && request.num_computed_tokens == 0 {
            self.requests[id].flags.set(Flags::LOST_LOAD, true);
        }
    }

    /// Lets a request that has lost its KV wait like other requests without KV.
    pub(in crate::engine) fn forget_load(&mut self, id: RequestId) {
        let request = &mut self.requests[id];
        request.flags.set(Flags::TAKEN_OVER, false);
        request.flags.set(Flags::LOST_LOAD, false);
        let was_preempted = request.flags.has(Flags::WAS_PREEMPTED);
        request.status = if was_preempted { RequestStatus::Preempted } else { RequestStatus::Waiting };
    }

    pub(in crate::engine) fn holds_loaded_kv(&self, id: RequestId) -> bool {
        let request = &self.requests[id];
        request.status == RequestStatus::RemoteKvReady && !request.flags.has(Flags::LOST_LOAD)
    }

    /// Sets the computed tokens of a request whose KV was loaded or lost.
    fn move_computed(&mut self, id: RequestId, computed: u32) {
        self.prefills.recount(&mut self.requests[id], |request| request.num_computed_tokens = computed);
    }

    /// Processes the report and discards tokens that did not arrive. Returns the report, and the requests
    /// whose outputs of this step must be dropped.
    pub(in crate::engine) fn begin_report(&mut self, plan: Option<&StepPlan>) -> (KvTransferReport, Vec<RequestId>) {
        let Some(report) = self.kv_loads.take_report() else { return Default::default() };
        let mut failed = Vec::new();
        if report.is_empty() {
            return (report, failed);
        }
        let recomputes = self.recomputes_failed_loads();
        for tag in &report.failed_recving {
            let Some(id) = self.find(*tag).filter(|&id| self.is_loading(id)) else { continue };
            if recomputes {
                self.move_computed(id, 0);
                self.requests[id].flags.set(Flags::LOAD_FAILED, true);
            } else {
                failed.push(id);
            }
        }
        if report.invalid_blocks.is_empty() {
            return (report, failed);
        }
        let (loading, _) = self.invalidate(&self.loading_in_order(), &report.invalid_blocks, plan);
        let running = self.running.to_vec();
        let (running, lost_blocks) = self.invalidate(&running, &report.invalid_blocks, plan);
        if recomputes {
            loading.iter().for_each(|&id| self.requests[id].flags.set(Flags::LOAD_FAILED, true));
        } else {
            self.kv_cache.evict(lost_blocks);
            failed.extend(loading);
        }
        failed.extend(running);
        (report, failed)
    }

    /// Ends the failed requests and the finished transfers.
    pub(in crate::engine) fn end_report(
        &mut self,
        report: &KvTransferReport,
        failed: &[RequestId],
        out: &mut StepOutputs,
    ) {
        let fails_loads = !self.recomputes_failed_loads();
        if fails_loads || self.has_failed_grammars() {
            self.end_with_errors(if fails_loads { failed } else { &[] }, out);
        }
        let loaded = self.kv_loads.end_offloading_jobs(&report.completed_jobs, &self.requests);
        for tag in report.finished_recving.iter().chain(&loaded) {
            let Some(id) = self.find(*tag) else { continue };
            match self.requests[id].status {
                RequestStatus::WaitingForRemoteKv => self.end_load(id),
                // The request was aborted while its blocks were being written.
                RequestStatus::HoldingKv => self.release_held_kv(id),
                _ => {}
            }
        }
        for tag in &report.finished_sending {
            if let Some(id) = self.find(*tag).filter(|&id| self.requests[id].status == RequestStatus::HoldingKv) {
                self.release_held_kv(id);
            }
        }
    }

    /// Ends requests with failed loads or failed grammars.
    #[cold]
    fn end_with_errors(&mut self, failed_loads: &[RequestId], out: &mut StepOutputs) {
        let mut failed: Vec<RequestId> = failed_loads.to_vec();
        self.list_failed_grammars(&mut failed);
        failed.sort_by_key(|&id| self.requests[id].tag);
        failed.dedup();
        for id in failed {
            let tag = self.requests[id].tag;
            let finish = Some(FinishReason::Error);
            self.abort(id);
            out.outputs.push(RequestOutput {
                request: id,
                tag,
                num_tokens: 0,
                num_sampled_tokens: 1,
                num_draft_tokens: 0,
                finish,
            });
        }
    }

    fn recomputes_failed_loads(&self) -> bool {
        self.config.kv_connector().is_none_or(|connector| connector.load_failures == LoadFailures::Recompute)
    }

    /// Whether a request waits for KV, or for its admission after the KV arrived.
    fn is_loading(&self, id: RequestId) -> bool {
        let request = &self.requests[id];
        match request.status {
            RequestStatus::WaitingForRemoteKv => true,
            RequestStatus::RemoteKvReady => !request.flags.has(Flags::TAKEN_OVER),
            _ => false,
        }
    }

    fn loading_in_order(&self) -> Vec<RequestId> {
        let mut loading: Vec<RequestId> = self.requests.live_ids().filter(|&id| self.is_loading(id)).collect();
        loading.sort_by_key(|&id| {
            let request = &self.requests[id];
            match self.config.policy() {
                Policy::Fcfs => (0, 0, u64::from(request.load_order)),
                Policy::Priority | Policy::Ranked => (request.rank, request.arrival_ns, request.sequence),
            }
        });
        loading
    }

    /// Discards computed tokens from the first invalid block on (vLLM's
    /// `_update_requests_with_invalid_blocks`). If several requests share an invalid block, only the
    /// first of them recomputes it. Returns the requests with invalid blocks, and their blocks from the first
    /// invalid one on.
    fn invalidate(
        &mut self,
        ids: &[RequestId],
        invalid: &[BlockId],
        plan: Option<&StepPlan>,
    ) -> (Vec<RequestId>, Vec<BlockId>) {
        let block_size = self.config.aligned_tokens();
        let (mut affected, mut lost, mut marked) = (Vec::new(), Vec::new(), Vec::new());
        for &id in ids {
            let entry = plan.and_then(|plan| plan.scheduled.iter().find(|entry| entry.request == id));
            let scheduled = entry.map_or(0, |entry| entry.num_scheduled_tokens);
            let request = &self.requests[id];
            let computed = request.num_computed_tokens.saturating_sub(scheduled);
            let holds = |(_, block): &(usize, &BlockId)| invalid.contains(block);
            let table = self.kv_cache.first_table(id, request);
            let blocks = table.iter().take(computed.div_ceil(block_size) as usize).enumerate();
            let held: Vec<(usize, BlockId)> = blocks.filter(holds).map(|(index, &block)| (index, block)).collect();
            if held.is_empty() {
                continue;
            }
            affected.push(id);
            let own = held.iter().find(|(_, block)| !marked.contains(block)).map(|&(index, _)| index);
            if let Some(index) = own {
                // Null blocks stand for blocks that have left a window.
                lost.extend(table[index..].iter().filter(|&&block| block != 0));
            }
            marked.extend(held.into_iter().map(|(_, block)| block));
            self.move_computed(id, own.map_or(computed, |index| index as u32 * block_size));
        }
        (affected, lost)
    }
}
