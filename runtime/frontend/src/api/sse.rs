//! Streams of server-sent events.

use std::collections::VecDeque;
use std::future::Future;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use serde::Serialize;

use crate::server::error::ApiError;

/// Where the events of a stream come from.
pub(super) trait Source: Send + 'static {
    /// Appends the next events; returns whether more will follow.
    fn next(&mut self, out: &mut Events) -> impl Future<Output = Result<bool, ApiError>> + Send;

    /// Whether `[DONE]` is the last event.
    const HAS_DONE: bool = true;

    /// Appends the event of an error, after which nothing follows.
    fn fail(&self, error: &ApiError, out: &mut Events) {
        out.push(&error.body());
    }
}

/// Events that are ready.
#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<Bytes>);

impl Events {
    /// Adds an event.
    pub(super) fn push(&mut self, event: &impl Serialize) {
        let mut text = b"data: ".to_vec();
        // What cannot be written as JSON has no place in an event.
        if serde_json::to_writer(&mut text, event).is_ok() {
            text.extend_from_slice(b"\n\n");
            self.0.push_back(text.into());
        }
    }

    /// Adds an event that has a name.
    pub(super) fn push_named(&mut self, name: &str, event: &impl Serialize) {
        let mut text = format!("event: {name}\ndata: ").into_bytes();
        if serde_json::to_writer(&mut text, event).is_ok() {
            text.extend_from_slice(b"\n\n");
            self.0.push_back(text.into());
        }
    }

    /// Takes the next event out, as JSON.
    pub(super) fn pop_json(&mut self) -> Option<serde_json::Value> {
        let event = self.0.pop_front()?;
        serde_json::from_slice(event.strip_prefix(b"data: ").unwrap_or(&event)).ok()
    }

    fn push_done(&mut self) {
        self.0.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }
}

struct State<S> {
    source: S,
    events: Events,
    is_over: bool,
}

/// The answer that streams all events, and `[DONE]` behind them where the API has it.
/// An error becomes the last event before it.
pub(super) fn response<S: Source>(source: S) -> Response {
    let state = State { source, events: Events::default(), is_over: false };
    let body = stream::unfold(state, |mut state| async move {
        while state.events.0.is_empty() && !state.is_over {
            match state.source.next(&mut state.events).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!("a stream failed: {}", error.message);
                    state.source.fail(&error, &mut state.events);
                }
            }
            state.is_over = true;
            if S::HAS_DONE {
                state.events.push_done();
            }
        }
        let event = state.events.0.pop_front()?;
        Some((Ok::<_, std::convert::Infallible>(event), state))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
