//! Decodes of running requests, and retraction when pages run out.

use crate::plan::{ScheduledKind, ScheduledRequest, StepPlan};
use crate::request::{RequestId, RequestStatus};
use crate::sglang::config::Retraction;
use crate::sglang::engine::SglangEngine;

impl SglangEngine {
    /// Schedules one token for each running request, after retracting requests for which there is no room.
    pub(super) fn decode(&mut self, plan: &mut StepPlan) {
        self.make_room(plan);
        for index in 0..self.running.len() {
            let id = self.running[index];
            let pages = self.missing_pages(id);
            if pages > 0 {
                self.pages.grow(id, pages);
                self.pages.set_stalled(id, false);
            }
            let request = &mut self.requests[id];
            let computed = request.num_computed_tokens;
            request.num_computed_tokens = computed + 1;
            let is_new = std::mem::take(&mut request.deferred);
            let entry = ScheduledRequest {
                request: id,
                tag: request.tag,
                num_scheduled_tokens: 1,
                num_computed_tokens: computed,
                kind: if is_new { ScheduledKind::New } else { ScheduledKind::Running },
                is_prefill: false,
                samples: true,
                num_draft_tokens: 0,
                blocks: 0..0,
            };
            Self::enter(plan, entry, true);
        }
    }

    /// Number of missing pages for one more decode of a request, in which each possible token has a slot.
    #[inline]
    pub(super) fn missing_pages(&self, id: RequestId) -> u32 {
        let request = &self.requests[id];
        let most = (1 + self.config.max_extra_tokens_per_step()).min(request.end_tokens - request.num_tokens);
        self.pages.for_tokens(request.num_tokens + most).saturating_sub(self.pages.held(id))
    }

    /// Retracts requests until the others can decode.
    fn make_room(&mut self, plan: &mut StepPlan) {
        let mut missing: u32 = self.running.iter().map(|&id| self.missing_pages(id)).sum();
        while missing > self.pages.num_available() {
            let others = self.running.len() + self.joining.len() > 1;
            let prefills = !plan.scheduled.is_empty() || !self.prefills.is_empty();
            if !others && !prefills && !self.queues.begun().is_empty() {
                // A request that runs alone goes before requests whose prompts are only partly computed.
                self.retract_last_begun(self.running[0], plan);
                continue;
            }
            let index = self.fewest_outputs();
            let id = self.running.remove(index);
            missing -= self.missing_pages(id);
            self.retract(id, self.requests[id].num_tokens, plan);
        }
        if !self.retracted.is_empty() {
            match self.config.retraction() {
                Retraction::BeforeAll => self.reserve.restart(),
                Retraction::BehindAll => self.reserve.restart_at(self.estimated_share()),
            }
        }
    }

    /// The fraction of their outputs that the running requests have generated, or will have generated soon.
    fn estimated_share(&self) -> f64 {
        let (mut had, mut most) = (0, 0);
        for &id in &self.running {
            let request = &self.requests[id];
            had += u64::from(request.num_output_tokens() + Retraction::STEPS_AHEAD);
            most += u64::from(request.end_tokens - request.prompt_tokens);
        }
        (had as f64 / (most + 1) as f64).min(1.0)
    }

    /// Requeues the requests retracted in this pass, in the order of retraction.
    pub(super) fn requeue_retracted(&mut self) {
        match self.config.retraction() {
            Retraction::BeforeAll => {
                while let Some(id) = self.retracted.pop() {
                    self.queues.push_front(id, &mut self.requests);
                }
            }
            Retraction::BehindAll => {
                for id in self.retracted.drain(..) {
                    self.queues.push_back(id, &mut self.requests);
                }
            }
        }
    }

    /// Retracts the last request with a partly computed prompt, but not `kept`.
    pub(super) fn retract_last_begun(&mut self, kept: RequestId, plan: &mut StepPlan) {
        let id = self.queues.pop_last_begun(kept, &mut self.requests);
        self.retract(id, 0, plan);
    }

    /// Index of the running request with the fewest output tokens; the first one if there are several.
    fn fewest_outputs(&self) -> usize {
        let outputs = self.running.iter().map(|&id| self.requests[id].num_output_tokens());
        let fewest = outputs.enumerate().min_by_key(|&(index, tokens)| (tokens, index));
        fewest.expect("only running requests lack pages").0
    }

    /// Releases the KV of a request that has left its list. The full pages of its first `kept_tokens`
    /// tokens, and its pages in the tree, may be reused.
    fn retract(&mut self, id: RequestId, kept_tokens: u32, plan: &mut StepPlan) {
        self.pages.store_filled(id, &self.requests[id], kept_tokens);
        self.forget_kv(id);
        self.requests[id].status = RequestStatus::Preempted;
        self.stats.preemptions += 1;
        plan.preempted.push(self.requests[id].tag);
        self.retracted.push(id);
    }

    /// Drops the KV of a request. It is recomputed later, except for what the tree still holds then.
    fn forget_kv(&mut self, id: RequestId) {
        let request = &mut self.requests[id];
        self.reserve.end(request);
        self.pages.release(id);
        self.outstanding_prefill_tokens -= u64::from(request.outstanding_prefill_tokens());
        request.num_computed_tokens = 0;
        request.deferred = false;
        request.prefill_target_tokens = request.num_tokens;
        self.outstanding_prefill_tokens += u64::from(request.num_tokens);
    }
}
