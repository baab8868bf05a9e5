//! Admission of requests that begin or continue a prompt, and of requests that get pages for KV from
//! elsewhere.

use crate::compat::Reservations;
use crate::plan::{AdmissionStop, RemoteLoad, ScheduledKind, StepPlan};
use crate::request::{Flags, KvRole, RequestId, RequestStatus};
use crate::sglang::config::{PassOrder, PrefixLookup, SchedulePolicy};
use crate::sglang::engine::SglangEngine;
use crate::sglang::pages::Hit;

/// A request with at most this many cached prompt tokens is moved behind another request with the same first tokens.
const BEGINNING_TOKENS: u32 = 32;

/// Spare entries of a hash list at admission, in addition to the known length of the request.
const MAX_SPARE_PAGES: u32 = 4_096;

struct Budget {
    input_tokens: u32,
    chunk_tokens: u32,
    /// Available pages in tokens, less the reserved share of the running requests' outputs. Requests admitted
    /// in this pass are charged with their whole output.
    total_tokens: f64,
    /// Number of pages that must stay free for running requests.
    kept_pages: u32,
}

/// The part of a prompt that a pass computes.
#[derive(Clone, Copy, Debug)]
struct Cut {
    end: u32,
    /// Whether the part ends with the last known token.
    is_whole: bool,
    /// Number of tokens charged to the budgets, in full pages.
    charged_tokens: u32,
}

enum Admission {
    /// The whole rest of the prompt is computed in this pass.
    Whole,
    /// A part of the prompt is computed in this pass.
    Chunk,
    Loading,
    /// No later request may be admitted in this pass.
    Blocked(AdmissionStop),
}

impl SglangEngine {
    pub(super) fn admit(&mut self, plan: &mut StepPlan) -> AdmissionStop {
        self.order_waiting();
        if let Some(stop) = self.precedence_stop() {
            return stop;
        }
        let mut budget = Budget {
            input_tokens: self.config.max_prefill_tokens(),
            chunk_tokens: self.config.chunked_prefill_size(),
            total_tokens: f64::from(self.pages.num_available()) * f64::from(self.config.page_size())
                - self.reserve.reserved_tokens(),
            kept_pages: self.pages_for_stalled(),
        };
        loop {
            if self.queues.num_waiting() == 0 {
                return AdmissionStop::Drained;
            }
            if self.num_slots_taken() >= self.config.max_num_seqs() as usize {
                return AdmissionStop::RunningSlots;
            }
            let id = self.queues.pop(&mut self.requests).expect("some request waits");
            let is_begun = self.requests[id].status == RequestStatus::Running;
            let admission =
                if is_begun { self.continue_prefill(id, &mut budget) } else { self.begin(id, plan, &mut budget) };
            match admission {
                Admission::Whole => self.queues.end_begun(id),
                Admission::Loading => {}
                Admission::Chunk => {
                    if !is_begun {
                        self.queues.begin(id);
                    }
                    self.queues.push_front(id, &mut self.requests);
                    return AdmissionStop::Budget;
                }
                Admission::Blocked(stop) => {
                    self.queues.push_front(id, &mut self.requests);
                    if !self.resume_started_prefill(id, plan, &mut budget) {
                        return stop;
                    }
                }
            }
        }
    }

    /// Whether waiting requests must let others go first. If pages are allocated between passes,
    /// requests with transferred KV go first while they wait for a running slot or for pages, unless
    /// only started prompts can make room for them.
    fn precedence_stop(&self) -> Option<AdmissionStop> {
        if self.config.reservations() == Reservations::InSteps {
            return None;
        }
        if self.queues.num_kv_ready() > 0 {
            return Some(AdmissionStop::RunningSlots);
        }
        let is_stuck =
            self.queues.is_destination_blocked() && self.running.is_empty() && self.queues.num_loading() == 0;
        (self.queues.has_destinations() && !is_stuck).then_some(AdmissionStop::Blocks)
    }

    /// Resolves a blocked head when nothing else can continue. The prompt that was started first goes before the head
    /// and keeps its pages. For it, the other started prompts are retracted, the last one first. So two prompts cannot
    /// retract each other in turn. Returns whether the head may be tried again.
    fn resume_started_prefill(&mut self, head: RequestId, plan: &mut StepPlan, budget: &mut Budget) -> bool {
        let goes_on = !self.running.is_empty() || !self.prefills.is_empty() || self.queues.num_loading() > 0;
        if goes_on || self.queues.begun().iter().all(|&id| id == head) {
            return false;
        }
        let first = self.queues.begun()[0];
        if first == head {
            let available_pages = self.pages.num_available();
            self.retract_last_begun(head, plan);
            let freed_pages = self.pages.num_available() - available_pages;
            budget.total_tokens += f64::from(freed_pages) * f64::from(self.config.page_size());
        } else {
            self.queues.move_to_front(first, &mut self.requests);
        }
        true
    }

    /// Pages for the next outputs of the running requests, if all of them were admitted without a page for
    /// their output; otherwise 0. In a mixed pass, new prompts could take these pages and the requests would be
    /// retracted for them, again and again, so that none would ever have an output.
    fn pages_for_stalled(&self) -> u32 {
        if self.running.iter().all(|&id| self.pages.is_stalled(id)) {
            self.running.iter().map(|&id| self.missing_pages(id)).sum()
        } else {
            0
        }
    }

    fn continue_prefill(&mut self, id: RequestId, budget: &mut Budget) -> Admission {
        let from = self.requests[id].num_computed_tokens;
        let cut = match self.cut(id, from, budget) {
            Ok(cut) => cut,
            Err(stop) => return Admission::Blocked(stop),
        };
        if !self.charge(id, cut, Hit::default(), budget) {
            return Admission::Blocked(AdmissionStop::Blocks);
        }
        self.prefills.push(self.chunk(id, ScheduledKind::Running, from, cut.end - from));
        self.compute(id, cut)
    }

    /// Starts a prompt, or the transfer of its KV.
    fn begin(&mut self, id: RequestId, plan: &mut StepPlan, budget: &mut Budget) -> Admission {
        let first = self.requests[id].status == RequestStatus::Waiting;
        let before_last = self.requests[id].num_tokens - 1;
        if first && self.requests[id].kv_role == KvRole::Destination {
            let hit = self.lookup(id, before_last);
            return self.begin_load(id, hit, plan, budget);
        }
        let (hit, cut) = match self.config.prefix_lookup() {
            PrefixLookup::WholePrompt => {
                let hit = self.lookup(id, before_last);
                (hit, self.cut(id, hit.pages * self.config.page_size(), budget))
            }
            PrefixLookup::FirstChunk => {
                let cut = self.cut(id, 0, budget);
                (cut.map_or(Hit::default(), |cut| self.lookup(id, cut.end)), cut)
            }
        };
        let cut = match cut {
            Ok(cut) => cut,
            Err(stop) => return Admission::Blocked(stop),
        };
        if !self.charge(id, cut, hit, budget) {
            return Admission::Blocked(AdmissionStop::Blocks);
        }
        let from = hit.pages * self.config.page_size();
        self.pages.take_hit(id, &self.requests[id], hit);
        self.reserve_hashes(id);
        self.count_lookup(id, from);
        self.requests[id].status = RequestStatus::Running;
        let kind = if first { ScheduledKind::New } else { ScheduledKind::Resumed };
        self.prefills.push(self.chunk(id, kind, from, cut.end - from));
        self.compute(id, cut)
    }

    /// Reserves pages for KV that another engine computes.
    fn begin_load(&mut self, id: RequestId, hit: Hit, plan: &mut StepPlan, budget: &mut Budget) -> Admission {
        let pages = self.pages.for_tokens(self.requests[id].prompt_tokens) - hit.pages;
        if !self.fits(id, pages * self.config.page_size(), self.reserve.of(&self.requests[id]), pages, hit, budget) {
            return Admission::Blocked(AdmissionStop::Blocks);
        }
        let load = self.start_load(id, hit, pages);
        self.reserve.begin(&mut self.requests[id]);
        plan.remote_loads.push(load);
        Admission::Loading
    }

    /// Tries to allocate pages, between two passes, for the prompt of the request that has waited
    /// longest for them. Running slots and the reserve for outputs are not checked.
    pub(super) fn reserve_for_destination(&mut self) -> Option<RemoteLoad> {
        self.queues.set_destination_blocked(true);
        let id = self.queues.pop_destination(&mut self.requests)?;
        let prompt_tokens = self.requests[id].prompt_tokens;
        let hit = self.lookup(id, prompt_tokens);
        let pages = self.pages.for_tokens(prompt_tokens) - hit.pages;
        if pages > self.pages.num_available() - hit.evictable_pages {
            self.pages.count_as_used(&self.requests[id], hit);
            self.queues.return_destination(id, &mut self.requests);
            return None;
        }
        self.queues.set_destination_blocked(false);
        Some(self.start_load(id, hit, pages))
    }

    /// Whether a request waits for pages that may be found at the end of the pass in flight.
    pub(super) fn waits_for_pages(&self) -> bool {
        self.queues.has_destinations() && !self.queues.is_destination_blocked()
    }

    /// Allocates pages for KV that another engine computes, and starts the transfer.
    fn start_load(&mut self, id: RequestId, hit: Hit, pages: u32) -> RemoteLoad {
        self.pages.take_hit(id, &self.requests[id], hit);
        self.reserve_hashes(id);
        self.pages.grow(id, pages);
        let cached_tokens = hit.pages * self.config.page_size();
        self.count_lookup(id, cached_tokens);
        self.set_computed(id, cached_tokens);
        let request = &mut self.requests[id];
        request.status = RequestStatus::WaitingForRemoteKv;
        request.deferred = true;
        self.queues.begin_load();
        let missing_tokens = request.prompt_tokens - cached_tokens;
        RemoteLoad { request: id, tag: request.tag, cached_tokens, missing_tokens, moved_tokens: missing_tokens }
    }

    /// The part of a request from token `from` on that fits into this pass.
    fn cut(&self, id: RequestId, from: u32, budget: &Budget) -> Result<Cut, AdmissionStop> {
        let page_size = self.config.page_size();
        let full_pages = |tokens: u32| tokens.div_ceil(page_size) * page_size;
        let rest = self.requests[id].num_tokens - from;
        let most = budget.chunk_tokens.min(budget.input_tokens);
        let is_whole = match self.config.prefix_lookup() {
            PrefixLookup::WholePrompt => full_pages(rest) <= most,
            PrefixLookup::FirstChunk => rest <= self.config.most_chunk_tokens(),
        };
        let tokens = if is_whole { rest } else { most - most % page_size };
        let charged_tokens = full_pages(tokens);
        if tokens == 0 || charged_tokens > most {
            return Err(AdmissionStop::Budget);
        }
        Ok(Cut { end: from + tokens, is_whole, charged_tokens })
    }

    /// Charges a part of a prompt, of which `hit` is cached, to the budget. Returns false and charges nothing if
    /// it does not fit.
    fn charge(&mut self, id: RequestId, cut: Cut, hit: Hit, budget: &mut Budget) -> bool {
        let output_tokens = if cut.is_whole { self.reserve.of(&self.requests[id]) } else { 0 };
        let missing_pages = self.pages.for_tokens(cut.end) - self.pages.held(id) - hit.pages;
        if !self.fits(id, cut.charged_tokens, output_tokens, missing_pages, hit, budget) {
            return false;
        }
        budget.chunk_tokens -= cut.charged_tokens;
        budget.input_tokens -= cut.charged_tokens;
        true
    }

    /// Whether there are enough pages in addition to `hit`, and enough room in the pass for the prompt's
    /// tokens and a reserve for the output. If so, charges them to the budget.
    fn fits(
        &mut self,
        id: RequestId,
        prompt_tokens: u32,
        output_tokens: u32,
        missing_pages: u32,
        hit: Hit,
        budget: &mut Budget,
    ) -> bool {
        let wanted_tokens = f64::from(prompt_tokens) + f64::from(output_tokens);
        let request = &self.requests[id];
        // A retracted request must be admitted once no other request runs.
        let was_running = request.num_tokens > request.prompt_tokens;
        let is_alone = was_running && self.running.is_empty() && self.joining.is_empty();
        if !is_alone && wanted_tokens >= budget.total_tokens {
            return false;
        }
        if missing_pages + budget.kept_pages > self.pages.num_available() - hit.evictable_pages {
            self.pages.count_as_used(&self.requests[id], hit);
            return false;
        }
        budget.total_tokens -= wanted_tokens;
        true
    }

    /// Allocates pages for a part of a prompt and counts the tokens before its end as computed.
    fn compute(&mut self, id: RequestId, cut: Cut) -> Admission {
        let pages = self.pages.for_tokens(cut.end) - self.pages.held(id);
        self.pages.grow(id, pages);
        self.set_computed(id, cut.end);
        if cut.is_whole {
            self.joining.push(id);
            Admission::Whole
        } else {
            Admission::Chunk
        }
    }

    /// Finds the cached part of a request's first `end` tokens that follows its own pages.
    fn lookup(&mut self, id: RequestId, end: u32) -> Hit {
        self.pages.lookup(id, &mut self.requests[id], end)
    }

    /// Reserves capacity for the hashes of the output, so that decoding rarely reallocates the list.
    fn reserve_hashes(&mut self, id: RequestId) {
        let request = &mut self.requests[id];
        let to_come = request.end_tokens / self.config.page_size() - request.num_tokens / self.config.page_size();
        request.block_hashes.reserve_exact(to_come.min(MAX_SPARE_PAGES) as usize);
    }

    fn count_lookup(&mut self, id: RequestId, cached_tokens: u32) {
        let request = &self.requests[id];
        if !self.config.enable_prefix_caching() || request.flags.has(Flags::SKIPS_LOOKUP) {
            return;
        }
        let resumed = request.status == RequestStatus::Preempted;
        let stats = if resumed { &mut self.stats.preempted_prefix } else { &mut self.stats.prefix };
        stats.requests += 1;
        stats.queried_tokens += u64::from(request.num_tokens);
        stats.hit_tokens += u64::from(cached_tokens);
    }

    /// Whether the policy reorders the waiting requests in every pass.
    pub(super) fn reorders(&self) -> bool {
        self.config.schedule_policy() == SchedulePolicy::Lpm && self.config.enable_prefix_caching()
    }

    fn order_waiting(&mut self) {
        let ordered = 2..=SchedulePolicy::MAX_ORDERED_REQUESTS;
        if !self.reorders() || !ordered.contains(&self.queues.num_waiting()) {
            return;
        }
        let pages = &self.pages;
        let page_size = self.config.page_size();
        self.queues.order_by_prefix(&mut self.requests, page_size, BEGINNING_TOKENS, |id, requests| {
            let request = &mut requests[id];
            let known_tokens = request.num_tokens;
            pages.held_in_tree(id) + pages.lookup(id, request, known_tokens).pages
        });
    }
}

impl SglangEngine {
    /// Allocates pages for the first output of the requests whose prompts are completed in this
    /// pass. If there are too few pages, no request gets its first token in this pass.
    pub(super) fn take_first_slots(&mut self) {
        let missing: u32 = self.joining.iter().map(|&id| self.missing_for_first(id)).sum();
        if missing > self.pages.num_available() {
            let without_slot = self.tokens_without_slot();
            for entry in &mut self.prefills {
                let request = &self.requests[entry.request];
                let has_slot = request.end_tokens - request.num_tokens <= without_slot;
                self.pages.set_stalled(entry.request, entry.samples && !has_slot);
                entry.samples &= has_slot;
            }
            return;
        }
        for index in 0..self.joining.len() {
            let id = self.joining[index];
            self.pages.grow(id, self.missing_for_first(id));
        }
    }

    /// Number of missing pages for the token after a request's prompt.
    fn missing_for_first(&self, id: RequestId) -> u32 {
        let request = &self.requests[id];
        if request.end_tokens - request.num_tokens <= self.tokens_without_slot() {
            return 0;
        }
        self.pages.for_tokens(request.num_tokens + 1) - self.pages.held(id)
    }

    /// The number of last output tokens that need no slot. If the token after a prompt is the only output, it needs no
    /// slot unless a decode computes it.
    fn tokens_without_slot(&self) -> u32 {
        u32::from(self.config.pass_order() == PassOrder::PrefillFirst)
    }
}
