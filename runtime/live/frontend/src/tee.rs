//! Observes bodies as they pass.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Observes a body.
pub(crate) trait Seen: Unpin {
    /// Called with each part.
    fn part(&mut self, bytes: &[u8]);

    /// Called at the end. Only the first call counts.
    fn ended(&mut self, end: Passed);
}

/// The outcome of forwarding a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    Whole,
    /// The reader stopped before the end.
    Left,
    /// The error with its causes.
    Failed(String),
}

pub(crate) struct Tee<B: Body + Unpin, S: Seen> {
    body: B,
    seen: S,
}

impl<B: Body + Unpin, S: Seen> Tee<B, S> {
    pub(crate) fn new(body: B, seen: S) -> Self {
        Self { body, seen }
    }
}

impl<B: Body + Unpin, S: Seen> Drop for Tee<B, S> {
    fn drop(&mut self) {
        // A reader that knows that the body has ended does not poll it again.
        self.seen.ended(if self.body.is_end_stream() { Passed::Whole } else { Passed::Left });
    }
}

impl<B: Body<Data = Bytes, Error: Error> + Unpin, S: Seen> Body for Tee<B, S> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(None) => self.seen.ended(Passed::Whole),
            Poll::Ready(Some(Err(error))) => self.seen.ended(Passed::Failed(with_causes(error))),
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(bytes) = frame.data_ref() {
                    self.seen.part(bytes);
                }
            }
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Formats an error and its causes.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
