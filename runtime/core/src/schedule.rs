//! Deciding a step: vLLM's `Scheduler.schedule()`.
//!
//! There are no phases, only computed tokens catching up with known tokens
//! (vLLM 0.32 and 0.33, `vllm/v1/core/sched/scheduler.py`): running requests
//! first, in order of admission; then, if nothing was preempted, waiting ones
//! while budget, seats and blocks last.

use crate::config::Policy;
use crate::engine::Engine;
use crate::latency::StepShape;
use crate::plan::{RemoteLoad, ScheduledKind, ScheduledRequest, StepPlan};
use crate::request::{KvRole, RequestId, RequestStatus};

/// What an attempt to admit one waiting request led to.
enum Admission {
    /// It runs.
    Admitted { scheduled_tokens: u32 },
    /// Its transfer starts; it waits without a seat.
    Loading,
    /// Only it is blocked; those behind may pass.
    SteppedOver,
    /// Nothing behind it may pass.
    Blocked,
}

/// What admissions of one step share.
struct AdmissionScan {
    budget: u32,
    per_request_cap: u32,
    /// Distinct adapters of running requests; unused while adapters are off.
    loras: Vec<u32>,
}

impl Engine {
    /// Decides the next step and marks its tokens as computed.
    ///
    /// The plan is empty when nothing can run; then there is nothing to
    /// [`Engine::update`] either. A plan that is empty but for preemptions has
    /// made room that the next call may use.
    ///
    /// # Panics
    /// When the previous step was not applied: a driver bug.
    pub fn schedule(&mut self) -> &StepPlan {
        assert!(!self.in_flight, "scheduled a step while one is in flight");
        let mut plan = std::mem::take(&mut self.plan);
        plan.clear();
        let mut scan = AdmissionScan {
            budget: self.config.max_num_batched_tokens,
            per_request_cap: self.per_request_cap(),
            loras: Vec::new(),
        };
        self.schedule_running(&mut plan, &mut scan);
        if plan.preempted.is_empty() {
            self.schedule_waiting(&mut plan, &mut scan);
        }
        self.commit_plan(&mut plan);
        self.in_flight = !plan.scheduled.is_empty();
        self.stats.steps += u64::from(self.in_flight);
        self.plan = plan;
        &self.plan
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

    fn schedule_running(&mut self, plan: &mut StepPlan, scan: &mut AdmissionScan) {
        let mut index = 0;
        while index < self.running.len() && scan.budget > 0 {
            let id = self.running[index];
            let request = &self.requests[id];
            let computed = request.num_computed_tokens;
            let tokens = (request.num_tokens - computed)
                .min(scan.per_request_cap)
                .min(scan.budget)
                .min(self.config.max_model_len() - 1 - computed);
            if tokens == 0 {
                index += 1;
                continue;
            }
            let before = request.block_table.len();
            if !self.make_room(id, computed + tokens, &mut index, plan, &mut scan.budget) {
                // The request itself was the victim.
                break;
            }
            self.store_full_blocks(id, computed + tokens);
            push_scheduled(plan, self, id, tokens, ScheduledKind::Running, before);
            scan.budget -= tokens;
            index += 1;
        }
    }

    /// Gives `id` blocks for `num_tokens` tokens, preempting until they fit.
    /// False when `id` itself had to go.
    fn make_room(
        &mut self,
        id: RequestId,
        num_tokens: u32,
        index: &mut usize,
        plan: &mut StepPlan,
        budget: &mut u32,
    ) -> bool {
        let needed = self.blocks_for(num_tokens);
        loop {
            let have = self.requests[id].block_table.len() as u32;
            let missing = needed.saturating_sub(have);
            if missing <= self.pool.num_free() {
                self.pool.allocate(missing, &mut self.requests[id].block_table);
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
                *budget += plan.scheduled.remove(at).num_scheduled_tokens;
            }
            self.preempt(victim, plan);
            if victim == id {
                return false;
            }
        }
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

    fn preempt(&mut self, id: RequestId, plan: &mut StepPlan) {
        self.pool.release(&self.requests[id].block_table);
        let request = &mut self.requests[id];
        self.outstanding_prefill_tokens -= u64::from(request.outstanding_prefill_tokens());
        request.block_table.clear();
        request.num_stored_blocks = 0;
        request.num_computed_tokens = 0;
        request.prefill_target_tokens = request.num_tokens;
        request.status = RequestStatus::Preempted;
        self.outstanding_prefill_tokens += u64::from(request.num_tokens);
        self.stats.preemptions += 1;
        plan.preempted.push(request.tag);
        self.waiting.push_front(id, &mut self.requests);
    }

    fn schedule_waiting(&mut self, plan: &mut StepPlan, scan: &mut AdmissionScan) {
        if self.config.max_loras > 0 {
            for &id in &self.running {
                note_lora(&mut scan.loras, self.requests[id].lora);
            }
        }
        while scan.budget > 0 && self.running.len() < self.config.max_running() {
            let from_ready = self.kv_ready.len() > 0;
            let queue = if from_ready { &mut self.kv_ready } else { &mut self.waiting };
            let Some(id) = queue.pop(&mut self.requests) else { break };
            match self.admit(id, plan, scan) {
                Admission::Admitted { scheduled_tokens } => scan.budget -= scheduled_tokens,
                Admission::Loading => {}
                Admission::SteppedOver => self.skipped.push(id),
                Admission::Blocked => {
                    let queue = if from_ready { &mut self.kv_ready } else { &mut self.waiting };
                    queue.push_front(id, &mut self.requests);
                    break;
                }
            }
        }
        while let Some(id) = self.skipped.pop() {
            self.waiting.push_front(id, &mut self.requests);
        }
    }

    /// Tries to admit one request that has just been taken off its queue.
    fn admit(&mut self, id: RequestId, plan: &mut StepPlan, scan: &mut AdmissionScan) -> Admission {
        let request = &self.requests[id];
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
        if !remote {
            tokens = tokens.min(scan.per_request_cap);
            if !self.config.enable_chunked_prefill && tokens > scan.budget {
                return Admission::Blocked;
            }
            tokens = tokens.min(scan.budget);
        }
        if !self.allocate_admission(id, computed + tokens, num_tokens) {
            return Admission::Blocked;
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
        push_scheduled(plan, self, id, tokens, kind, 0);
        Admission::Admitted { scheduled_tokens: tokens }
    }

    /// Fills `self.hit` with the cached blocks that `id` can reuse and gives
    /// the tokens they hold. At least one token is always left to compute.
    fn lookup_prefix(&mut self, id: RequestId) -> u32 {
        let request = &self.requests[id];
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
        let request = &mut self.requests[id];
        request.block_table.extend_from_slice(&self.hit);
        request.num_stored_blocks = request.num_stored_blocks.max(reused);
        self.pool.allocate(needed - revived, &mut request.block_table);
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
        if !self.pool.caching() {
            return;
        }
        let request = &self.requests[id];
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

    /// Sums the shape and advances computed tokens, in one pass.
    fn commit_plan(&mut self, plan: &mut StepPlan) {
        let mut shape = StepShape {
            kv_active_blocks: u64::from(self.pool.num_active()),
            kv_total_blocks: u64::from(self.pool.num_usable()),
            block_size_tokens: u64::from(self.config.block_size),
            waiting_requests: self.num_waiting() as u64,
            ..StepShape::default()
        };
        let mut total = 0;
        for entry in &plan.scheduled {
            let end = entry.num_computed_tokens + entry.num_scheduled_tokens;
            let request = &mut self.requests[entry.request];
            if entry.is_prefill {
                let after = request.prefill_target_tokens.saturating_sub(end);
                let before = request.outstanding_prefill_tokens();
                self.outstanding_prefill_tokens -= u64::from(before - after);
            }
            request.num_computed_tokens = end;
            let samples = end >= request.num_tokens && request.max_tokens > 0;
            add_to_shape(&mut shape, entry, end >= request.num_tokens, samples);
            total += entry.num_scheduled_tokens;
        }
        plan.total_num_scheduled_tokens = total;
        plan.shape = shape;
    }
}

fn note_lora(loras: &mut Vec<u32>, lora: Option<u32>) {
    if let Some(lora) = lora
        && !loras.contains(&lora)
    {
        loras.push(lora);
    }
}

fn push_scheduled(
    plan: &mut StepPlan,
    engine: &Engine,
    id: RequestId,
    tokens: u32,
    kind: ScheduledKind,
    first_block: usize,
) {
    let request = &engine.requests[id];
    let start = plan.block_ids.len() as u32;
    plan.block_ids.extend_from_slice(&request.block_table[first_block..]);
    plan.scheduled.push(ScheduledRequest {
        request: id,
        tag: request.tag,
        num_scheduled_tokens: tokens,
        num_computed_tokens: request.num_computed_tokens,
        kind,
        is_prefill: request.num_computed_tokens < request.prefill_target_tokens,
        blocks: start..plan.block_ids.len() as u32,
    });
}

fn add_to_shape(shape: &mut StepShape, entry: &ScheduledRequest, completes: bool, samples: bool) {
    let tokens = u64::from(entry.num_scheduled_tokens);
    let depth = u64::from(entry.num_computed_tokens);
    if entry.is_prefill {
        shape.prefill_requests += 1;
        shape.prefill_tokens += tokens;
        shape.prefill_context_tokens += depth;
        shape.prefill_attention_pairs += tokens * depth + tokens * (tokens + 1) / 2;
        if completes {
            shape.prefill_completions += 1;
            shape.prefill_completion_context_tokens += depth + tokens;
        }
    } else {
        shape.decode_requests += 1;
        shape.decode_tokens += tokens;
        shape.decode_context_tokens += depth + tokens;
    }
    shape.sampled_requests += u64::from(samples);
}
