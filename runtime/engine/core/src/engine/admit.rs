//! Admits waiting requests: the second half of vLLM's `Scheduler.schedule()`.
//!
//! Requests whose KV has arrived come first, then the waiting queue in order. Admission ends when the budget, the
//! running slots or the blocks are used up. Skipped requests keep their place.

use crate::config::Drafting;
use crate::engine::Engine;
use crate::engine::PauseState;
use crate::engine::kv_cache::Claim;
use crate::engine::kv_loads::External;
use crate::engine::queues::QueueKind;
use crate::engine::schedule::{Scan, note_lora, spare_lookahead};
use crate::kv::groups::KvGroups;
use crate::plan::{AdmissionStop, ScheduledKind, StepPlan};
use crate::request::{Flags, KvRole, RequestId, RequestStatus};

enum Admission {
    /// The request runs.
    Admitted { scheduled_tokens: u32 },
    /// The request's transfer or load starts. It waits without a running slot.
    Loading,
    /// Only this request is blocked; later requests may be admitted.
    SteppedOver,
    /// Only this request is blocked, by a transfer; later requests may be admitted.
    Deferred,
    /// No later request may be admitted in this step.
    Blocked(AdmissionStop),
}

impl Engine {
    /// Admits requests. Returns the reason why admission stopped.
    pub(super) fn schedule_waiting(&mut self, plan: &mut StepPlan, scan: &mut Scan) -> AdmissionStop {
        if self.config.max_loras() == 0 {
            let stop = self.admit_waiting(plan, scan);
            self.queues.return_stepped_over(&mut self.requests);
            return stop;
        }
        self.note_running_loras(plan, scan);
        let stop = self.admit_waiting(plan, scan);
        self.queues.return_stepped_over(&mut self.requests);
        let is_repeated =
            stop == AdmissionStop::Drained && self.schedules_all(plan) && self.config.decodes_by_single_tokens();
        self.queues.note_adapter_waits(if is_repeated { scan.num_without_adapter } else { 0 });
        stop
    }

    fn schedules_all(&self, plan: &StepPlan) -> bool {
        plan.scheduled.len() + plan.steady_decode_requests as usize == self.running.len()
    }

    fn admit_waiting(&mut self, plan: &mut StepPlan, scan: &mut Scan) -> AdmissionStop {
        let mut is_head_stuck = false;
        loop {
            if !self.has_waiting_requests() {
                return AdmissionStop::Drained;
            }
            let Some(mut kind) = self.queues.next(self.pause_state) else {
                return AdmissionStop::Paused;
            };
            if kind == QueueKind::KvReady && !is_head_stuck && self.is_preempted_first() {
                kind = QueueKind::Waiting;
            }
            if kind == QueueKind::Waiting && self.queues.num_destinations() > 0 {
                return AdmissionStop::Blocks;
            }
            if kind == QueueKind::Waiting || self.queues.is_skipped_first(&self.requests) {
                kind = self.queues.next_without_kv(&self.requests);
            }
            if kind == QueueKind::Waiting && self.refuse_first(plan) {
                continue;
            }
            // With an offloading connector, no request is admitted without budget.
            let is_free = kind == QueueKind::KvReady
                && self.config.quirks().admits_arrived_kv_free()
                && !self.kv_loads.offloads();
            if scan.budget() == 0 && !is_free {
                return AdmissionStop::Budget;
            }
            // Requests that wait for the next part of their prompt keep their slot.
            if self.running.len() + self.num_waiting_sessions() >= self.config.max_running() {
                return AdmissionStop::RunningSlots;
            }
            let id = self.queues.pop(kind, &mut self.requests);
            let id = id.expect("some request waits in the queue whose turn it is");
            scan.scheduled_budget += u32::from(is_free);
            scan.input_budget += u32::from(is_free);
            let admission = self.admit(id, kind, plan, scan);
            if let Admission::Admitted { scheduled_tokens } = admission {
                scan.take(scheduled_tokens);
            } else {
                scan.scheduled_budget -= u32::from(is_free);
                scan.input_budget -= u32::from(is_free);
            }
            match admission {
                Admission::Admitted { .. } => self.queues.set_deferred(id, false, &mut self.requests),
                Admission::Loading => self.queues.set_deferred(id, true, &mut self.requests),
                Admission::Deferred if self.queues.sleep_until_transfers() => {
                    if !self.queues.keeps_place(kind) {
                        self.requests[id].load_order = self.kv_loads.next_order();
                    }
                    self.queues.sleep(id, &self.requests);
                    self.queues.set_deferred(id, true, &mut self.requests);
                }
                Admission::SteppedOver | Admission::Deferred => {
                    if self.requests[id].flags.has(Flags::LOST_LOAD) {
                        self.forget_load(id);
                        kind = QueueKind::Waiting;
                    }
                    self.queues.step_over(kind, id);
                    self.queues.set_deferred(id, true, &mut self.requests);
                }
                Admission::Blocked(stop) => {
                    self.queues.push_front(kind, id, &mut self.requests);
                    let nothing_runs = self.running.is_empty() && plan.total_num_scheduled_tokens == 0;
                    if is_head_stuck || !nothing_runs || self.queues.num_kv_ready() == 0 || kind == QueueKind::KvReady {
                        return stop;
                    }
                    // Admission goes on with requests that already hold blocks: only these can later free blocks for
                    // this request.
                    is_head_stuck = true;
                }
            }
        }
    }

    /// Refuses the head of the waiting queue if it can never run. This costs no token budget, but needs a free
    /// running slot (Dynamo 1.6's mocker).
    fn refuse_first(&mut self, plan: &mut StepPlan) -> bool {
        let head = self.queues.peek_waiting(&self.requests).filter(|&id| self.requests[id].is_refused);
        let Some(id) = head.filter(|_| self.running.len() < self.config.max_running()) else { return false };
        self.queues.pop(QueueKind::Waiting, &mut self.requests);
        plan.refused.push(self.requests[id].tag);
        self.prefills.subtract(self.requests[id].outstanding_prefill_tokens());
        self.queues.set_deferred(id, false, &mut self.requests);
        self.note_ended(id);
        self.drop_request(id);
        true
    }

    /// Whether the head of the waiting queue is a preempted request that goes before requests whose KV has arrived.
    fn is_preempted_first(&mut self) -> bool {
        self.config.quirks().resumes_preempted_first()
            && !self.queues.sleep_until_transfers()
            && self.queues.num_destinations() == 0
            && self.pause_state == PauseState::Unpaused
            && self
                .queues
                .peek_waiting(&self.requests)
                .is_some_and(|id| self.requests[id].status == RequestStatus::Preempted)
    }

    fn note_running_loras(&mut self, plan: &StepPlan, scan: &mut Scan) {
        self.note_member_adapters(&mut scan.loras);
        if self.config.rules().counts_adapters_of_all_running() {
            for &id in &self.running[self.num_steady_requests()..] {
                note_lora(&mut scan.loras, self.requests[id].lora);
            }
        } else {
            for entry in &plan.scheduled {
                note_lora(&mut scan.loras, self.requests[entry.request].lora);
            }
        }
    }

    fn admit(&mut self, id: RequestId, kind: QueueKind, plan: &mut StepPlan, scan: &mut Scan) -> Admission {
        let request = &self.requests[id];
        if request.status == RequestStatus::WaitingForInput {
            return Admission::SteppedOver;
        }
        if request.status == RequestStatus::WaitingForGrammar && !self.has_grammar_ready(id) {
            return Admission::SteppedOver;
        }
        let request = &self.requests[id];
        if request.status == RequestStatus::RemoteKvReady && !request.flags.has(Flags::TAKEN_OVER) {
            self.take_over_load(id);
        }
        let request = &self.requests[id];
        // Output that is still to be delivered must not be sampled again.
        if request.num_stale_tokens > 0 && !request.flags.has(Flags::DROPS_STALE) {
            return Admission::SteppedOver;
        }
        if let Some(lora) = request.lora
            && scan.loras.len() >= self.config.max_loras() as usize
            && !scan.loras.contains(&lora)
        {
            scan.num_without_adapter += 1;
            return Admission::SteppedOver;
        }
        let ready = self.holds_loaded_kv(id);
        let is_destination = request.status == RequestStatus::Waiting && request.kv_role == KvRole::Destination;
        let remote = is_destination && !self.kv_loads.has_connector();
        let num_tokens = request.num_tokens;
        let mut computed = request.num_computed_tokens;
        self.kv_cache.clear_hit();
        if !ready {
            computed = self.kv_cache.lookup_prefix(&mut self.requests[id], &self.config);
        }
        let mut local_tokens = computed;
        // The missing part of the prompt is transferred from another engine.
        let (request, block_size) = (&mut self.requests[id], self.config.block_size());
        let tier_blocks = match ready || remote {
            true => 0,
            false => self.kv_loads.lookup_tiers(request, self.kv_cache.num_hit_blocks(), block_size),
        };
        let is_asked = !(ready || remote && self.kv_loads.offloads());
        let external = match is_asked {
            true => {
                let whole_tokens = self.kv_cache.whole_tokens(request, computed, &self.config);
                self.kv_loads.lookup_external(request, whole_tokens.unwrap_or(computed), block_size, plan)
            }
            false => Some(External::default()),
        };
        let Some(external) = external else { return Admission::Deferred };
        if external.tokens == 0 && !ready {
            // Missing states would have been loaded with the missing blocks.
            local_tokens = self.kv_cache.agreed_prefix(&self.requests[id], computed);
            computed = local_tokens;
        }
        computed += external.tokens;
        let is_loaded = remote || tier_blocks > 0 || external.is_async;
        // A single last token is not a prefill, and loads are not deferred.
        if scan.defers_prefills && !is_loaded && num_tokens - computed > 1 {
            return Admission::Blocked(AdmissionStop::Interval);
        }
        let mut tokens = num_tokens - computed;
        let mut drafts = 0;
        let mut needs_encoder = false;
        let due_ns = self.first_token_ns(id, computed);
        // Under request times, the last known token is computed when the output is due.
        let is_held = due_ns.is_some_and(|due_ns| self.is_later(due_ns));
        tokens -= u32::from(is_held);
        let budget = scan.budget();
        let Drafting { mut lookahead_tokens, prefill_lookahead_tokens, .. } = self.config.drafting();
        if !is_loaded {
            // A state that another engine transferred is at the last known token. No drafts
            // exist before that token.
            let is_handed_over = ready && !self.kv_loads.has_connector();
            let has_loaded_state = is_handed_over && self.kv_cache.groups().is_some_and(KvGroups::has_states);
            if !is_held && !has_loaded_state && self.pads_with_drafts(tokens, computed, plan, scan) {
                drafts = self.config.num_speculative_tokens();
                // Only up to 0.28 can drafts exceed `max_model_len` here. For later releases, `pads_with_drafts` is
                // then false, and the request is admitted without drafts.
                if tokens + drafts > budget || computed.saturating_add(tokens + drafts) > self.config.max_model_len() {
                    return Admission::Blocked(AdmissionStop::Drafts);
                }
                tokens += drafts;
            }
            let cap = self.chunk_cap(id);
            tokens = tokens.min(scan.per_request_cap).min(cap);
            // If the limit cuts off drafts, vLLM's scheduler fails an assertion.
            drafts = drafts.min(tokens.saturating_sub(1));
            if !self.config.enable_chunked_prefill() && tokens > budget {
                return Admission::Blocked(AdmissionStop::Unchunkable);
            }
            tokens = tokens.min(budget);
            if self.kv_cache.has_groups() && tokens > 0 {
                tokens = self.aligned_chunk(id, computed, tokens, ready);
                if tokens == 0 {
                    return Admission::Blocked(AdmissionStop::Budget);
                }
                let is_aligned = self.kv_cache.groups().is_some_and(KvGroups::aligns_chunks);
                if drafts > 0 && is_aligned && tokens != 1 + self.config.num_speculative_tokens() {
                    (tokens, drafts) = (1, 0);
                }
            }
            // Requests with request times ignore the work of a step.
            needs_encoder = self.requests[id].flags.has(Flags::NEEDS_ENCODER) && due_ns.is_none();
            if needs_encoder {
                tokens = self.cut_to_encoder(id, computed, tokens, scan);
                if tokens == 0 {
                    return self.without_chunk(AdmissionStop::Encoder);
                }
            }
            // A policy may allow fewer tokens than the drafter reads ahead. Under request times, a prompt is computed
            // at once.
            if prefill_lookahead_tokens > 1 && prefill_lookahead_tokens <= cap && !self.turns.are_paced() {
                tokens = spare_lookahead(&self.requests[id], computed, tokens, prefill_lookahead_tokens);
                if tokens == 0 {
                    return self.without_chunk(AdmissionStop::Budget);
                }
            }
        } else {
            // The drafter's slots are allocated in the request's first step. Slots for tokens that are not loaded
            // are allocated when these tokens are computed.
            lookahead_tokens = 0;
            tokens = if remote { tokens } else { tier_blocks * self.config.block_size() };
        }
        // Under request times, the whole prompt is computed now, whatever the step's budget.
        let slots = if is_held { num_tokens } else { computed + tokens };
        let reserved_blocks = if is_loaded { self.blocks_reserved_from_loads(plan) } else { 0 };
        let computed_elsewhere = if remote { num_tokens } else { computed };
        let claim = Claim {
            computed_tokens: computed_elsewhere,
            slots_tokens: slots.saturating_add(lookahead_tokens),
            lookahead_tokens,
            encoder_tokens: if needs_encoder { self.encoder_inputs.decided_embeds(id) } else { 0 },
            reserved_blocks,
            ..Claim::default()
        };
        if !self.allocate_admission(id, claim, Some(&mut *plan)) {
            if needs_encoder {
                self.encoder_inputs.release(id);
            }
            return Admission::Blocked(AdmissionStop::Blocks);
        }
        if !ready {
            self.count_external(id, local_tokens, external.tokens);
            self.end_destination(id);
            self.count_lookup(id, local_tokens);
        }
        self.set_computed(id, computed);
        if external.is_async {
            if self.kv_loads.offloads() {
                let (request, block_size) = (&self.requests[id], self.config.block_size());
                let loads = &mut self.kv_loads;
                loads.begin_offloaded_load(id, request, local_tokens, external.tokens, block_size, plan);
            }
            self.begin_load(id, self.queues.keeps_place(kind));
            return Admission::Loading;
        }
        if remote {
            let load = self.start_remote_load(id);
            plan.remote_loads.push(load);
            return Admission::Loading;
        }
        if tier_blocks > 0 {
            self.start_tier_load(id, tier_blocks, plan);
            return Admission::Loading;
        }
        self.store_full_blocks(id, computed + tokens);
        note_lora(&mut scan.loras, self.requests[id].lora);
        let request = &mut self.requests[id];
        request.status = RequestStatus::Running;
        request.flags.set(Flags::TAKEN_OVER, false);
        request.flags.set(Flags::LOST_LOAD, false);
        let was_preempted = request.flags.has(Flags::WAS_PREEMPTED);
        plan.has_sync_kv_loads |= external.tokens > 0;
        scan.prefill_admitted |= num_tokens - computed > 1;
        if computed + tokens < request.num_tokens {
            self.prefills.note_in_flight(id, &mut self.requests);
        }
        self.running.push(id);
        self.note_admitted(id, computed);
        let kind = if was_preempted { ScheduledKind::Resumed } else { ScheduledKind::New };
        let first_block = plan.block_ids.len() as u32;
        plan.block_ids.extend_from_slice(&self.requests[id].block_table);
        self.kv_cache.list_group_blocks(id, plan);
        self.commit(plan, id, kind, tokens, Some(drafts as u16), first_block);
        if needs_encoder {
            self.commit_to_encoder(id, plan, scan);
        }
        if let Some(due_ns) = due_ns {
            self.begin_pace(id, due_ns, plan);
        }
        Admission::Admitted { scheduled_tokens: tokens }
    }

    /// Result for a request without any token to compute.
    fn without_chunk(&self, stop: AdmissionStop) -> Admission {
        if self.config.rules().steps_over_empty_chunks() { Admission::SteppedOver } else { Admission::Blocked(stop) }
    }

    /// Whether a request with one token left is admitted with room for drafts, so that a batch of decodes is
    /// uniform.
    fn pads_with_drafts(&self, tokens: u32, computed: u32, plan: &StepPlan, scan: &Scan) -> bool {
        let (drafts, longest, rules) =
            (self.config.num_speculative_tokens(), self.config.max_model_len(), self.config.rules());
        // Running requests are scheduled before admissions.
        let any_running = plan.scheduled.first().is_some_and(|entry| entry.kind == ScheduledKind::Running);
        drafts > 0
            // If the number of drafts depends on the batch size, it is still unknown.
            && !self.config.drafts_depend_on_batch()
            && tokens == 1
            && !scan.prefill_running
            && (any_running || computed > 0 && rules.pads_without_decodes())
            && (rules.waits_for_drafts_at_the_end() || computed.saturating_add(drafts + 2) <= longest)
    }

    /// Allocates the blocks of the latest prefix hit and of `claim`, or none. Fills in the fields of `claim` that
    /// follow from the request and the engine.
    pub(super) fn allocate_admission(&mut self, id: RequestId, claim: Claim, plan: Option<&mut StepPlan>) -> bool {
        let watermark_blocks = if self.running.is_empty() { 0 } else { self.config.watermark_blocks() };
        let request = &mut self.requests[id];
        let claim = Claim { full_tokens: request.num_tokens, watermark_blocks, ..claim };
        self.kv_cache.allocate(id, claim, request, &self.config, plan)
    }

    pub(super) fn count_lookup(&mut self, id: RequestId, cached: u32) {
        let request = &self.requests[id];
        if !self.kv_cache.caching() || request.flags.has(Flags::SKIPS_LOOKUP) {
            return;
        }
        let resumed = request.flags.has(Flags::WAS_PREEMPTED) || self.was_session_preempted(id);
        let stats = if resumed { &mut self.stats.preempted_prefix } else { &mut self.stats.prefix };
        stats.requests += 1;
        stats.queried_tokens += u64::from(request.num_tokens);
        stats.hit_tokens += u64::from(cached);
    }

    pub(super) fn set_computed(&mut self, id: RequestId, computed: u32) {
        let request = &mut self.requests[id];
        let before = request.outstanding_prefill_tokens();
        request.num_computed_tokens = computed;
        if self.kv_cache.num_hit_blocks() as u32 * self.config.block_size() > computed {
            // The whole prompt was found: its last token is computed like a decode.
            request.prefill_target_tokens = request.prefill_target_tokens.min(computed);
        }
        let after = request.outstanding_prefill_tokens();
        self.prefills.subtract(before - after);
    }
}
