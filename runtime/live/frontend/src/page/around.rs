//! Observes exchanges as they pass.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Body as _;

use super::watch::{CURRENT, Exchange, Watch};
use crate::tee::{Passed, Seen, Tee};

/// Observes a request body.
struct Asked(Arc<Exchange>);

impl Seen for Asked {
    fn part(&mut self, bytes: &[u8]) {
        self.0.asked(bytes);
    }

    fn ended(&mut self, _: Passed) {}
}

/// Observes a response body.
struct Answered(Arc<Exchange>);

impl Seen for Answered {
    fn part(&mut self, bytes: &[u8]) {
        self.0.chunk(bytes);
    }

    fn ended(&mut self, end: Passed) {
        self.0.ended(end);
    }
}

impl Watch {
    /// Lets `next` answer a request, and records the exchange.
    pub(crate) async fn around<F: Future<Output = Response>>(
        &self,
        peer: SocketAddr,
        request: Request,
        next: impl FnOnce(Request) -> F,
    ) -> Response {
        let exchange = self.begin(&request, peer);
        // If the client leaves before the response starts, this future is dropped.
        let unanswered = Unanswered(Some(Arc::clone(&exchange)));
        let request = match request.body().is_end_stream() {
            true => request,
            false => request.map(|body| Body::new(Tee::new(body, Asked(Arc::clone(&exchange))))),
        };
        let response = CURRENT.scope(Arc::clone(&exchange), next(request)).await;
        unanswered.answered();
        exchange.answered(&response);
        response.map(|body| Body::new(Tee::new(body, Answered(exchange))))
    }
}

/// Ends an exchange whose client leaves before the response.
struct Unanswered(Option<Arc<Exchange>>);

impl Unanswered {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(exchange) = &self.0 {
            exchange.ended(Passed::Left);
        }
    }
}
