//! The outputs of one request.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use vcr_finish_reason::FinishReason;
use vcr_wire::EngineCoreOutput;

use super::EngineError;
use super::collector::Collector;
use super::rank::Rank;

/// The outputs of a request. Dropped before its end, it aborts the request in the
/// engine.
pub struct RequestStream {
    pub(super) rank: Arc<Rank>,
    pub(super) id: Box<str>,
    pub(super) collector: Arc<Collector>,
    pub(super) is_done: bool,
}

impl RequestStream {
    /// The next output; none after the one with a finish reason.
    ///
    /// # Errors
    /// When the engine is lost.
    pub async fn next(&mut self) -> Result<Option<EngineCoreOutput>, EngineError> {
        poll_fn(|context| self.poll(context)).await
    }

    /// As [`RequestStream::next`], for use in streams.
    ///
    /// # Errors
    /// When the engine is lost.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<EngineCoreOutput>, EngineError>> {
        if self.is_done {
            return Poll::Ready(Ok(None));
        }
        self.collector.poll(context).map(|output| {
            self.is_done = output.as_ref().map_or(true, |output| output.finish_reason.is_some());
            output.map(Some)
        })
    }

    /// Ends it in the engine: the server has all it needs, by a stop string.
    pub fn stop(&mut self) {
        self.end(FinishReason::Stop);
    }

    /// The number of its engine.
    #[must_use]
    pub fn rank(&self) -> u16 {
        self.rank.number
    }

    fn end(&mut self, reason: FinishReason) {
        if !self.is_done {
            self.is_done = true;
            self.rank.abort(&self.id, reason);
        }
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        self.end(FinishReason::Abort);
    }
}
