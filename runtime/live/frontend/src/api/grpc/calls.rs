//! Handles gRPC calls on HTTP routes. tonic does framing and status codes.

use std::future::Future;
use std::pin::Pin;

use axum::RequestExt as _;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::Stream;
use prost::Message;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::server::error::ApiError;

type Pending<T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send>>;
pub(super) type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;
pub(super) type Answers<A> = Pin<Box<dyn Stream<Item = Result<A, Status>> + Send>>;

struct Handler<F>(F);

impl<F, T, Q, A> UnaryService<Q> for Handler<F>
where
    F: FnMut(Q) -> T,
    T: Future<Output = Result<A, ApiError>> + Send + 'static,
{
    type Response = A;
    type Future = Pending<A>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(tonic::Response::new).map_err(|error| status(&error)) })
    }
}

impl<F, T, Q, A> ServerStreamingService<Q> for Handler<F>
where
    F: FnMut(Q) -> T,
    T: Future<Output = Result<Answers<A>, ApiError>> + Send + 'static,
{
    type Response = A;
    type ResponseStream = Answers<A>;
    type Future = Pending<Answers<A>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(tonic::Response::new).map_err(|error| status(&error)) })
    }
}

/// The outer layers already enforce the server's body limit.
fn server<A, Q>() -> Grpc<ProstCodec<A, Q>>
where
    A: Message + Default + 'static,
    Q: Message + Default + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
}

/// Answers a call with one message.
pub(super) fn unary<Q, A, F, T>(request: Request, handle: F) -> Answering
where
    F: FnMut(Q) -> T + Send + 'static,
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    T: Future<Output = Result<A, ApiError>> + Send + 'static,
{
    Box::pin(async move { server::<A, Q>().unary(Handler(handle), request.with_limited_body()).await.map(Body::new) })
}

/// Answers a call with a stream of messages.
pub(super) fn streaming<Q, A, F, T>(request: Request, handle: F) -> Answering
where
    F: FnMut(Q) -> T + Send + 'static,
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    T: Future<Output = Result<Answers<A>, ApiError>> + Send + 'static,
{
    Box::pin(async move {
        server::<A, Q>().server_streaming(Handler(handle), request.with_limited_body()).await.map(Body::new)
    })
}

pub(super) fn status(error: &ApiError) -> Status {
    let code = match error.status {
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        _ => Code::Internal,
    };
    Status::new(code, error.message.clone())
}
