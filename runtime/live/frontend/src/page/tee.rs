//! Bodies that are watched as they pass.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::watch::{CURRENT, End, Exchange, Watch};

type Polled = Poll<Option<Result<Frame<Bytes>, axum::Error>>>;

/// The body of a request.
pub(super) struct RequestTee {
    body: Body,
    exchange: Arc<Exchange>,
}

impl RequestTee {
    pub(super) fn new(body: Body, exchange: Arc<Exchange>) -> Self {
        Self { body, exchange }
    }
}

impl HttpBody for RequestTee {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(bytes) = frame.data_ref()
        {
            self.exchange.asked(bytes);
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

/// The body of an answer.
pub(super) struct AnswerTee {
    body: Body,
    exchange: Arc<Exchange>,
}

impl AnswerTee {
    pub(super) fn new(body: Body, exchange: Arc<Exchange>) -> Self {
        Self { body, exchange }
    }
}

impl Drop for AnswerTee {
    fn drop(&mut self) {
        // Nobody asks for the end of a body that is known to have ended.
        let is_whole = self.body.is_end_stream();
        self.exchange.ended(if is_whole { End::Whole } else { End::ClientGone });
    }
}

impl HttpBody for AnswerTee {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(None) => self.exchange.ended(End::Whole),
            Poll::Ready(Some(Err(error))) => self.exchange.ended(End::Failed(error.to_string())),
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(bytes) = frame.data_ref() {
                    self.exchange.chunk(bytes);
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

impl Watch {
    /// Serves a request by `next`, and keeps what passes.
    pub(crate) async fn around<F: Future<Output = Response>>(
        &self,
        peer: SocketAddr,
        request: Request,
        next: impl FnOnce(Request) -> F,
    ) -> Response {
        let exchange = self.begin(&request, peer);
        // The client may go before the answer begins, which drops this future.
        let unanswered = Unanswered(Some(Arc::clone(&exchange)));
        let request = match request.body().is_end_stream() {
            true => request,
            false => request.map(|body| Body::new(RequestTee::new(body, Arc::clone(&exchange)))),
        };
        let response = CURRENT.scope(Arc::clone(&exchange), next(request)).await;
        unanswered.answered();
        exchange.answered(&response);
        response.map(|body| Body::new(AnswerTee::new(body, exchange)))
    }
}

/// Ends an exchange whose client goes before there is an answer.
struct Unanswered(Option<Arc<Exchange>>);

impl Unanswered {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(exchange) = &self.0 {
            exchange.ended(End::ClientGone);
        }
    }
}
