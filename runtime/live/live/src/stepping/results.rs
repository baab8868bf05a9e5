//! Consequences of new outputs, which are handled when all outputs are gathered.

use vcr_core::RequestId;
use vcr_wire::FinishReason;

use crate::faults::active::EngineFault;
use crate::requests::LiveRequest;

#[derive(Default)]
pub(crate) struct StepResults {
    /// Requests that ended in the engine, or in playback.
    pub(crate) ended: Vec<(u64, FinishReason)>,
    /// Requests that a fault ended and that the engine would continue.
    pub(crate) failed: Vec<(u64, FinishReason)>,
    /// Requests that end with a separate message after the step's message.
    pub(crate) ended_apart: Vec<(u64, FinishReason)>,
    /// Requests whose KV is held but cannot be announced to a decode engine.
    pub(crate) unheld: Vec<RequestId>,
    pub(crate) faults: Vec<EngineFault>,
}

impl StepResults {
    pub(crate) fn has_ends(&self) -> bool {
        !self.ended.is_empty() || !self.failed.is_empty() || !self.ended_apart.is_empty()
    }

    /// The finish reason of a request's new output: the engine's, the recorded one, or a fault's. `None` if the
    /// request continues.
    pub(crate) fn finish_of(
        &mut self,
        request: &mut LiveRequest,
        finish: Option<FinishReason>,
        goes_on: bool,
    ) -> Option<FinishReason> {
        let (tag, output_tokens) = (request.tag, request.output_tokens);
        if let Some(extras) = &mut request.extras
            && let Some((_, fault)) = extras.engine_fault.take_if(|(after, _)| *after <= output_tokens)
        {
            self.faults.push(fault);
        }
        let extras = request.extras.as_ref();
        if goes_on {
            return finish;
        }
        if let Some(finish) = finish {
            let recorded = extras.and_then(|extras| extras.recorded_end.as_ref());
            let finish = match recorded.filter(|end| end.after_tokens == output_tokens) {
                Some(end) if !end.comes_with_tokens() => {
                    self.ended_apart.push((tag, end.reason));
                    return None;
                }
                Some(end) => end.reason,
                None => finish,
            };
            self.ended.push((tag, finish));
            return Some(finish);
        }
        let failure = extras.and_then(|extras| extras.failure)?;
        if output_tokens < failure.after_tokens {
            return None;
        }
        self.failed.push((tag, failure.finish));
        Some(failure.finish)
    }
}
