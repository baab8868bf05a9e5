//! Applying a step: vLLM's `Scheduler.update_from_output()`.

use crate::engine::{Engine, TokenSource};
use crate::plan::{RequestOutput, StepOutputs};
use crate::request::{FinishReason, RequestId, RequestStatus};

impl Engine {
    /// Ends the step in flight: samples a token for every request whose known
    /// tokens are all computed, checks for stops, and frees what ended.
    ///
    /// # Panics
    /// When no step is in flight: a driver bug.
    pub fn update<S: TokenSource + ?Sized>(&mut self, source: &mut S) -> &StepOutputs {
        assert!(self.in_flight, "applied a step that was never scheduled");
        let plan = std::mem::take(&mut self.plan);
        let mut out = std::mem::take(&mut self.outputs);
        out.outputs.clear();
        out.tokens.clear();
        let mut any_finished = false;
        for entry in &plan.scheduled {
            let request = &self.requests[entry.request];
            // Aborted while the step was in flight, or still within its prompt.
            if request.status != RequestStatus::Running || request.num_computed_tokens < request.num_tokens {
                continue;
            }
            let tokens_before = out.tokens.len();
            let finish = self.sample(entry.request, source, &mut out.tokens);
            out.outputs.push(RequestOutput {
                request: entry.request,
                tag: entry.tag,
                num_tokens: (out.tokens.len() - tokens_before) as u32,
                finish,
            });
            if finish.is_some() {
                any_finished = true;
                self.finish(entry.request);
            }
        }
        if any_finished {
            let requests = &self.requests;
            self.running.retain(|&id| requests[id].status == RequestStatus::Running);
        }
        self.plan = plan;
        self.in_flight = false;
        self.requests.recycle();
        self.outputs = out;
        &self.outputs
    }

    /// Appends this step's tokens of one request until they stop it.
    fn sample<S: TokenSource + ?Sized>(
        &mut self,
        id: RequestId,
        source: &mut S,
        tokens: &mut Vec<u32>,
    ) -> Option<FinishReason> {
        let caching = self.pool.caching();
        let max_model_len = self.config.max_model_len();
        let request = &mut self.requests[id];
        let already = request.num_output_tokens();
        let Some(room) = request.max_tokens.checked_sub(already + 1) else {
            return Some(FinishReason::Length);
        };
        let most_extra = self.config.max_extra_tokens_per_step.min(room);
        let extra = match most_extra {
            0 => 0,
            most => source.extra_tokens(request.tag, most).min(most),
        };
        for output_index in already..=already + extra {
            let token = source.token(request.tag, output_index);
            tokens.push(token);
            request.num_tokens += 1;
            if caching {
                request.block_hashes.extend(request.hasher.push_token(token));
            }
            if request.stop_token == Some(token) {
                return Some(FinishReason::Stop);
            }
            if request.num_tokens >= max_model_len || request.num_output_tokens() >= request.max_tokens {
                return Some(FinishReason::Length);
            }
        }
        // Tokens of a burst but the last come with their KV computed.
        request.num_computed_tokens += extra;
        None
    }
}
