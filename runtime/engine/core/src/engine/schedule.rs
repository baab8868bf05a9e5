//! Deciding a step: vLLM's `Scheduler.schedule()`.
//!
//! There are no phases: a step only moves computed tokens closer to known tokens
//! (vLLM 0.32 and 0.33, `vllm/v1/core/sched/scheduler.py`). Running requests come first, in order of
//! admission. Then, if nothing was preempted, waiting requests are admitted until the budget, running slots or
//! blocks are used up.

use crate::config::{Drafting, Policy};
use crate::engine::Engine;
use crate::engine::PauseState;
use crate::engine::queues::QueueKind;
use crate::plan::{AdmissionStop, CountRequests as _, ScheduledKind, ScheduledRequest, StepPlan};
use crate::request::{Flags, Request, RequestId, RequestStatus};

/// State shared by the decisions of one step.
pub(super) struct Scan {
    /// Tokens that may still be scheduled.
    pub(super) scheduled_budget: u32,
    /// Free token slots of the model's input.
    pub(super) input_budget: u32,
    /// Additional input slots that each scheduled request needs.
    pub(super) draft_slots: u32,
    pub(super) per_request_cap: u32,
    /// Embeddings that the encoder may still compute. Unused while no request has items.
    pub(super) encoder_budget: u32,
    /// Distinct adapters that count against `max_loras`. Unused while adapters are off.
    pub(super) loras: Vec<u32>,
    /// Number of waiting requests that this step skipped because of `max_loras`.
    pub(super) num_without_adapter: usize,
    /// Whether a running request continues its prompt in this step.
    pub(super) prefill_running: bool,
    pub(super) num_preempted: usize,
    pub(super) defers_prefills: bool,
    /// Whether a request was admitted with more than one token to compute.
    pub(super) prefill_admitted: bool,
}

impl Scan {
    /// Maximum number of tokens that another request may compute.
    #[inline]
    pub(super) fn budget(&self) -> u32 {
        self.scheduled_budget.min(self.input_budget.saturating_sub(self.draft_slots))
    }

    /// Subtracts the tokens that a request computes from the budgets.
    #[inline]
    pub(super) fn take(&mut self, tokens: u32) {
        self.scheduled_budget -= tokens;
        self.input_budget -= tokens + self.draft_slots;
    }

    /// Adds the tokens back if a request does not compute them after all.
    fn give_back(&mut self, tokens: u32) {
        self.scheduled_budget += tokens;
        self.input_budget += tokens + self.draft_slots;
    }
}

impl Engine {
    /// Decides the next step and marks its tokens as computed.
    ///
    /// The plan is empty if nothing can run or [`PauseState`] forbids it. Then [`Engine::update`] must not
    /// be called. A plan may have only preemptions; the next call may use the blocks that they freed.
    ///
    /// # Panics
    /// If no further step may be in flight (see [`Engine::may_schedule`]): a driver bug.
    pub fn schedule(&mut self) -> &StepPlan {
        assert!(self.may_schedule(), "scheduled a step while {} are in flight", self.steps.count());
        let mut plan = self.steps.take_next();
        plan.clear();
        if self.turns.are_staggered() {
            self.begin_turn();
        }
        self.running.take_preempted(&mut plan.preempted);
        plan.num_groups = self.kv_cache.begin_step();
        self.prefills.clean_in_flight(&mut self.requests);
        self.see_transfers();
        self.kv_loads.begin_step();
        let mut scan = Scan {
            scheduled_budget: self.step_budget(),
            input_budget: self.config.max_num_batched_tokens(),
            draft_slots: self.config.drafting().draft_slots,
            per_request_cap: self.per_request_cap(),
            encoder_budget: self.encoder_inputs.budget_embeds(),
            loras: self.running.take_loras(),
            num_without_adapter: 0,
            prefill_running: false,
            num_preempted: 0,
            defers_prefills: self.defers_prefills(),
            prefill_admitted: false,
        };
        if self.turns.are_paced() {
            self.schedule_paced(&mut plan, &mut scan);
        } else {
            let served = self.schedule_steady_decode(&mut plan, &mut scan);
            self.schedule_running(served, &mut plan, &mut scan);
        }
        plan.admission_stop = match scan.num_preempted {
            0 => self.schedule_waiting(&mut plan, &mut scan),
            _ => AdmissionStop::Preemption,
        };
        self.encoder_inputs.list_evicted(&mut plan);
        self.note_occupancy(&mut plan);
        if self.config.max_loras() > 0 {
            self.note_adapters(&mut plan, &mut scan.loras);
        }
        plan.most_drafts = self.config.num_speculative_tokens();
        if self.config.drafts_depend_on_batch() {
            self.limit_drafts(&mut plan);
        }
        if self.turns.are_staggered() {
            self.end_turn(&plan);
        }
        if !plan.is_empty() {
            self.stats.steps += 1;
        }
        self.note_prefills(&scan);
        self.running.put_loras(scan.loras);
        if self.kv_loads.offloads() {
            self.kv_loads.store_step(&plan, &self.requests, self.stats.steps, self.config.block_size());
            self.hold_copied_blocks();
        }
        self.steps.put_next(plan);
        self.plan()
    }

    #[cold]
    fn limit_drafts(&mut self, plan: &mut StepPlan) {
        plan.most_drafts = self.config.drafts_of_batch(plan.scheduled.len());
        if self.config.async_scheduling() {
            for entry in plan.scheduled.iter().filter(|entry| entry.samples) {
                self.requests[entry.request].num_draft_tokens = plan.most_drafts as u16;
            }
        }
    }

    pub(super) fn note_occupancy(&self, plan: &mut StepPlan) {
        plan.shape.kv_active_blocks = u64::from(self.pool().num_active());
        plan.shape.kv_total_blocks = u64::from(self.pool().num_usable());
        plan.shape.block_size_tokens = u64::from(self.config.block_size());
        plan.shape.waiting_requests = self.num_waiting() as u64;
    }

    /// Records the adapters of a plan that is otherwise complete. `loras` is a scratch buffer.
    #[cold]
    fn note_adapters(&mut self, plan: &mut StepPlan, loras: &mut Vec<u32>) {
        loras.clear();
        plan.shape.adapter_tokens = self.note_member_adapters(loras).into();
        for entry in &plan.scheduled {
            let lora = self.requests[entry.request].lora;
            note_lora(loras, lora);
            plan.shape.adapter_tokens += if lora.is_some() { entry.num_scheduled_tokens.into() } else { 0 };
        }
        plan.shape.adapter_count = loras.len() as u64;
        if let Some(adapters) = &mut self.adapters {
            self.stats.adapter_loads += adapters.price(loras, plan);
        }
    }

    pub(super) fn step_budget(&self) -> u32 {
        match self.pause_state {
            PauseState::PausedAll => 0,
            PauseState::Unpaused | PauseState::PausedNew => self.config.step_tokens(),
        }
    }

    /// The long-prefill cap of this step; `u32::MAX` if no cap applies.
    fn per_request_cap(&self) -> u32 {
        let requests = self.running.len() + self.num_waiting();
        let threshold = self.config.long_prefill_token_threshold();
        if threshold == 0 || requests <= 1 && !self.config.rules().caps_lone_prefills() {
            return u32::MAX;
        }
        if self.config.adaptive_long_prefill() {
            let share = self.config.max_num_batched_tokens() / requests.max(1) as u32;
            return threshold.max(share);
        }
        threshold
    }

    fn schedule_running(&mut self, first: usize, plan: &mut StepPlan, scan: &mut Scan) {
        let max_model_len = self.config.max_model_len();
        let Drafting { lookahead_tokens, prefill_lookahead_tokens, .. } = self.config.drafting();
        let extra = self.config.quirks().burst_tokens() + lookahead_tokens;
        let mut index = first;
        while index < self.running.len() && scan.budget() > 0 {
            let id = self.running[index];
            let request = &self.requests[id];
            if scan.defers_prefills && request.flags.has(Flags::PREFILL_CHUNK) {
                index += 1;
                continue;
            }
            let mut tokens = running_chunk(request, max_model_len, scan);
            let computed = request.num_computed_tokens;
            let needs_encoder = tokens > 0 && request.flags.has(Flags::NEEDS_ENCODER);
            if self.kv_cache.has_groups() {
                tokens = self.aligned_chunk(id, computed, tokens, true);
            }
            if needs_encoder && tokens > 0 {
                tokens = self.cut_to_encoder(id, computed, tokens, scan);
            }
            if prefill_lookahead_tokens > 1 {
                tokens = spare_lookahead(&self.requests[id], computed, tokens, prefill_lookahead_tokens);
            }
            if tokens == 0 {
                index += 1;
                continue;
            }
            // Every cap is at least one token, so plain decodes need no lookup.
            if tokens > 1 {
                tokens = tokens.min(self.chunk_cap(id));
            }
            let request = &self.requests[id];
            let end = computed + tokens;
            let first_block = plan.block_ids.len() as u32;
            if end + extra > request.capacity_tokens
                && !self.make_room(id, end + lookahead_tokens, &mut index, plan, scan)
            {
                if self.config.scans_on_after_own_preemption() && self.requests[id].status == RequestStatus::Preempted {
                    continue;
                }
                break;
            }
            self.store_full_blocks(id, end);
            index += 1;
            scan.take(tokens);
            scan.prefill_running |= self.requests[id].flags.has(Flags::PREFILL_CHUNK);
            self.commit(plan, id, ScheduledKind::Running, tokens, None, first_block);
            if needs_encoder {
                self.commit_to_encoder(id, plan, scan);
            }
        }
    }

    /// Allocates blocks for `num_tokens` tokens of `id`, preempting requests until they fit. Returns false
    /// if `id` itself was preempted, or if the victim's blocks are not free at once.
    #[cold]
    pub(super) fn make_room(
        &mut self,
        id: RequestId,
        num_tokens: u32,
        index: &mut usize,
        plan: &mut StepPlan,
        scan: &mut Scan,
    ) -> bool {
        loop {
            if self.give_blocks(id, num_tokens, plan) {
                return true;
            }
            let victim = self.choose_victim();
            // The newest request cannot have been scheduled earlier in this step, but other victims can.
            let scheduled_at = plan.scheduled.iter().position(|entry| entry.request == victim);
            let scheduled_here = scheduled_at.map_or(0, |at| plan.scheduled[at].num_scheduled_tokens);
            // The victim's blocks would be free too late.
            if !self.may_free_after(victim, scheduled_here) {
                return false;
            }
            let position = self.running.remove(victim);
            let is_followed = scheduled_at.is_some() || self.config.rules().follows_moved_requests();
            if position < *index && is_followed && !self.config.quirks().preempts_oldest() {
                *index -= 1;
            }
            if let Some(at) = scheduled_at {
                let entry = plan.scheduled.remove(at);
                scan.give_back(entry.num_scheduled_tokens);
                scan.encoder_budget += plan.take_back_encoder_inputs(victim);
                self.take_back(plan, &entry);
            }
            self.preempt(victim);
            self.running.take_preempted(&mut plan.preempted);
            scan.num_preempted += 1;
            if victim == id {
                return false;
            }
        }
    }

    fn choose_victim(&self) -> RequestId {
        let victim = match self.config.policy() {
            Policy::Fcfs if self.config.quirks().preempts_oldest() => self.running.first().copied(),
            Policy::Fcfs => self.running.last().copied(),
            Policy::Priority => self.running.iter().copied().max_by_key(|&id| {
                let request = &self.requests[id];
                (request.rank, request.arrival_ns, request.sequence)
            }),
            Policy::Ranked => self.running.iter().copied().max_by_key(|&id| {
                let request = &self.requests[id];
                (self.eviction_rank(id), request.arrival_ns, request.sequence)
            }),
        };
        victim.expect("the request that needs room is running")
    }

    /// Releases the KV of a request that is no longer running and queues the request for recomputation.
    pub(super) fn preempt(&mut self, id: RequestId) {
        self.forget_kv(id);
        self.forget_pace(id);
        let request = &mut self.requests[id];
        request.num_draft_tokens = 0;
        request.num_output_placeholders = 0;
        // Resampled tokens must not be delivered a second time.
        if request.num_stale_tokens == 0 {
            request.flags.set(Flags::DROPS_STALE, false);
        }
        if self.config.kv_connector().is_some_and(|connector| connector.requires_delivery) {
            request.flags.set(Flags::DROPS_STALE, true);
        }
        request.flags.set(Flags::WAS_PREEMPTED, true);
        request.flags.set(Flags::IN_FLIGHT_PREFILL, false);
        request.num_stale_tokens = request.num_in_flight_tokens;
        request.status = RequestStatus::Preempted;
        self.stats.preemptions += 1;
        self.preempt_items(id);
        let request = &self.requests[id];
        self.running.note_preempted(request.tag);
        self.note_preempted(id);
        self.queues.push_front(QueueKind::Waiting, id, &mut self.requests);
    }

    /// Adds a chunk of `tokens` tokens to the plan and marks them as computed. The chunk verifies the
    /// request's own drafts unless `drafts` overrides them.
    #[inline(always)]
    pub(super) fn commit(
        &mut self,
        plan: &mut StepPlan,
        id: RequestId,
        kind: ScheduledKind,
        tokens: u32,
        drafts: Option<u16>,
        first_block: u32,
    ) {
        let request = &mut self.requests[id];
        let num_draft_tokens = drafts.unwrap_or_else(|| take_drafts(request, tokens));
        if num_draft_tokens > 0 && self.grammars.is_some() {
            self.note_checked_drafts(plan, id);
        }
        let request = &mut self.requests[id];
        let computed = request.num_computed_tokens;
        let end = computed + tokens;
        let is_prefill = computed < request.prefill_target_tokens;
        if is_prefill {
            self.prefills.subtract(request.prefill_target_tokens.min(end) - computed);
        }
        let samples = end >= request.num_tokens + u32::from(request.num_output_placeholders);
        request.num_computed_tokens = end;
        request.num_in_flight_tokens += tokens;
        request.flags.set(Flags::PREFILL_CHUNK, !samples);
        if samples && self.config.async_scheduling() {
            request.num_output_placeholders += 1 + num_draft_tokens;
            request.num_draft_tokens = self.config.num_speculative_tokens() as u16;
        }
        let entry = ScheduledRequest {
            request: id,
            tag: request.tag,
            num_scheduled_tokens: tokens,
            num_computed_tokens: computed,
            kind,
            is_prefill,
            samples,
            num_draft_tokens,
            blocks: first_block..plan.block_ids.len() as u32,
        };
        plan.shape.add(&entry, request.end_tokens > request.prompt_tokens, request.prompt_tokens);
        plan.total_num_scheduled_tokens += tokens;
        plan.scheduled.push(entry);
    }

    /// Undoes [`Engine::commit`] for a request that is about to be preempted, except for what the preemption
    /// itself undoes.
    fn take_back(&mut self, plan: &mut StepPlan, entry: &ScheduledRequest) {
        let request = &mut self.requests[entry.request];
        plan.shape.remove(entry, request.end_tokens > request.prompt_tokens, request.prompt_tokens);
        plan.total_num_scheduled_tokens -= entry.num_scheduled_tokens;
        request.num_in_flight_tokens -= entry.num_scheduled_tokens;
    }
}

/// Number of tokens of a running request that this step may compute.
#[inline]
pub(super) fn running_chunk(request: &Request, max_model_len: u32, scan: &Scan) -> u32 {
    let computed = request.num_computed_tokens;
    let placeholders = u32::from(request.num_output_placeholders);
    if placeholders > 0 {
        // The steps in flight emit the request's last token even if no draft is accepted.
        let longest = request.prompt_tokens.saturating_add(request.max_tokens);
        let brings_last = computed + 2 >= longest.saturating_add(placeholders);
        if brings_last {
            return 0;
        }
    }
    if request.flags.has(Flags::OUT_OF_TURN) {
        return 0;
    }
    let known = request.num_tokens + u32::from(request.num_draft_tokens) + placeholders;
    (known - computed).min(scan.per_request_cap).min(scan.budget()).min((max_model_len - 1).saturating_sub(computed))
}

/// Shortens a chunk of `tokens` tokens after `computed` tokens. Unless the chunk ends with the last known token,
/// it leaves at least `lookahead_tokens` for the next chunk, because the drafter reads them after this chunk (vLLM's
/// `_reserve_prefill_lookahead`).
pub(super) fn spare_lookahead(request: &Request, computed: u32, tokens: u32, lookahead_tokens: u32) -> u32 {
    match request.num_tokens.checked_sub(computed + tokens) {
        None | Some(0) => tokens,
        Some(left) => tokens.saturating_sub(lookahead_tokens.saturating_sub(left)),
    }
}

/// Number of drafts among the next `tokens` tokens. Drops the other drafts.
#[inline]
fn take_drafts(request: &mut Request, tokens: u32) -> u16 {
    if request.num_draft_tokens == 0 {
        return 0;
    }
    let known = request.num_tokens + u32::from(request.num_output_placeholders);
    let beyond = (request.num_computed_tokens + tokens).saturating_sub(known);
    let drafts = request.num_draft_tokens.min(beyond as u16);
    request.num_draft_tokens = 0;
    drafts
}

pub(super) fn note_lora(loras: &mut Vec<u32>, lora: Option<u32>) {
    if let Some(lora) = lora
        && !loras.contains(&lora)
    {
        loras.push(lora);
    }
}
