//! Streaming inputs: resumable requests, whose prompts come in parts with outputs in between.

use vcr_core::SessionInput;
use vcr_wire::EngineCoreRequest;

use crate::error::LiveError;
use crate::intake::admit::stop_rules;
use crate::requests::{LiveRequest, Turn};
use crate::serving::{Refusal, Serving};
use crate::stepping::turns::begin_turn;

impl Serving {
    /// Takes the next part of a resumable request's prompt, or the end of its input.
    pub(super) fn continue_session(&mut self, request: Box<EngineCoreRequest>, now_ns: u64) -> Result<(), LiveError> {
        let Some(live) = self.requests.find(&request.request_id) else { return Ok(()) };
        let (tag, Some(core)) = (live.tag, live.core) else { return Ok(()) };
        let waits = self.requests.get_mut(tag).and_then(LiveRequest::turns).is_some_and(|turns| turns.waits);
        if !request.resumable {
            if waits {
                // vLLM ends the request without outputs, and the frontend knows.
                self.abort_tag(tag);
            } else if let Err(reason) = self.stepper.extend(core, None) {
                tracing::error!(rank = self.context.rank, request = request.request_id, "it has no end: {reason}");
            }
            return Ok(());
        }
        let params = request.sampling_params.unwrap_or_default();
        let part = request.prompt_token_ids.unwrap_or_default();
        let input = SessionInput {
            tokens: part.clone(),
            max_tokens: params.max_tokens.unwrap_or(u32::MAX),
            stops: stop_rules(&params),
            arrival_ns: (request.arrival_time.max(0.0) * 1e9) as u64,
        };
        if let Err(reason) = self.stepper.extend(core, Some(input)) {
            self.abort_tag(tag);
            return self.refuse(
                request.client_index,
                &request.request_id,
                &Refusal::invalid(reason.to_string()),
                now_ns,
            );
        }
        self.counters.prompt_tokens += part.len() as u64;
        let structured_output = self.tokens.structure_text(params.structured_outputs.as_ref());
        let turn = Turn { part, params, structured_output };
        let Some(live) = self.requests.get_mut(tag) else { return Ok(()) };
        if waits {
            if let Some(turns) = live.turns() {
                turns.waits = false;
            }
            begin_turn(live, &turn, &mut self.tokens);
        } else if let Some(turns) = live.turns() {
            turns.queued.push_back(turn);
        }
        Ok(())
    }
}
