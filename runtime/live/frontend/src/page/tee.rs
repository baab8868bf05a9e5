//! Bodies that are watched as they pass.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::watch::{End, Exchange};

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
