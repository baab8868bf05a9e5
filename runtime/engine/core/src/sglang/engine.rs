//! The engine: its state, and a pass.

use crate::compat::Reservations;
use crate::engine::RejectReason;
use crate::plan::{CountRequests as _, ScheduledKind, ScheduledRequest, StepOutputs, StepPlan};
use crate::request::table::RequestTable;
use crate::request::{Flags, KvRole, RequestId, RequestStatus};
use crate::serving::ServingEngine;
use crate::sglang::PrefillInterval;
use crate::sglang::config::SglangConfig;
use crate::sglang::pages::KvPages;
use crate::sglang::queues::WaitingQueues;
use crate::sglang::reserve::OutputReserve;
use crate::stats::EngineStats;

/// One simulated SGLang engine.
#[derive(Debug)]
pub struct SglangEngine {
    pub(super) config: SglangConfig,
    pub(super) requests: RequestTable,
    pub(super) pages: KvPages,
    /// Requests whose prompts are computed, in order of admission.
    pub(super) running: Vec<RequestId>,
    pub(super) queues: WaitingQueues,
    pub(super) reserve: OutputReserve,
    pub(super) interval: PrefillInterval,
    pub(super) plan: StepPlan,
    pub(super) step_in_flight: bool,
    pub(super) applied_steps: u64,
    pub(super) outputs: StepOutputs,
    pub(super) stats: EngineStats,
    pub(super) outstanding_prefill_tokens: u64,
    /// Scratch buffer: prompts started or continued in a pass.
    pub(super) prefills: Vec<ScheduledRequest>,
    /// Scratch buffer: requests whose prompts a pass completes.
    pub(super) joining: Vec<RequestId>,
    pub(super) retracted: Vec<RequestId>,
    /// Scratch buffer: requests that a pass ends, and how many of their tokens may be
    /// reused.
    pub(super) ended: Vec<(RequestId, u32)>,
    /// Requests whose KV another engine has received since the pass in flight began.
    pub(super) released: Vec<RequestId>,
}

impl SglangEngine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(config: SglangConfig) -> Self {
        Self {
            pages: KvPages::new(&config),
            queues: WaitingQueues::new(&config),
            reserve: OutputReserve::new(&config),
            interval: PrefillInterval::new(config.prefill_decode_interval()),
            config,
            requests: RequestTable::default(),
            running: Vec::new(),
            plan: StepPlan::default(),
            step_in_flight: false,
            applied_steps: 0,
            outputs: StepOutputs::default(),
            stats: EngineStats::default(),
            outstanding_prefill_tokens: 0,
            prefills: Vec::new(),
            joining: Vec::new(),
            retracted: Vec::new(),
            ended: Vec::new(),
            released: Vec::new(),
        }
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &SglangConfig {
        &self.config
    }

    /// Makes the engine one of several ranks that count passes together.
    pub fn count_passes_together(&mut self) {
        self.interval.count_together();
    }

    /// Whether any request decodes in the next pass, if none is retracted before.
    #[must_use]
    pub fn has_decodes(&self) -> bool {
        !self.running.is_empty() || self.queues.num_kv_ready() > 0
    }

    /// Begins a pass of all ranks. `any_decodes` is true if a request of any rank decodes in it. Passes without
    /// decodes take no time.
    pub fn begin_pass_of_ranks(&mut self, any_decodes: bool) {
        if !any_decodes {
            self.skip_decodes_due();
        }
    }

    /// Ends passes of the ranks. `any_prefills` is true if a rank prefilled in the first of them.
    pub fn end_passes_of_ranks(&mut self, passes: u32, any_prefills: bool) {
        self.interval.end_passes(passes, any_prefills);
    }

    pub(super) fn skip_decodes_due(&mut self) {
        if self.interval.skip() {
            self.reserve.restart();
        }
    }

    pub(super) fn set_computed(&mut self, id: RequestId, computed: u32) {
        let request = &mut self.requests[id];
        let before = request.outstanding_prefill_tokens();
        request.num_computed_tokens = computed;
        self.outstanding_prefill_tokens -= u64::from(before - request.outstanding_prefill_tokens());
    }

    /// Number of requests that have or reserve a running slot.
    pub(super) fn num_slots_taken(&self) -> usize {
        let reserved = match self.config.reservations() {
            Reservations::InSteps => self.queues.num_loading() + self.queues.num_kv_ready(),
            Reservations::BetweenSteps => 0,
        };
        self.running.len() + self.joining.len() + reserved
    }

    pub(super) fn enter(plan: &mut StepPlan, entry: ScheduledRequest, emits: bool) {
        // A retracted request starts again, with its outputs as part of its prompt.
        plan.shape.add(&entry, emits, u32::MAX);
        plan.total_num_scheduled_tokens += entry.num_scheduled_tokens;
        plan.scheduled.push(entry);
    }

    pub(super) fn emits(&self, id: RequestId) -> bool {
        self.requests[id].max_tokens > 0
    }

    pub(super) fn run_loaded(&mut self) {
        while self.running.len() < self.config.max_num_seqs() as usize
            && let Some(id) = self.queues.pop_kv_ready(&mut self.requests)
        {
            let request = &mut self.requests[id];
            request.status = RequestStatus::Running;
            self.running.push(id);
            if !request.flags.has(Flags::RESERVES) {
                self.reserve.begin(request);
            }
        }
    }

    /// Adds the first `count` prompts of the pass to the plan.
    pub(super) fn enter_prefills(&mut self, plan: &mut StepPlan, count: usize) {
        let mut prefills = std::mem::take(&mut self.prefills);
        for entry in prefills.drain(..count) {
            let emits = entry.samples && self.emits(entry.request);
            Self::enter(plan, entry, emits);
        }
        self.prefills = prefills;
    }

    /// Completes the plan in the order that all drivers expect: requests that continue a prompt,
    /// then decodes, then new requests.
    pub(super) fn end_pass(&mut self, plan: &mut StepPlan) {
        self.enter_prefills(plan, self.prefills.len());
        for &id in &self.joining {
            self.reserve.begin(&mut self.requests[id]);
        }
        self.running.append(&mut self.joining);
        plan.shape.kv_active_blocks = u64::from(self.load().num_active_blocks);
        plan.shape.kv_total_blocks = u64::from(self.config.num_pages());
        plan.shape.block_size_tokens = u64::from(self.config.page_size());
        plan.shape.waiting_requests = self.load().num_waiting as u64;
    }

    pub(super) fn check_prompt(&self, prompt_tokens: u32) -> Result<(), RejectReason> {
        if prompt_tokens == 0 {
            return Err(RejectReason::EmptyPrompt);
        }
        if prompt_tokens >= self.config.max_model_len() {
            return Err(RejectReason::PromptTooLong);
        }
        Ok(())
    }

    pub(super) fn chunk(&self, id: RequestId, kind: ScheduledKind, from: u32, tokens: u32) -> ScheduledRequest {
        let request = &self.requests[id];
        ScheduledRequest {
            request: id,
            tag: request.tag,
            num_scheduled_tokens: tokens,
            num_computed_tokens: from,
            kind,
            is_prefill: true,
            samples: from + tokens == request.num_tokens,
            num_draft_tokens: 0,
            blocks: 0..0,
        }
    }

    pub(super) fn is_source(&self, id: RequestId) -> bool {
        self.requests[id].kv_role == KvRole::Source
    }
}
