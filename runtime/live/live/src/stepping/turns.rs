//! Consecutive answers of resumable requests.

use crate::requests::{LiveRequest, Turn};
use crate::tokens::{SourceRequest, Tokens, content_seed};

/// Makes the token source begin the answer to a part of a prompt.
pub(crate) fn begin_turn(request: &mut LiveRequest, turn: &Turn, tokens: &mut Tokens) {
    let Turn { part, params, structured_output } = turn;
    request.output_tokens = 0;
    request.eos_token = params.eos_token_id;
    let Some(extras) = &mut request.extras else { return };
    // An answer depends on all parts before it.
    extras.seed = content_seed(extras.seed, part, 0);
    tokens.end(request.tag);
    tokens.start(&SourceRequest {
        tag: request.tag,
        seed: extras.seed,
        prompt: part,
        max_tokens: params.max_tokens.unwrap_or(u32::MAX),
        min_tokens: params.min_tokens,
        eos_token: params.eos_token_id,
        stop_tokens: params.stop_token_ids.as_deref().unwrap_or_default(),
        allowed_tokens: params.allowed_token_ids.as_deref().unwrap_or_default(),
        structured_output,
        thinking_token_budget: params.thinking_token_budget.and_then(|budget| u32::try_from(budget).ok()),
        recorded: None,
    });
}

/// Handles the end of an answer whose request continues, with the part that has arrived or with the next one.
pub(crate) fn end_turn(request: &mut LiveRequest, tokens: &mut Tokens) {
    let Some(turns) = request.turns() else { return };
    let next = turns.queued.pop_front();
    turns.waits = next.is_none();
    if let Some(turn) = next {
        begin_turn(request, &turn, tokens);
    }
}
