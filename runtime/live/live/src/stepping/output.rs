//! Turns new tokens of a request into an output message; used by stepping and playback.

use vcr_core::{AnyEngine, FinishReason as CoreFinish, ServingEngine as _};
use vcr_wire::{FinishReason, Tensor};

use crate::answers::answer::{self, stop_reason};
use crate::context::Context;
use crate::counters::Counters;
use crate::egress::Egress;
use crate::faults::injector::{Injector, InjectorEvent};
use crate::kv_transfer::finished::{Finished, LateAnswer};
use crate::kv_transfer::pages::exchanged_blocks;
use crate::kv_transfer::transfers::Transfers;
use crate::requests::{Requests, slot_of};
use crate::stepping::results::StepResults;
use crate::stepping::turns::end_turn;
use crate::tokens::Tokens;

pub(crate) struct OutputParts<'a> {
    pub(crate) context: &'a Context,
    pub(crate) requests: &'a mut Requests,
    pub(crate) tokens: &'a mut Tokens,
    pub(crate) transfers: &'a mut Transfers,
    pub(crate) injector: &'a mut Injector,
    pub(crate) egress: &'a mut Egress,
    pub(crate) counters: &'a mut Counters,
}

impl OutputParts<'_> {
    /// Gathers the new `tokens` of a request for its frontend, and returns the finish reason if the request ends
    /// with them.
    #[inline]
    pub(crate) fn emit(
        &mut self,
        engine: &AnyEngine,
        tag: u64,
        tokens: &[u32],
        finish: Option<FinishReason>,
        now_ns: u64,
        results: &mut StepResults,
    ) -> Option<FinishReason> {
        let request = self.requests.get_mut(tag)?;
        request.output_tokens += tokens.len() as u32;
        self.counters.generation_tokens += tokens.len() as u64;
        let output_tokens = request.output_tokens;
        self.injector.record(|| InjectorEvent::Emitted { slot: slot_of(tag) as u32, output_tokens });
        let outputs = &mut self.egress.outputs;
        let reports_end = outputs.has_coordinator();
        // Played-back answers keep their recorded times.
        let is_first = output_tokens as usize == tokens.len() && request.core.is_some();
        if request.is_plain() {
            let with_stop = finish.map(|finish| (finish, stop_reason(finish, tokens, request.eos_token)));
            let mut gather = outputs.gather(request.client, is_first);
            gather.tokens(&request.id, tokens, with_stop);
            if let Some(reason) = finish {
                results.ended.push((tag, reason));
                if reports_end {
                    gather.finished(&request.id);
                }
            }
            return finish;
        }
        // For a streaming input, only the answer to one part ends here.
        let goes_on = finish.is_some() && request.is_resumable() && engine.outputs().continuing.contains(&tag);
        let reason = results.finish_of(request, finish, goes_on);
        let sends_stats = self.egress.sends_stats();
        let mut message = answer::message(
            request,
            tokens,
            reason,
            &self.context.config.engine,
            sends_stats,
            self.tokens.vocab_size(),
        );
        // Played-back requests have neither KV nor embeddings.
        if let (Some(extras), Some(core)) = (request.extras.as_deref_mut(), request.core) {
            if reason == Some(FinishReason::Length)
                && let Some(vector) = extras.embedding.take()
            {
                message.pooling_output = Some(Tensor::of_f32(&[vector.len()], vector));
                message.finish_reason = Some(FinishReason::Stop);
            }
            let is_whole = matches!(reason, Some(FinishReason::Length | FinishReason::Stop));
            if extras.is_prefill_only && is_whole {
                let finished = Finished {
                    id: request.id.clone(),
                    core,
                    blocks: exchanged_blocks(engine, core, request.prompt_tokens),
                    contents: std::mem::take(&mut extras.contents),
                    num_tokens: request.prompt_tokens + request.output_tokens,
                    cached_tokens: request.local_cached_tokens + request.external_tokens,
                    tensor_parallel_size: self.context.config.identity.tensor_parallel_size,
                    version: self.egress.version(),
                    room: extras.room.take(),
                };
                if let Some(id) = self.transfers.write(&finished) {
                    let answer = LateAnswer { finished, message, channel: request.client, is_first };
                    self.transfers.answer_later(id, answer);
                    return reason;
                }
                message.kv_transfer_params = self.transfers.hold_or_log(&finished, now_ns);
                if message.kv_transfer_params.is_none() {
                    results.unheld.push(core);
                }
            }
        }
        let mut gather = self.egress.outputs.gather(request.client, is_first);
        if reports_end && reason.is_some() && !goes_on {
            gather.finished(&request.id);
        }
        gather.output(message);
        if goes_on {
            end_turn(request, self.tokens);
        }
        reason
    }
}

/// The core's finish reason in the protocol.
#[must_use]
pub fn finish_reason(finish: CoreFinish) -> FinishReason {
    match finish {
        CoreFinish::Stop => FinishReason::Stop,
        CoreFinish::Length => FinishReason::Length,
        CoreFinish::Abort => FinishReason::Abort,
        CoreFinish::Error => FinishReason::Error,
        CoreFinish::Repetition => FinishReason::Repetition,
    }
}
