//! The end of a tick: outputs, turns, and pages returned.

use crate::plan::{RequestOutput, ScheduledRequest, StepOutputs};
use crate::plugins::TokenSource;
use crate::request::{FinishReason, RequestStatus};
use crate::ticks::engine::TickEngine;

impl TickEngine {
    /// Applies the tick in flight.
    pub(super) fn apply<S: TokenSource + ?Sized>(&mut self, source: &mut S) {
        assert!(self.step_in_flight, "applied a tick that was never scheduled");
        let plan = std::mem::take(&mut self.plan);
        let mut out = std::mem::take(&mut self.outputs);
        out.clear();
        for entry in &plan.scheduled {
            // Aborted while the tick was in flight.
            if self.requests[entry.request].status == RequestStatus::Finished {
                continue;
            }
            if entry.samples {
                self.sample(entry, source, &mut out);
            } else {
                // Its first token comes of a later tick, which computes the prompt's last
                // token again to get logits to sample from.
                let request = &mut self.requests[entry.request];
                request.num_computed_tokens -= 1;
                request.prefill_target_tokens = request.num_computed_tokens;
            }
        }
        self.plan = plan;
        self.outputs = out;
        self.step_in_flight = false;
        self.applied_steps += 1;
        self.requests.recycle(self.applied_steps);
    }

    /// Appends a request's token and puts the request behind all others, or ends it.
    fn sample<S: TokenSource + ?Sized>(&mut self, entry: &ScheduledRequest, source: &mut S, out: &mut StepOutputs) {
        let id = entry.request;
        let request = &mut self.requests[id];
        let mut finish = (request.max_tokens == 0).then_some(FinishReason::Length);
        let num_tokens = u32::from(finish.is_none());
        if num_tokens > 0 {
            let token = source.token(entry.tag, request.num_output_tokens());
            out.tokens.push(token);
            request.num_computed_tokens = request.num_tokens;
            request.push_output(token, false, self.config.page_size_tokens());
            finish = request.finish_after(token);
        }
        let turn = self.active.iter().position(|&other| other == id);
        self.active.remove(turn.expect("only active requests are sampled"));
        if finish.is_some() {
            self.drop_request(id);
        } else {
            self.active.push_back(id);
        }
        out.outputs.push(RequestOutput {
            request: id,
            tag: entry.tag,
            num_tokens,
            num_sampled_tokens: num_tokens as u16,
            num_draft_tokens: 0,
            finish,
        });
    }
}
