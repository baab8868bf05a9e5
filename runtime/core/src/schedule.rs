//! Deciding a step: vLLM's `Scheduler.schedule()`.
//!
//! There are no phases, only computed tokens catching up with known tokens
//! (vLLM 0.32 and 0.33, `vllm/v1/core/sched/scheduler.py`): running requests
//! first, in order of admission; then, if nothing was preempted, waiting ones
//! while budget, seats and blocks last.

use crate::config::{Policy, SchedulerRules};
use crate::engine::{Engine, QueueKind};
use crate::plan::{AdmissionStop, RemoteLoad, ScheduledKind, ScheduledRequest, StepPlan};
use crate::queue::WaitingQueue;
use crate::request::{Flags, KvRole, Request, RequestId, RequestStatus};

/// Entries a block table is given room for beyond what its request holds when
/// it is admitted, so that decoding rarely moves a table.
const MOST_SPARE_TABLE_BLOCKS: u32 = 256;

/// What an attempt to admit one waiting request led to.
enum Admission {
    /// It runs.
    Admitted { scheduled_tokens: u32 },
    /// Its transfer starts; it waits without a seat.
    Loading,
    /// Only it is blocked; those behind may pass.
    SteppedOver,
    /// Nothing behind it may pass.
    Blocked(AdmissionStop),
}

/// What the decisions of one step share.
struct Scan {
    budget: u32,
    per_request_cap: u32,
    /// Distinct adapters that count against the cap; unused while adapters are off.
    loras: Vec<u32>,
    /// Whether a request went on with its prompt in this step.
    prefill_running: bool,
    /// Requests preempted by this step.
    num_preempted: usize,
}

impl Engine {
    /// Decides the next step and marks its tokens as computed.
    ///
    /// The plan is empty when nothing can run; then there is nothing to
    /// [`Engine::update`] either. A plan that is empty but for preemptions has
    /// made room that the next call may use.
    ///
    /// # Panics
    /// When no further step may be in flight (see [`Engine::may_schedule`]): a
    /// driver bug.
    pub fn schedule(&mut self) -> &StepPlan {
        assert!(self.may_schedule(), "scheduled a step while {} are in flight", self.steps_in_flight);
        // The same buffer again where it is free, since it is in the CPU's cache.
        let slot = if self.steps_in_flight > 0 { self.oldest ^ 1 } else { self.newest };
        let mut plan = std::mem::take(&mut self.plans[slot]);
        plan.clear();
        plan.preempted.append(&mut self.preempted_outside);
        let mut scan = Scan {
            budget: self.config.max_num_batched_tokens,
            per_request_cap: self.per_request_cap(),
            loras: Vec::new(),
            prefill_running: false,
            num_preempted: 0,
        };
        self.schedule_running(&mut plan, &mut scan);
        plan.admission_stop = match scan.num_preempted {
            0 => self.schedule_waiting(&mut plan, &mut scan),
            _ => AdmissionStop::Preemption,
        };
        plan.shape.kv_active_blocks = u64::from(self.pool.num_active());
        plan.shape.kv_total_blocks = u64::from(self.pool.num_usable());
        plan.shape.block_size_tokens = u64::from(self.config.block_size);
        plan.shape.waiting_requests = self.num_waiting() as u64;
        if !plan.scheduled.is_empty() {
            self.stats.steps += 1;
            if self.steps_in_flight == 0 {
                self.oldest = slot;
            }
            self.steps_in_flight += 1;
        }
        self.newest = slot;
        self.plans[slot] = plan;
        &self.plans[slot]
    }

    /// The long-prefill cap of this step; `u32::MAX` when it does not apply.
    fn per_request_cap(&self) -> u32 {
        let requests = self.running.len() + self.num_waiting();
        let threshold = self.config.long_prefill_token_threshold;
        if threshold == 0 || requests <= 1 {
            return u32::MAX;
        }
        if self.config.adaptive_long_prefill {
            let share = self.config.max_num_batched_tokens / requests as u32;
            return threshold.max(share);
        }
        threshold
    }

    fn schedule_running(&mut self, plan: &mut StepPlan, scan: &mut Scan) {
        let max_model_len = self.config.max_model_len();
        let extra = self.config.max_extra_tokens_per_step;
        let mut index = 0;
        while index < self.running.len() && scan.budget > 0 {
            let id = self.running[index];
            let request = &self.requests[id];
            let tokens = running_chunk(request, max_model_len, scan);
            if tokens == 0 {
                index += 1;
                continue;
            }
            let end = request.num_computed_tokens + tokens;
            let first_block = plan.block_ids.len() as u32;
            if end + extra > request.capacity_tokens && !self.make_room(id, end, &mut index, plan, scan) {
                if self.config.policy == Policy::Priority && self.config.rules == SchedulerRules::V0_33 {
                    continue;
                }
                break;
            }
            self.store_full_blocks(id, end);
            index += 1;
            scan.budget -= tokens;
            scan.prefill_running |= self.requests[id].flags.has(Flags::PREFILL_CHUNK);
            self.commit(plan, id, ScheduledKind::Running, tokens, None, first_block);
        }
    }

    /// Gives `id` blocks for `num_tokens` tokens, preempting until they fit.
    /// False when `id` itself had to go.
    #[cold]
    fn make_room(
        &mut self,
        id: RequestId,
        num_tokens: u32,
        index: &mut usize,
        plan: &mut StepPlan,
        scan: &mut Scan,
    ) -> bool {
        let needed = self.blocks_for(num_tokens);
        loop {
            let have = self.requests[id].block_table.len() as u32;
            let missing = needed.saturating_sub(have);
            if missing <= self.pool.num_free() {
                self.grow_table(id, missing);
                plan.block_ids.extend_from_slice(&self.requests[id].block_table[have as usize..]);
                return true;
            }
            let victim = self.choose_victim();
            let position = self.running.iter().position(|&other| other == victim);
            let position = position.expect("a victim is running");
            self.running.remove(position);
            if position < *index {
                *index -= 1;
            }
            // Only a priority victim can have been scheduled earlier in this step.
            if let Some(at) = plan.scheduled.iter().position(|entry| entry.request == victim) {
                let entry = plan.scheduled.remove(at);
                scan.budget += entry.num_scheduled_tokens;
                self.take_back(plan, &entry);
            }
            self.preempt(victim);
            plan.preempted.append(&mut self.preempted_outside);
            scan.num_preempted += 1;
            if victim == id {
                return false;
            }
        }
    }

    pub(crate) fn grow_table(&mut self, id: RequestId, count: u32) {
        let request = &mut self.requests[id];
        self.pool.allocate(count, &mut request.block_table);
        request.capacity_tokens = (request.block_table.len() as u32).saturating_mul(self.config.block_size);
    }

    fn choose_victim(&self) -> RequestId {
        let victim = match self.config.policy {
            Policy::Fcfs => self.running.last().copied(),
            Policy::Priority => self.running.iter().copied().max_by_key(|&id| {
                let request = &self.requests[id];
                (request.priority, request.arrival_ns, request.sequence)
            }),
        };
        victim.expect("the request that needs room is running")
    }

    /// Takes the KV of a request that has left the running list and queues it
    /// to be computed again.
    pub(crate) fn preempt(&mut self, id: RequestId) {
        self.pool.release(&self.requests[id].block_table);
        let request = &mut self.requests[id];
        self.outstanding_prefill_tokens -= u64::from(request.outstanding_prefill_tokens());
        request.block_table.clear();
        request.capacity_tokens = 0;
        if self.pool.caching() {
            request.next_store_tokens = self.config.block_size;
        }
        request.num_computed_tokens = 0;
        request.prefill_target_tokens = request.num_tokens;
        request.num_draft_tokens = 0;
        request.num_output_placeholders = 0;
        // What was resampled must not be delivered a second time.
        if request.num_stale_tokens == 0 {
            request.flags.set(Flags::DROPS_STALE, false);
        }
        request.num_stale_tokens = request.num_in_flight_tokens;
        request.status = RequestStatus::Preempted;
        self.outstanding_prefill_tokens += u64::from(request.num_tokens);
        self.stats.preemptions += 1;
        self.preempted_outside.push(request.tag);
        self.waiting.push_front(id, &mut self.requests);
    }

    fn schedule_waiting(&mut self, plan: &mut StepPlan, scan: &mut Scan) -> AdmissionStop {
        if self.config.max_loras > 0 {
            self.note_running_loras(plan, scan);
        }
        let stop = self.admit_waiting(plan, scan);
        while let Some((kind, id)) = self.skipped.pop() {
            self.push_waiting_front(kind, id);
        }
        stop
    }

    fn admit_waiting(&mut self, plan: &mut StepPlan, scan: &mut Scan) -> AdmissionStop {
        loop {
            let kind = if self.kv_ready.len() > 0 { QueueKind::KvReady } else { QueueKind::Waiting };
            if !self.has_waiting_requests() {
                return AdmissionStop::Drained;
            }
            if scan.budget == 0 {
                return AdmissionStop::Budget;
            }
            if self.running.len() >= self.config.max_running() {
                return AdmissionStop::Seats;
            }
            let id = self.pop_waiting(kind).expect("some request waits");
            match self.admit(id, plan, scan) {
                Admission::Admitted { scheduled_tokens } => scan.budget -= scheduled_tokens,
                Admission::Loading => {}
                Admission::SteppedOver => self.skipped.push((kind, id)),
                Admission::Blocked(stop) => {
                    self.push_waiting_front(kind, id);
                    return stop;
                }
            }
        }
    }

    fn pop_waiting(&mut self, kind: QueueKind) -> Option<RequestId> {
        let queue: &mut WaitingQueue = match kind {
            QueueKind::Waiting => &mut self.waiting,
            QueueKind::KvReady => &mut self.kv_ready,
        };
        queue.pop(&mut self.requests)
    }

    fn push_waiting_front(&mut self, kind: QueueKind, id: RequestId) {
        let queue: &mut WaitingQueue = match kind {
            QueueKind::Waiting => &mut self.waiting,
            QueueKind::KvReady => &mut self.kv_ready,
        };
        queue.push_front(id, &mut self.requests);
    }

    fn note_running_loras(&self, plan: &StepPlan, scan: &mut Scan) {
        match self.config.rules {
            SchedulerRules::V0_32 => {
                for entry in &plan.scheduled {
                    note_lora(&mut scan.loras, self.requests[entry.request].lora);
                }
            }
            SchedulerRules::V0_33 => {
                for &id in &self.running {
                    note_lora(&mut scan.loras, self.requests[id].lora);
                }
            }
        }
    }

    /// Tries to admit one request that has just been taken off its queue.
    fn admit(&mut self, id: RequestId, plan: &mut StepPlan, scan: &mut Scan) -> Admission {
        let request = &self.requests[id];
        // Output that is still to be delivered must not be sampled again.
        if request.num_stale_tokens > 0 && !request.flags.has(Flags::DROPS_STALE) {
            return Admission::SteppedOver;
        }
        if let Some(lora) = request.lora
            && scan.loras.len() >= self.config.max_loras as usize
            && !scan.loras.contains(&lora)
        {
            return Admission::SteppedOver;
        }
        let ready = request.status == RequestStatus::RemoteKvReady;
        let first = request.status == RequestStatus::Waiting;
        let remote = first && request.kv_role == KvRole::Destination;
        let num_tokens = request.num_tokens;
        let mut computed = request.num_computed_tokens;
        self.hit.clear();
        if !ready {
            computed = self.lookup_prefix(id);
        }
        let mut tokens = num_tokens - computed;
        let mut drafts = 0;
        if !remote {
            // A request that holds its KV already must not wait for more blocks,
            // for which vLLM keeps a reserve.
            if !ready && self.pads_with_drafts(tokens, computed, plan, scan) {
                drafts = self.config.num_speculative_tokens;
                if tokens + drafts > scan.budget {
                    return Admission::Blocked(AdmissionStop::Drafts);
                }
                tokens += drafts;
            }
            tokens = tokens.min(scan.per_request_cap);
            // vLLM's scheduler stops with an assertion where the cap cuts drafts off.
            drafts = drafts.min(tokens - 1);
            if !self.config.enable_chunked_prefill && tokens > scan.budget {
                return Admission::Blocked(AdmissionStop::Unchunkable);
            }
            tokens = tokens.min(scan.budget);
        }
        if !self.allocate_admission(id, computed + tokens, num_tokens) {
            return Admission::Blocked(AdmissionStop::Blocks);
        }
        if !ready {
            self.count_lookup(id, computed);
        }
        self.set_computed(id, computed);
        if remote {
            return self.start_remote_load(id, plan);
        }
        self.store_full_blocks(id, computed + tokens);
        note_lora(&mut scan.loras, self.requests[id].lora);
        self.requests[id].status = RequestStatus::Running;
        self.running.push(id);
        let kind = if first || ready { ScheduledKind::New } else { ScheduledKind::Resumed };
        let first_block = plan.block_ids.len() as u32;
        plan.block_ids.extend_from_slice(&self.requests[id].block_table);
        self.commit(plan, id, kind, tokens, Some(drafts as u16), first_block);
        Admission::Admitted { scheduled_tokens: tokens }
    }

    /// Whether a request with one token left is admitted with room for drafts,
    /// so that a batch of decodes stays uniform.
    fn pads_with_drafts(&self, tokens: u32, computed: u32, plan: &StepPlan, scan: &Scan) -> bool {
        let drafts = self.config.num_speculative_tokens;
        // What runs was scheduled before anything was admitted.
        let any_running = plan.scheduled.first().is_some_and(|entry| entry.kind == ScheduledKind::Running);
        drafts > 0
            && tokens == 1
            && !scan.prefill_running
            && (any_running || computed > 0)
            && computed.saturating_add(drafts + 2) <= self.config.max_model_len()
    }

    /// Fills `self.hit` with the cached blocks that `id` can reuse and gives
    /// the tokens they hold. At least one token is always left to compute.
    fn lookup_prefix(&mut self, id: RequestId) -> u32 {
        if !self.pool.caching() {
            return 0;
        }
        let request = &mut self.requests[id];
        request.ensure_hashed(self.config.block_size);
        if request.flags.has(Flags::SKIPS_LOOKUP) {
            return 0;
        }
        let most = ((request.num_tokens - 1) / self.config.block_size) as usize;
        let usable = most.min(request.block_hashes.len());
        let mut hit = std::mem::take(&mut self.hit);
        self.pool.lookup(&request.block_hashes[..usable], &mut hit);
        if self.config.max_extra_tokens_per_step > 0 {
            // Multi-token prediction computes the last cached block again.
            hit.pop();
        }
        self.hit = hit;
        self.hit.len() as u32 * self.config.block_size
    }

    /// Takes the hit and new blocks for an admission, or nothing.
    fn allocate_admission(&mut self, id: RequestId, slots_tokens: u32, full_tokens: u32) -> bool {
        let held = self.requests[id].block_table.len() as u32;
        let reused = self.hit.len() as u32;
        // A hit on a free block takes that block out of the free list.
        let revived = self.pool.count_free_among(&self.hit);
        let cost = |tokens: u32| (self.blocks_for(tokens)).saturating_sub(held + reused) + revived;
        let needed = cost(slots_tokens);
        let watermark = if self.running.is_empty() { 0 } else { self.config.watermark_blocks() };
        let must_fit = if self.config.scheduler_reserve_full_isl { cost(full_tokens) } else { needed };
        if must_fit.max(needed) + watermark > self.pool.num_free() {
            return false;
        }
        self.pool.touch(&self.hit);
        let longest = self.blocks_for(self.requests[id].end_tokens).min(self.pool.num_usable());
        let request = &mut self.requests[id];
        if reused > 0 {
            request.next_store_tokens = (reused + 1).saturating_mul(self.config.block_size);
        }
        let spare = longest.min(held + reused + needed + MOST_SPARE_TABLE_BLOCKS) - held.min(longest);
        request.reserve(spare as usize, self.config.block_size as usize);
        request.block_table.extend_from_slice(&self.hit);
        self.grow_table(id, needed - revived);
        true
    }

    fn start_remote_load(&mut self, id: RequestId, plan: &mut StepPlan) -> Admission {
        let request = &mut self.requests[id];
        let cached_tokens = request.num_computed_tokens;
        request.status = RequestStatus::WaitingForRemoteKv;
        self.num_loading += 1;
        plan.remote_loads.push(RemoteLoad {
            request: id,
            tag: request.tag,
            cached_tokens,
            missing_tokens: request.prompt_tokens - cached_tokens,
        });
        Admission::Loading
    }

    fn count_lookup(&mut self, id: RequestId, cached: u32) {
        let request = &self.requests[id];
        if !self.pool.caching() || request.flags.has(Flags::SKIPS_LOOKUP) {
            return;
        }
        let resumed = request.status == RequestStatus::Preempted;
        let stats = if resumed { &mut self.stats.preempted_prefix } else { &mut self.stats.prefix };
        stats.requests += 1;
        stats.queried_tokens += u64::from(request.num_tokens);
        stats.hit_tokens += u64::from(cached);
    }

    fn set_computed(&mut self, id: RequestId, computed: u32) {
        let request = &mut self.requests[id];
        let before = request.outstanding_prefill_tokens();
        request.num_computed_tokens = computed;
        let after = request.outstanding_prefill_tokens();
        self.outstanding_prefill_tokens -= u64::from(before - after);
    }

    /// Blocks for `num_tokens` tokens and the slots of a burst.
    fn blocks_for(&self, num_tokens: u32) -> u32 {
        let slots = num_tokens.saturating_add(self.config.max_extra_tokens_per_step).min(self.config.max_model_len());
        slots.div_ceil(self.config.block_size)
    }

    /// Enters a chunk of `tokens` into the plan and marks it as computed. Its
    /// drafts are those that the request carries unless `drafts` says otherwise.
    #[inline(always)]
    fn commit(
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
        let computed = request.num_computed_tokens;
        let end = computed + tokens;
        let is_prefill = computed < request.prefill_target_tokens;
        if is_prefill {
            self.outstanding_prefill_tokens -= u64::from(request.prefill_target_tokens.min(end) - computed);
        }
        let samples = end >= request.num_tokens + u32::from(request.num_output_placeholders);
        request.num_computed_tokens = end;
        request.num_in_flight_tokens += tokens;
        request.flags.set(Flags::PREFILL_CHUNK, !samples);
        if samples && self.config.async_scheduling {
            request.num_output_placeholders += 1 + num_draft_tokens;
            request.num_draft_tokens = self.config.num_speculative_tokens as u16;
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
        plan.shape.add(&entry, request.end_tokens > request.prompt_tokens);
        plan.total_num_scheduled_tokens += tokens;
        plan.scheduled.push(entry);
    }

    /// Undoes [`Engine::commit`] for a request that is about to be preempted,
    /// as far as the preemption does not.
    fn take_back(&mut self, plan: &mut StepPlan, entry: &ScheduledRequest) {
        let request = &mut self.requests[entry.request];
        plan.shape.remove(entry, request.end_tokens > request.prompt_tokens);
        plan.total_num_scheduled_tokens -= entry.num_scheduled_tokens;
        request.num_in_flight_tokens -= entry.num_scheduled_tokens;
    }
}

/// Tokens of a running request that this step may compute.
#[inline]
fn running_chunk(request: &Request, max_model_len: u32, scan: &Scan) -> u32 {
    let computed = request.num_computed_tokens;
    let placeholders = u32::from(request.num_output_placeholders);
    // The steps in flight bring its last token even if no draft is accepted.
    if placeholders > 0 && computed + 2 - placeholders >= request.prompt_tokens.saturating_add(request.max_tokens) {
        return 0;
    }
    let known = request.num_tokens + u32::from(request.num_draft_tokens) + placeholders;
    (known - computed).min(scan.per_request_cap).min(scan.budget).min((max_model_len - 1).saturating_sub(computed))
}

/// Drafts among the `tokens` about to be scheduled. The rest is forgotten.
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

fn note_lora(loras: &mut Vec<u32>, lora: Option<u32>) {
    if let Some(lora) = lora
        && !loras.contains(&lora)
    {
        loras.push(lora);
    }
}
