//! A token source of the engine core that asks a guest.

use vcr_core::tokens::{BatchTokenSource, TokenError, TokenRequest, TokenWant};

use crate::error::CallFault;
use crate::latest::{TokenCall, TokenInstance};
use crate::limits::Limits;
use crate::running::Running;

/// The word of a request that no token ends.
const NO_TOKEN: u64 = u64::MAX;

/// One source in one instance of a guest.
pub(crate) struct GuestTokens {
    limits: Limits,
    running: Running<dyn TokenInstance>,
    /// The flat lists of a call, kept so that most steps allocate nothing here.
    call: TokenCall,
}

impl GuestTokens {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn TokenInstance>) -> Self {
        Self { limits, running: Running::new(name, instance), call: TokenCall::default() }
    }
}

impl BatchTokenSource for GuestTokens {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
        tokens: &mut Vec<u32>,
    ) -> Result<(), TokenError> {
        let given_before = tokens.len();
        let Self { limits, running, call } = self;
        let result = running.call("step", |instance| step(instance, limits, call, started, ended, wants, tokens));
        result.map_err(|failure| {
            tokens.truncate(given_before);
            TokenError { source: failure.guest, reason: failure.reason }
        })
    }
}

/// Makes the calls of one step: one, unless the requests that start are too
/// long for that.
fn step(
    instance: &mut dyn TokenInstance,
    limits: &Limits,
    call: &mut TokenCall,
    started: &[TokenRequest<'_>],
    ended: &[u32],
    wants: &[TokenWant],
    tokens: &mut Vec<u32>,
) -> Result<(), CallFault> {
    call.clear();
    call.ended.extend_from_slice(ended);
    let mut room_bytes = limits.request_bytes_per_call;
    for request in started {
        let bytes = size_bytes(request);
        // A request that is too long by itself is still sent in one piece.
        if bytes > room_bytes && !call.started.is_empty() {
            send(instance, limits, call, &[], tokens)?;
            call.clear();
            room_bytes = limits.request_bytes_per_call;
        }
        room_bytes = room_bytes.saturating_sub(bytes);
        call.start(request);
    }
    if call.is_empty() && wants.is_empty() {
        return Ok(());
    }
    send(instance, limits, call, wants, tokens)
}

/// Makes one call and checks that it answers what is wanted.
fn send(
    instance: &mut dyn TokenInstance,
    limits: &Limits,
    call: &mut TokenCall,
    wants: &[TokenWant],
    tokens: &mut Vec<u32>,
) -> Result<(), CallFault> {
    let mut wanted = 0;
    for want in wants {
        call.wants.extend([want.slot, want.first_index, want.count]);
        wanted += want.count as usize;
    }
    let requests = call.started.len() / TokenCall::REQUEST_WORDS + call.ended.len();
    let answer = instance.step(call, limits.budget(requests + wanted, wanted * size_of::<u32>()))?;
    if answer.len() != wanted {
        return Err(CallFault::TokenCount { given: answer.len(), wanted });
    }
    tokens.extend_from_slice(&answer);
    Ok(())
}

/// What a request adds to the lists of a call, but for its fixed words.
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

    /// Whether there is nothing to tell.
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
