//! Prediction of passes: runs of pure decode.
//!
//! This works as for vLLM's engine: while nothing arrives and no request ends, each pass is the same as the previous
//! one, with every context one token longer.

use crate::engine::Engine;
use crate::plan::{RequestOutput, ScheduledKind};
use crate::plugins::TokenSource;
use crate::plugins::latency::{BlockChange, DecodeSteps};
use crate::serving::ServingEngine;
use crate::sglang::engine::SglangEngine;

impl SglangEngine {
    /// Fills `steps` with up to `most` passes that follow the one in flight.
    pub(super) fn predict(&self, most: usize, steps: &mut DecodeSteps) {
        // Requests may have arrived since that pass was decided.
        steps.restart(&self.plan.shape, self.load().num_waiting as u64);
        if !self.repeats_itself() {
            return;
        }
        // New pages by pass. The token of the pass in flight already has its slot.
        let mut changes = [BlockChange::default(); Engine::MAX_PREDICTED_STEPS];
        let most = self.passes_until_first_end(most).min(changes.len());
        for entry in &self.plan.scheduled {
            let capacity_tokens = self.pages.held(entry.request) * self.config.page_size();
            let mut pass = (capacity_tokens - self.requests[entry.request].num_tokens - 1) as usize;
            while pass < most {
                changes[pass].taken += 1;
                pass += self.config.page_size() as usize;
            }
        }
        steps.push_while_room(&changes[..most], self.pages.num_available());
    }

    /// Applies the pass in flight and the next `passes - 1` passes, and leaves one more pass in
    /// flight.
    pub(super) fn skip<S: TokenSource + ?Sized>(&mut self, passes: u32, source: &mut S) {
        let predicted = self.repeats_itself() && self.passes_until_first_end(passes as usize) == passes as usize;
        assert!(predicted && passes > 0, "{passes} passes were skipped that had not been predicted");
        let caching = self.config.enable_prefix_caching();
        let page_size = self.config.page_size();
        let mut plan = std::mem::take(&mut self.plan);
        let mut out = std::mem::take(&mut self.outputs);
        out.outputs.clear();
        out.tokens.clear();
        let decoding = plan.scheduled.len() as u64;
        let filled_before = self.pages.tick(decoding * u64::from(passes)) - decoding * u64::from(passes);
        for (place, entry) in (1..).zip(&mut plan.scheduled) {
            let id = entry.request;
            let request = &mut self.requests[id];
            let reserve_before = self.reserve.of(request);
            let first = request.num_output_tokens();
            for output_index in first..first + passes {
                let token = source.token(entry.tag, output_index);
                out.tokens.push(token);
                request.push_output(token, caching, page_size);
            }
            request.num_computed_tokens += passes;
            let known = request.num_tokens;
            self.reserve.recount(reserve_before, request);
            // Evicting for all passes at once evicts the same pages as evicting in each pass.
            let missing = self.pages.for_tokens(known + 1) - self.pages.held(id);
            if missing > 0 {
                self.pages.grow(id, missing);
            }
            // The pass in which the request last filled a page.
            if let Some(pass @ 1..) = passes.checked_sub(known % page_size) {
                self.pages.note_filled_at(id, filled_before + u64::from(pass - 1) * decoding + place);
            }
            entry.num_computed_tokens += passes;
            entry.kind = ScheduledKind::Running;
            out.outputs.push(RequestOutput {
                request: id,
                tag: entry.tag,
                num_tokens: passes,
                num_sampled_tokens: passes as u16,
                num_draft_tokens: 0,
                finish: None,
            });
        }
        plan.preempted.clear();
        plan.remote_loads.clear();
        plan.shape.decode_context_tokens += plan.shape.decode_requests * u64::from(passes);
        plan.shape.waiting_requests = self.load().num_waiting as u64;
        plan.shape.kv_active_blocks = u64::from(self.load().num_active_blocks);
        self.plan = plan;
        self.outputs = out;
        self.reserve.fall(passes);
        if !self.interval.counts_together() {
            self.end_passes_of_ranks(passes, false);
        }
        self.stats.steps += u64::from(passes);
        self.applied_steps += u64::from(passes);
        self.requests.recycle(self.applied_steps);
    }

    /// Whether the pass after the one in flight is the same, with one more token of context per request.
    fn repeats_itself(&self) -> bool {
        let decoding = self.plan.scheduled.len();
        self.step_in_flight
            && self.config.max_extra_tokens_per_step() == 0
            && self.plan.shape.decode_requests == decoding as u64
            && decoding == self.running.len()
            && self.queues.num_kv_ready() == 0
            && !self.waits_for_pages()
            && (self.queues.num_waiting() == 0
                || (!self.reorders() && self.num_slots_taken() >= self.config.max_num_seqs() as usize))
    }

    /// Number of passes after the one in flight that still include all of its requests.
    fn passes_until_first_end(&self, most: usize) -> usize {
        let left = self.plan.scheduled.iter().map(|entry| self.requests[entry.request].certain_tokens());
        // The pass in flight emits one of these tokens.
        left.fold(most, |passes, left| passes.min((left as usize).saturating_sub(1)))
    }
}
