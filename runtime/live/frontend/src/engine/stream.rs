//! The outputs of one request.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use vcr_base::finish_reason::FinishReason;
use vcr_wire::{EngineCoreOutput, StepOutput};

use super::EngineError;
use super::collector::{Collector, Outputs};
use super::rank::Rank;

/// The outputs of a request. If it is dropped early, the request is aborted.
pub struct RequestStream {
    ranks: Arc<[Rank]>,
    place: usize,
    id: Arc<str>,
    collector: Arc<Collector>,
    /// Outputs taken from the collector but not returned.
    taken: Outputs,
    is_done: bool,
}

impl RequestStream {
    pub(super) fn new(ranks: Arc<[Rank]>, place: usize, id: Arc<str>, collector: Arc<Collector>) -> Self {
        Self { ranks, place, id, collector, taken: Outputs::default(), is_done: false }
    }

    /// Returns the next output, without a request id. None after the last output.
    pub async fn next(&mut self) -> Result<Option<EngineCoreOutput>, EngineError> {
        poll_fn(|context| self.poll(context).map_ok(|output| output.map(owned))).await
    }

    /// Like [`RequestStream::next`], for implementations of streams.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<StepOutput<'_>>, EngineError>> {
        if self.is_done {
            return Poll::Ready(Ok(None));
        }
        if self.taken.is_empty() {
            let taken = ready!(self.collector.poll(&mut self.taken, context));
            self.is_done = taken.is_err();
            taken?;
        }
        let output = self.taken.pop();
        if let Some(StepOutput::Whole(output)) = &output {
            self.is_done = output.finish_reason.is_some();
        }
        Poll::Ready(Ok(output))
    }

    /// Ends the request in the engine, because a stop string ended the text.
    pub fn stop(&mut self) {
        self.end(FinishReason::Stop);
    }

    /// The rank of the request's engine.
    #[must_use]
    pub fn rank(&self) -> u16 {
        self.ranks[self.place].number
    }

    fn end(&mut self, reason: FinishReason) {
        if !self.is_done {
            self.is_done = true;
            self.ranks[self.place].abort(&self.id, reason);
        }
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        self.end(FinishReason::Abort);
    }
}

/// Converts an output to an owned one without a request id.
fn owned(output: StepOutput<'_>) -> EngineCoreOutput {
    match output {
        StepOutput::Whole(output) => *output,
        StepOutput::Tokens(tokens) => {
            EngineCoreOutput { new_token_ids: tokens.to_vec(), ..EngineCoreOutput::default() }
        }
    }
}
