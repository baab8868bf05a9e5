//! The layer before the routes that injects faults.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::RequestExt;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures_util::StreamExt;
use tokio::time::{sleep, timeout};

use super::body::faulty_body;
use super::caller::NamedInBody;
use super::error_body::{error_response, with_own_body};
use super::injector::ClientFaults;
use super::kind::FaultKind;
use super::short::shortened;
use crate::engine::{current_connection, with_connection};
use crate::http::{ConnectionControl, Innermost, Next};
use crate::metrics::Metrics;
use crate::page::current;

/// A header of llm-d-inference-sim that requests an error.
const RETURN_ERROR: &str = "x-return-error";

/// The longest time to read a request body that is not needed.
const MAX_TAKING_IN: Duration = Duration::from_secs(5);

/// The state of the layer.
#[derive(Clone, Debug)]
pub struct FaultLayer {
    /// The rules.
    pub faults: Arc<ClientFaults>,
    /// Counts the faults.
    pub metrics: Metrics,
    /// The maximum body size that is read for rules.
    pub max_body_bytes: usize,
}

impl FaultLayer {
    /// Applies the fault of a matching rule to a request from `connection`, or passes the request on. Headers of
    /// the request select no fault here: they are meant for the upstream server.
    pub async fn around<F: Future<Output = Response>>(
        &self,
        connection: ConnectionControl,
        request: Request,
        next: impl FnOnce(Request) -> F,
    ) -> Response {
        if self.faults.is_empty() {
            return next(request).await;
        }
        with_connection(connection, Box::pin(judged(self, request, next))).await
    }
}

impl Innermost for FaultLayer {
    fn run(&self, request: Request, next: Next<'_>) -> impl Future<Output = Response> + Send {
        inject(self, request, |request| next.run(request))
    }
}

/// Applies the fault that a header or a rule selects.
pub(super) async fn inject<F: Future<Output = Response>>(
    layer: &FaultLayer,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    if let Some(response) = returned_error(request.uri().path(), request.headers()) {
        layer.metrics.fault("return-error");
        Box::pin(take_in(request)).await;
        return response;
    }
    if layer.faults.is_empty() {
        return next(request).await;
    }
    // Box the future, so that requests to a server without faults need no space for it.
    Box::pin(judged(layer, request, next)).await
}

/// Applies the fault of the rule that hits, if there is one.
async fn judged<F: Future<Output = Response>>(
    layer: &FaultLayer,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let (request, named) = match with_body(layer, request).await {
        Ok(read) => read,
        Err(response) => return response,
    };
    let (parts, body) = request.into_parts();
    let kind = layer.faults.of_call(&parts, &named);
    let request = Request::from_parts(parts, body);
    match kind {
        None => next(request).await,
        Some(kind) => faulty(layer, kind, request, next).await,
    }
}

async fn faulty<F: Future<Output = Response>>(
    layer: &FaultLayer,
    kind: FaultKind,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let connection = current_connection();
    let path = request.uri().path().to_owned();
    let (kind, request) = match kind {
        FaultKind::Short { after_tokens } => match shortened(request, after_tokens, layer.max_body_bytes).await {
            Ok(request) => (kind, request),
            // The request cannot be shortened: its own token limit is not higher, or it generates nothing.
            Err(request) => return next(*request).await,
        },
        kind => (kind, request),
    };
    layer.metrics.fault(kind.name());
    if let Some(exchange) = current() {
        exchange.met(kind.name());
    }
    tracing::info!(fault = kind.name(), path, "client fault");
    match &kind {
        FaultKind::Status { code, retry_after_s, message, param, body } => {
            let response = error_response(&path, *code, message.as_deref(), *param, *retry_after_s);
            take_in(request).await;
            return match body {
                None => response,
                Some(body) => with_own_body(response, body),
            };
        }
        FaultKind::Reset { after_tokens: None } => {
            let body = faulty_body(Body::from("reset"), kind, false, connection.clone());
            // Reset before the response's head is written.
            if let Some(connection) = connection {
                connection.reset();
                std::future::pending::<()>().await;
            }
            return Response::new(body);
        }
        FaultKind::Stall { for_ns, after_tokens: None } => {
            match for_ns {
                Some(ns) => sleep(Duration::from_nanos(*ns)).await,
                None => std::future::pending().await,
            }
            return next(request).await;
        }
        _ => {}
    }
    transformed(next(request).await, kind, connection)
}

/// Reads and discards a request body. Otherwise the server would close a connection with unread bytes, and a client
/// that sends head and body separately could lose the response.
async fn take_in(request: Request) {
    let mut data = request.with_limited_body().into_body().into_data_stream();
    let read = async { while let Some(Ok(_)) = data.next().await {} };
    // If the client is slower, it may lose the response.
    let _ = timeout(MAX_TAKING_IN, read).await;
}

/// Applies a fault to the head or body of a response.
fn transformed(response: Response, kind: FaultKind, connection: Option<ConnectionControl>) -> Response {
    if !response.status().is_success() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    if let FaultKind::ContentType { value } = &kind {
        parts.headers.insert(header::CONTENT_TYPE, value.clone());
        return Response::from_parts(parts, body);
    }
    let is_stream =
        parts.headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, faulty_body(body, kind, is_stream, connection))
}

/// Reads the fields that rules match, if a rule needs the body.
async fn with_body(layer: &FaultLayer, request: Request) -> Result<(Request, NamedInBody), Response> {
    if !layer.faults.needs_body() {
        return Ok((request, NamedInBody::default()));
    }
    let (parts, body) = request.into_parts();
    match to_bytes(body, layer.max_body_bytes).await {
        Ok(bytes) => {
            let named = serde_json::from_slice(&bytes).unwrap_or_default();
            Ok((Request::from_parts(parts, Body::from(bytes)), named))
        }
        Err(_) => {
            let message = "Failed to buffer the request body: length limit exceeded";
            Err(error_response(parts.uri.path(), 400, Some(message), None, None))
        }
    }
}

/// The error that the header requests, if any.
fn returned_error(path: &str, headers: &HeaderMap) -> Option<Response> {
    let text = headers.get(RETURN_ERROR)?.to_str().unwrap_or("");
    if path.starts_with("/v1/embeddings") {
        return None;
    }
    let code = text.trim().parse::<u16>().ok().filter(|code| StatusCode::from_u16(*code).is_ok());
    Some(match code {
        Some(code) if code >= 200 => error_response(path, code, None, None, None),
        _ => {
            let message = format!("invalid header X-Return-Error `{text}`: expected an HTTP status");
            error_response(path, 400, Some(&message), None, None)
        }
    })
}
