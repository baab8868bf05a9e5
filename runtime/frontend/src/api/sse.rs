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

    fn push_done(&mut self) {
        self.0.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }
}

struct State<S> {
    source: S,
    events: Events,
    is_over: bool,
}

/// The answer that streams all events, and `[DONE]` behind them. An error becomes
/// the last event before it.
pub(super) fn response(source: impl Source) -> Response {
    let state = State { source, events: Events::default(), is_over: false };
    let body = stream::unfold(state, |mut state| async move {
        while state.events.0.is_empty() && !state.is_over {
            match state.source.next(&mut state.events).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!("a stream failed: {}", error.message);
                    state.events.push(&error.body());
                }
            }
            state.is_over = true;
            state.events.push_done();
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
