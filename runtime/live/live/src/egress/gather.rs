//! Gathers the outputs of a step, encoded or not.

use vcr_wire::{EngineCoreOutput, FinishReason, StepEncoder, StepKeeper, StopReason};

/// The outputs of a step for one API server.
pub(crate) enum Gather<'a> {
    /// Encoded to bytes.
    Encode(&'a mut StepEncoder),
    /// Not encoded, for a frontend in this process, which has no coordinator.
    Keep(&'a mut StepKeeper),
}

impl Gather<'_> {
    /// Adds new tokens of a request, and its finish reason if it has ended.
    #[inline]
    pub(crate) fn tokens(
        &mut self,
        request_id: &str,
        tokens: &[u32],
        finish: Option<(FinishReason, Option<StopReason>)>,
    ) {
        match (self, finish) {
            (Self::Encode(encoder), finish) => {
                let finish = finish.as_ref().map(|(reason, stop)| (*reason, stop.as_ref()));
                encoder.tokens(request_id, tokens, finish);
            }
            (Self::Keep(keeper), None) => keeper.tokens(request_id, tokens),
            (Self::Keep(keeper), Some((reason, stop_reason))) => keeper.output(EngineCoreOutput {
                request_id: request_id.to_owned(),
                new_token_ids: tokens.to_vec(),
                finish_reason: Some(reason),
                stop_reason,
                ..EngineCoreOutput::default()
            }),
        }
    }

    /// Adds an output that has more than tokens.
    pub(crate) fn output(&mut self, output: EngineCoreOutput) {
        match self {
            Self::Encode(encoder) => encoder.output(&output),
            Self::Keep(keeper) => keeper.output(output),
        }
    }

    /// Adds the ID of an ended request, which is listed apart from its output for a coordinator.
    pub(crate) fn finished(&mut self, request_id: &str) {
        if let Self::Encode(encoder) = self {
            encoder.finished(request_id);
        }
    }
}
