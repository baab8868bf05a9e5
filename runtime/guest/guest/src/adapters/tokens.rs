//! A token source that calls a guest.

use vcr_core::tokens::{BatchTokenSource, TokenAnswer, TokenError, TokenRefusal, TokenRequest, TokenWant};

use crate::adapters::running::Running;
use crate::error::CallFault;
use crate::latest::{TokenCall, TokenInstance};
use crate::limits::Limits;
use crate::remarks::{RefusedRequest, Remarks, RunningSlots};

pub(crate) struct GuestTokens {
    running: Running<dyn TokenInstance>,
    calls: Calls,
}

/// The limits, slots and remarks of an instance's calls.
struct Calls {
    limits: Limits,
    slots: RunningSlots,
    remarks: Remarks,
}

impl GuestTokens {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn TokenInstance>) -> Self {
        let (slots, remarks) = (RunningSlots::default(), Remarks::default());
        Self { running: Running::new(name, instance), calls: Calls { limits, slots, remarks } }
    }
}

impl BatchTokenSource for GuestTokens {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        let given_before = answer.tokens.len();
        let Self { running, calls } = self;
        calls.remarks.clear();
        let result = running.call("step", |instance| calls.step(instance, started, ended, wants, &mut answer.tokens));
        result.map_err(|failure| {
            answer.tokens.truncate(given_before);
            TokenError { source: failure.guest, reason: failure.reason }
        })?;
        let source = running.guest();
        let refusal = |RefusedRequest { slot, reason }| TokenRefusal { slot, source: source.to_owned(), reason };
        answer.refusals.extend(calls.remarks.refused.drain(..).map(refusal));
        answer.accepted_drafts.append(&mut calls.remarks.accepted);
        Ok(())
    }
}

impl Calls {
    /// Sends one step to the guest, in one call unless the starting requests are too large for that.
    fn step(
        &mut self,
        instance: &mut dyn TokenInstance,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
        tokens: &mut Vec<u32>,
    ) -> Result<(), CallFault> {
        ended.iter().for_each(|slot| self.slots.end(*slot));
        let (mut ended, mut first) = (ended, 0);
        let mut room_bytes = self.limits.request_bytes_per_call;
        for (index, request) in started.iter().enumerate() {
            let bytes = size_bytes(request);
            // A request that alone exceeds the limit is sent in one call.
            if bytes > room_bytes && first < index {
                self.send(instance, TokenCall { started: &started[first..index], ended, wants: &[] }, tokens)?;
                (ended, first) = (&[], index);
                room_bytes = self.limits.request_bytes_per_call;
            }
            room_bytes = room_bytes.saturating_sub(bytes);
            self.slots.start(request.slot);
        }
        let last = TokenCall { started: &started[first..], ended, wants };
        if last.started.is_empty() && ended.is_empty() && wants.is_empty() {
            return Ok(());
        }
        self.send(instance, last, tokens)
    }

    /// Makes one call and checks that the answer has every wanted token.
    fn send(
        &mut self,
        instance: &mut dyn TokenInstance,
        call: TokenCall<'_>,
        tokens: &mut Vec<u32>,
    ) -> Result<(), CallFault> {
        let wanted = call.wants.iter().map(|want| want.count as usize).sum();
        let requests = call.started.len() + call.ended.len();
        let budget = self.limits.budget(requests + wanted, wanted * size_of::<u32>());
        let (refused_before, accepted_before) = (self.remarks.refused.len(), self.remarks.accepted.len());
        let answer = instance.step(call, &mut self.remarks, budget)?;
        if answer.len() != wanted {
            return Err(CallFault::TokenCount { given: answer.len(), wanted });
        }
        self.slots.check(&mut self.remarks, refused_before, accepted_before)?;
        tokens.extend_from_slice(&answer);
        Ok(())
    }
}

/// Bytes of a request's prompt, stop tokens and structured output.
fn size_bytes(request: &TokenRequest<'_>) -> usize {
    size_of_val(request.prompt) + size_of_val(request.stop_tokens) + request.structured_output.len()
}
