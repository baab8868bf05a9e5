//! Requests with large bodies, which take long to read: parsed, rendered and turned
//! into tokens beside the threads that serve all others.

use std::future::{Future, poll_fn};
use std::pin::pin;

use axum::extract::Request;
use axum::http::header;
use axum::response::Response;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// Bodies from this length on are large: a millisecond or more of work.
const LARGE_BYTES: u64 = 128 * 1024;

/// Handles a request, and a large one so that its thread's other work goes on.
pub(super) async fn beside_others<F: Future<Output = Response>>(
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    // One that does not say its length, in chunks, may have any.
    let is_large =
        length.map_or(request.headers().contains_key(header::TRANSFER_ENCODING), |bytes: u64| bytes >= LARGE_BYTES);
    if !is_large || Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
        return next(request).await;
    }
    let mut answered = pin!(next(request));
    poll_fn(|context| block_in_place(|| answered.as_mut().poll(context))).await
}
