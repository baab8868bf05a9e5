//! Decisions of a tick: admission, then round-robin decoding.

use crate::plan::{AdmissionStop, CountRequests as _, ScheduledKind, ScheduledRequest, StepPlan};
use crate::request::{RequestId, RequestStatus};
use crate::ticks::engine::{Place, TickEngine};

impl TickEngine {
    pub(super) fn decide(&mut self, plan: &mut StepPlan) {
        let num_before = self.active.len();
        plan.admission_stop = self.admit();
        self.decode(num_before, plan);
        plan.shape.kv_active_blocks = u64::from(self.config.total_kv_pages() - self.num_free_pages);
        plan.shape.kv_total_blocks = u64::from(self.config.total_kv_pages());
        plan.shape.block_size_tokens = u64::from(self.config.page_size_tokens());
        plan.shape.waiting_requests = self.waiting.len() as u64;
    }

    /// Admits every waiting request that fits, in order. Returns the resource that is missing for the first
    /// remaining request.
    fn admit(&mut self) -> AdmissionStop {
        let mut budget = self.config.prefill_tokens_per_tick();
        let mut stop = AdmissionStop::Drained;
        let mut next = self.waiting.first().copied();
        while let Some(place) = next {
            match self.lacks(place.id, budget) {
                None => {
                    budget -= self.requests[place.id].prompt_tokens;
                    self.activate(place);
                }
                Some(lack) => {
                    if stop == AdmissionStop::Drained {
                        stop = lack;
                    }
                    // No smaller request could be admitted either.
                    if lack == AdmissionStop::RunningSlots || budget == 0 || self.num_free_pages == 0 {
                        return stop;
                    }
                }
            }
            next = self.waiting.range((std::ops::Bound::Excluded(place), std::ops::Bound::Unbounded)).next().copied();
        }
        stop
    }

    /// The limit that prevents a request's admission. Slots are checked first, then pages, then the budget.
    fn lacks(&self, id: RequestId, budget: u32) -> Option<AdmissionStop> {
        let request = &self.requests[id];
        if self.active.len() >= self.config.max_active() as usize {
            Some(AdmissionStop::RunningSlots)
        } else if self.pages_of(id) > self.num_free_pages {
            Some(AdmissionStop::Blocks)
        } else if request.prompt_tokens > budget {
            Some(AdmissionStop::Budget)
        } else {
            None
        }
    }

    fn pages_of(&self, id: RequestId) -> u32 {
        let request = &self.requests[id];
        self.config.reserved_pages(request.prompt_tokens, request.end_tokens - request.prompt_tokens)
    }

    fn activate(&mut self, place: Place) {
        let id = place.id;
        self.waiting.remove(&place);
        let pages = self.pages_of(id);
        self.num_free_pages -= pages;
        self.reserved[id.index()] = pages;
        let request = &mut self.requests[id];
        request.status = RequestStatus::Running;
        request.num_computed_tokens = request.prompt_tokens;
        self.outstanding_prefill_tokens -= u64::from(request.prompt_tokens);
        self.active.push_back(id);
    }

    /// Schedules one token for each request at the front of the queue, and the prompts that this tick has admitted. The
    /// admitted requests come after the first `num_before` requests.
    fn decode(&self, num_before: usize, plan: &mut StepPlan) {
        let mut slots = self.config.decode_width();
        for (index, &id) in self.active.iter().enumerate() {
            let emits = self.requests[id].max_tokens > 0;
            let decodes = emits && slots > 0;
            slots -= u32::from(decodes);
            let entry = if index >= num_before {
                // A request without output ends with its prompt.
                self.prompt(id, decodes || !emits)
            } else if decodes {
                self.token(id)
            } else {
                continue;
            };
            plan.shape.add(&entry, emits, u32::MAX);
            plan.total_num_scheduled_tokens += entry.num_scheduled_tokens;
            plan.scheduled.push(entry);
        }
    }

    fn prompt(&self, id: RequestId, samples: bool) -> ScheduledRequest {
        let request = &self.requests[id];
        ScheduledRequest {
            request: id,
            tag: request.tag,
            num_scheduled_tokens: request.prompt_tokens,
            num_computed_tokens: 0,
            kind: ScheduledKind::New,
            is_prefill: true,
            samples,
            num_draft_tokens: 0,
            blocks: 0..0,
        }
    }

    fn token(&self, id: RequestId) -> ScheduledRequest {
        let request = &self.requests[id];
        ScheduledRequest {
            request: id,
            tag: request.tag,
            num_scheduled_tokens: 1,
            num_computed_tokens: request.num_tokens - 1,
            kind: ScheduledKind::Running,
            is_prefill: false,
            samples: true,
            num_draft_tokens: 0,
            blocks: 0..0,
        }
    }
}
