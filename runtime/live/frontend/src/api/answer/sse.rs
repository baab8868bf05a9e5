//! Streams of server-sent events.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::future::poll_immediate;
use futures_util::stream;
use serde::Serialize;

use crate::server::error::ApiError;

/// The maximum number of bytes sent at once. Larger batches save no time.
const BATCH_BYTES: usize = 16 * 1024;
/// The buffer of a stream is reused up to this size.
const KEPT_BYTES: usize = 1024;

/// Produces the events of a stream.
pub(in crate::api) trait Source: Send + 'static {
    /// Appends the next events. Returns whether more will follow. Must be cancel-safe: it may be dropped while it
    /// waits and is then called again.
    fn next(&mut self, out: &mut Events) -> impl Future<Output = Result<bool, ApiError>> + Send;

    /// Whether the stream ends with `[DONE]`.
    const HAS_DONE: bool = true;

    /// Appends the final event of a failed stream.
    fn fail(&self, error: &ApiError, out: &mut Events) {
        out.push(&error.body());
    }
}

/// Encoded events that wait to be sent.
#[derive(Debug, Default)]
pub(in crate::api) struct Events(Vec<u8>);

impl Events {
    pub(in crate::api) fn push(&mut self, event: &impl Serialize) {
        self.push_behind(b"data: ", event);
    }

    /// Adds a named event.
    pub(in crate::api) fn push_named(&mut self, name: &str, event: &impl Serialize) {
        self.push_behind(format!("event: {name}\ndata: ").as_bytes(), event);
    }

    /// Adds an event after `start`. Skips values that cannot be written as JSON.
    fn push_behind(&mut self, start: &[u8], event: &impl Serialize) {
        let before = self.0.len();
        self.0.extend_from_slice(start);
        if serde_json::to_writer(&mut self.0, event).is_ok() {
            self.0.extend_from_slice(b"\n\n");
        } else {
            self.0.truncate(before);
        }
    }

    /// Removes and returns all events. Returns none if there are none.
    fn take(&mut self) -> Option<Bytes> {
        if self.0.is_empty() {
            return None;
        }
        if self.0.capacity() > KEPT_BYTES {
            return Some(std::mem::take(&mut self.0).into());
        }
        let bytes = Bytes::copy_from_slice(&self.0);
        self.0.clear();
        Some(bytes)
    }

    fn push_done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

struct State<S> {
    source: S,
    events: Events,
    is_over: bool,
}

impl<S: Source> State<S> {
    /// Waits for the next event and takes all events that are ready, so that many tokens of a fast engine become
    /// one packet.
    async fn fill(&mut self) {
        while !self.is_over && self.events.0.len() < BATCH_BYTES {
            let is_first = self.events.0.is_empty();
            let next = self.source.next(&mut self.events);
            let next = if is_first { Some(next.await) } else { poll_immediate(next).await };
            match next {
                None => return,
                Some(Ok(true)) => continue,
                Some(Ok(false)) => {}
                Some(Err(error)) => {
                    tracing::warn!("a stream failed: {}", error.message);
                    self.source.fail(&error, &mut self.events);
                }
            }
            self.is_over = true;
            if S::HAS_DONE {
                self.events.push_done();
            }
        }
    }

    /// Returns the next part of the body, or none at its end.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        // Sources are cancel-safe, so the future need not be kept between calls.
        ready!(pin!(self.fill()).poll(context));
        Poll::Ready(self.events.take().map(Ok))
    }
}

/// A response that streams all events, then `[DONE]` if the API has it. An error is sent as an event before
/// `[DONE]`.
pub(in crate::api) fn response<S: Source>(source: S) -> Response {
    let mut state = State { source, events: Events::default(), is_over: false };
    let mut response = Response::new(Body::from_stream(stream::poll_fn(move |context| state.poll(context))));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
