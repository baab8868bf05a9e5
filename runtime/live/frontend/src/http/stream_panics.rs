//! Handles panics in streams after the response's head has been sent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::Response;
use futures_util::stream::{self, Stream as _};
use serde_json::Value;

/// Wraps a response. If it streams events and the stream panics, the last event is the one from `failed`. Otherwise
/// the client would only see a lost connection.
pub(super) fn guarded<E: FnOnce() -> Value + Send + 'static>(
    response: Response,
    failed: impl FnOnce() -> E,
) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        return response;
    }
    let failed = failed();
    response.map(|body| {
        let mut open = Some((body.into_data_stream(), failed));
        Body::from_stream(stream::poll_fn(move |context| {
            let Some((data, failed)) = open.take() else { return Poll::Ready(None) };
            let mut data = data;
            // After a panic, the stream is not polled again.
            match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut data).poll_next(context))) {
                Ok(next) => {
                    open = Some((data, failed));
                    next
                }
                Err(_) => {
                    let events = format!("data: {}\n\ndata: [DONE]\n\n", failed());
                    Poll::Ready(Some(Ok(Bytes::from(events))))
                }
            }
        }))
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::body::to_bytes;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_panic_within_a_stream_becomes_its_last_event() {
        let mut left = 2;
        let events = stream::poll_fn(move |_| {
            left -= 1;
            assert!(left > 0, "on purpose");
            Poll::Ready(Some(Ok::<_, Infallible>("data: 1\n\n")))
        });
        let mut response = Response::new(Body::from_stream(events));
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let failed = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            json!({"error": 500})
        };
        let body = guarded(response, || failed).into_body();
        let body = to_bytes(body, usize::MAX).await.expect("it ends in order");
        assert_eq!(body, "data: 1\n\ndata: {\"error\":500}\n\ndata: [DONE]\n\n");
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
