//! A token source of the engine core that asks a guest.

use vcr_core::tokens::{BatchTokenSource, TokenAnswer, TokenError, TokenRefusal, TokenRequest, TokenWant};

use crate::adapters::running::Running;
use crate::error::CallFault;
use crate::latest::{TokenCall, TokenInstance};
use crate::limits::Limits;
use crate::remarks::{RefusedRequest, Remarks, RunningSlots};

/// The word of a request that no token ends.
const NO_TOKEN: u64 = u64::MAX;

/// One source in one instance of a guest.
pub(crate) struct GuestTokens {
    running: Running<dyn TokenInstance>,
    calls: Calls,
}

/// The host's side of an instance's calls.
struct Calls {
    limits: Limits,
    /// The flat lists of a call, kept so that most steps allocate nothing here.
    call: TokenCall,
    slots: RunningSlots,
    remarks: Remarks,
}

impl GuestTokens {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn TokenInstance>) -> Self {
        let (call, slots, remarks) = (TokenCall::default(), RunningSlots::default(), Remarks::default());
        Self { running: Running::new(name, instance), calls: Calls { limits, call, slots, remarks } }
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
    /// Makes the calls of one step: one, unless the requests that start are too
    /// long for that.
    fn step(
        &mut self,
        instance: &mut dyn TokenInstance,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
        tokens: &mut Vec<u32>,
    ) -> Result<(), CallFault> {
        self.call.clear();
        self.call.ended.extend_from_slice(ended);
        ended.iter().for_each(|slot| self.slots.end(*slot));
        let mut room_bytes = self.limits.request_bytes_per_call;
        for request in started {
            let bytes = size_bytes(request);
            // A request that is too long by itself is still sent in one piece.
            if bytes > room_bytes && !self.call.started.is_empty() {
                self.send(instance, &[], tokens)?;
                self.call.clear();
                room_bytes = self.limits.request_bytes_per_call;
            }
            room_bytes = room_bytes.saturating_sub(bytes);
            self.call.start(request);
            self.slots.start(request.slot);
        }
        if self.call.is_empty() && wants.is_empty() {
            return Ok(());
        }
        self.send(instance, wants, tokens)
    }

    /// Makes one call and checks that it answers what is wanted.
    fn send(
        &mut self,
        instance: &mut dyn TokenInstance,
        wants: &[TokenWant],
        tokens: &mut Vec<u32>,
    ) -> Result<(), CallFault> {
        let mut wanted = 0;
        for want in wants {
            self.call.wants.extend([want.slot, want.first_index, want.count]);
            wanted += want.count as usize;
        }
        let requests = self.call.started.len() / TokenCall::REQUEST_WORDS + self.call.ended.len();
        let budget = self.limits.budget(requests + wanted, wanted * size_of::<u32>());
        let (refused_before, accepted_before) = (self.remarks.refused.len(), self.remarks.accepted.len());
        let answer = instance.step(&self.call, &mut self.remarks, budget)?;
        if answer.len() != wanted {
            return Err(CallFault::TokenCount { given: answer.len(), wanted });
        }
        self.slots.check(&mut self.remarks, refused_before, accepted_before)?;
        tokens.extend_from_slice(&answer);
        Ok(())
    }
}

/// The words that a request adds to the lists of a call, besides its fixed ones.
fn size_bytes(request: &TokenRequest<'_>) -> usize {
    size_of_val(request.prompt) + size_of_val(request.stop_tokens) + request.structured_output.len()
}

impl TokenCall {
    /// Words of a request in `started`.
    pub(crate) const REQUEST_WORDS: usize = 8;

    pub(crate) fn clear(&mut self) {
        self.started.clear();
        self.request_tokens.clear();
        self.structured_outputs.clear();
        self.ended.clear();
        self.wants.clear();
    }

    /// Whether there is nothing to pass on.
    fn is_empty(&self) -> bool {
        self.started.is_empty() && self.ended.is_empty()
    }

    pub(crate) fn start(&mut self, request: &TokenRequest<'_>) {
        let words: [u64; Self::REQUEST_WORDS] = [
            u64::from(request.slot),
            request.seed,
            request.prompt.len() as u64,
            u64::from(request.max_tokens),
            u64::from(request.min_tokens),
            request.eos_token.map_or(NO_TOKEN, u64::from),
            request.stop_tokens.len() as u64,
            request.structured_output.len() as u64,
        ];
        self.started.extend(words);
        self.request_tokens.extend_from_slice(request.prompt);
        self.request_tokens.extend_from_slice(request.stop_tokens);
        if !request.structured_output.is_empty() {
            self.structured_outputs.push(request.structured_output.to_owned());
        }
    }
}
