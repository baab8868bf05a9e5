//! Outputs of a pass.

use crate::plan::{RequestOutput, ScheduledRequest, StepOutputs};
use crate::plugins::TokenSource;
use crate::request::{FinishReason, Flags, RequestStatus};
use crate::sglang::config::PassOrder;
use crate::sglang::engine::SglangEngine;

impl SglangEngine {
    /// Samples for every request that reached its last known token, offers computed prompts to the
    /// cache, and frees ended requests.
    pub(super) fn apply<S: TokenSource + ?Sized>(&mut self, source: &mut S) {
        assert!(self.step_in_flight, "applied a pass that was never scheduled");
        let plan = std::mem::take(&mut self.plan);
        let mut out = std::mem::take(&mut self.outputs);
        out.outputs.clear();
        out.tokens.clear();
        // Partly computed prompts are marked as used first, whatever their order in the plan.
        for &id in self.queues.begun() {
            let request = &self.requests[id];
            self.pages.store_now(id, request, request.num_computed_tokens);
        }
        for entry in &plan.scheduled {
            if self.sample_plain(entry, source, &mut out) {
                continue;
            }
            // The request was aborted while the pass was in flight.
            if matches!(self.requests[entry.request].status, RequestStatus::Finished | RequestStatus::HoldingKv) {
                continue;
            }
            let ended = entry.samples && self.sample(entry, source, &mut out);
            let request = &self.requests[entry.request];
            let is_whole = entry.samples || request.num_computed_tokens == request.num_tokens;
            if entry.is_prefill && is_whole && !ended {
                self.store_prompt(entry);
            }
        }
        if !self.ended.is_empty() {
            // The pages of ended requests count as used last, whatever their order in the plan.
            for index in 0..self.ended.len() {
                let (id, kept_tokens) = self.ended[index];
                self.finish(id, kept_tokens);
            }
            self.ended.clear();
            let requests = &self.requests;
            self.running.retain(|&id| requests[id].status == RequestStatus::Running);
        }
        self.plan = plan;
        self.step_in_flight = false;
        let mut released = std::mem::take(&mut self.released);
        for id in released.drain(..) {
            self.release_source(id);
        }
        self.released = released;
        self.applied_steps += 1;
        self.requests.recycle(self.applied_steps);
        self.outputs = out;
    }

    /// Offers a prompt to the cache once a pass has computed the prompt's end.
    fn store_prompt(&mut self, entry: &ScheduledRequest) {
        let id = entry.request;
        let request = &self.requests[id];
        let tokens = if entry.samples { request.num_tokens } else { request.num_computed_tokens };
        self.pages.store_now(id, request, tokens);
        let request = &mut self.requests[id];
        if !entry.samples {
            // There was no page for the first token, which now comes from a decode.
            request.num_computed_tokens -= 1;
            request.prefill_target_tokens = request.num_computed_tokens;
        }
    }

    /// Fast path of [`SglangEngine::sample`] for a request that is certain to continue after this pass. Returns false
    /// if the request may end.
    #[inline(always)]
    fn sample_plain<S: TokenSource + ?Sized>(
        &mut self,
        entry: &ScheduledRequest,
        source: &mut S,
        out: &mut StepOutputs,
    ) -> bool {
        let id = entry.request;
        let request = &mut self.requests[id];
        let tokens_left = request.end_tokens - request.num_tokens;
        let goes_on = !entry.is_prefill
            && tokens_left > 1
            && request.status == RequestStatus::Running
            && !request.flags.has(Flags::IS_NOT_PLAIN)
            && self.config.max_extra_tokens_per_step() == 0;
        if !goes_on {
            return false;
        }
        let page_size = self.config.page_size();
        let token = source.token(entry.tag, request.num_output_tokens());
        request.push_output(token, self.config.enable_prefix_caching(), page_size);
        let fills_page = request.num_tokens.is_multiple_of(page_size);
        self.reserve.count_one(tokens_left);
        if fills_page {
            self.pages.note_filled(id);
        }
        out.tokens.push(token);
        out.outputs.push(RequestOutput {
            request: id,
            tag: entry.tag,
            num_tokens: 1,
            num_sampled_tokens: 1,
            num_draft_tokens: 0,
            finish: None,
        });
        true
    }

    /// Appends a request's tokens of this pass. Returns whether the request has ended.
    fn sample<S: TokenSource + ?Sized>(
        &mut self,
        entry: &ScheduledRequest,
        source: &mut S,
        out: &mut StepOutputs,
    ) -> bool {
        let id = entry.request;
        let caching = self.config.enable_prefix_caching();
        let page_size = self.config.page_size();
        let most_extra = self.config.max_extra_tokens_per_step();
        let request = &mut self.requests[id];
        let reserve_before = self.reserve.of(request);
        let already = request.num_output_tokens();
        let mut finish = (request.max_tokens == 0).then_some(FinishReason::Length);
        let mut num_sampled_tokens = u32::from(finish.is_none());
        // A prompt has no slots for a burst.
        if most_extra > 0 && !entry.is_prefill {
            let most = most_extra.min(request.end_tokens - request.num_tokens - 1);
            num_sampled_tokens += if most == 0 { 0 } else { source.extra_tokens(entry.tag, most).min(most) };
        }
        let mut num_tokens = 0;
        while num_tokens < num_sampled_tokens && finish.is_none() {
            let token = source.token(entry.tag, already + num_tokens);
            num_tokens += 1;
            out.tokens.push(token);
            request.push_output(token, caching, page_size);
            finish = request.finish_after(token);
        }
        // The KV of all tokens of a burst except the last is already computed.
        request.num_computed_tokens += num_tokens.saturating_sub(1);
        let known = request.num_tokens;
        self.reserve.recount(reserve_before, request);
        if most_extra > 0 {
            self.pages.shrink(id, self.pages.for_tokens(known));
        }
        let fills_last = known.is_multiple_of(page_size);
        if known % page_size < num_tokens && !entry.is_prefill && !(fills_last && finish.is_some()) {
            self.pages.note_filled(id);
        }
        if finish.is_some() {
            let has_slot = !entry.is_prefill || self.config.pass_order() == PassOrder::Mixed;
            self.ended.push((id, if has_slot { known } else { known - num_tokens }));
        }
        out.outputs.push(RequestOutput {
            request: id,
            tag: entry.tag,
            num_tokens,
            num_sampled_tokens: num_sampled_tokens as u16,
            num_draft_tokens: 0,
            finish,
        });
        finish.is_some()
    }
}
