//! Layers for every request: API keys, CORS, request ids, the access log, and handling of panics.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::stream_panics::guarded;
use crate::metrics::Metrics;
use crate::page::Page;
use crate::server::error::Failure;
use crate::server::ids::{LongId, RequestIds};
use crate::server::responses::KeyOwner;

/// Paths that need no key, for probes, scrapers and routers. vLLM protects only `/v1`, `/v2` and `/inference`; in
/// its development mode, anyone can pause its engines.
const OPEN: &[&str] = &[
    "/health",
    "/health/ready",
    "/health_generate",
    "/ready",
    "/ping",
    "/version",
    "/metrics",
    "/load",
    "/is_sleeping",
    "/is_paused",
    "/get_world_size",
    "/kv_event_sources",
    "/query",
    "/weight_info",
];
/// Paths whose handlers need to know the API key's owner.
const OWNED: &str = "/v1/responses";
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Time for which browsers may cache the response to a preflight request.
const PREFLIGHT_MAX_AGE_S: &str = "600";
const ALL_METHODS: &str = "DELETE,GET,HEAD,OPTIONS,PATCH,POST,PUT";

/// The valid API keys. If there are none, no key is required.
#[derive(Clone)]
pub struct ApiKeys {
    keys: Arc<[String]>,
    metrics: Metrics,
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "ApiKeys({})", self.keys.len())
    }
}

impl ApiKeys {
    /// Takes non-empty keys.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = String>, metrics: &Metrics) -> Self {
        Self { keys: keys.into_iter().collect(), metrics: metrics.clone() }
    }

    /// Compares the given key with all keys in constant time.
    fn open(&self, given: &[u8]) -> Option<KeyOwner> {
        let (mut place, mut any) = (0, Choice::from(0));
        for (number, key) in (0_u32..).zip(self.keys.iter()) {
            let is_equal = key.as_bytes().ct_eq(given);
            place.conditional_assign(&number, is_equal);
            any |= is_equal;
        }
        bool::from(any).then_some(KeyOwner(Some(place)))
    }
}

pub(super) async fn require_key<F: Future<Output = Response>>(
    keys: &ApiKeys,
    mut request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    if keys.keys.is_empty() || is_open(&request) {
        return next(request).await;
    }
    if let Some(owner) = given_key(&request).and_then(|key| keys.open(key)) {
        if request.uri().path().starts_with(OWNED) {
            request.extensions_mut().insert(owner);
        }
        return next(request).await;
    }
    keys.metrics.unauthorized();
    (StatusCode::UNAUTHORIZED, axum::Json(json!({"error": "Unauthorized"}))).into_response()
}

/// Whether a request needs no key. Browsers send no key with a preflight request, and SageMaker's probes may be
/// `POST /ping`.
fn is_open(request: &Request) -> bool {
    let (method, path) = (request.method(), request.uri().path());
    let reads = method == Method::GET || method == Method::HEAD || path == "/ping";
    method == Method::OPTIONS || (reads && OPEN.contains(&path)) || Page::is_shell(method, path)
}

/// The key in `Authorization: Bearer KEY` or, for Anthropic's clients, `X-Api-Key: KEY`.
fn given_key(request: &Request) -> Option<&[u8]> {
    let headers = request.headers();
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let bytes = value.as_bytes();
        let space = bytes.iter().position(|byte| *byte == b' ')?;
        bytes[..space].eq_ignore_ascii_case(b"bearer").then(|| bytes[space + 1..].trim_ascii())
    });
    bearer.or_else(|| {
        let is_messages = request.uri().path().starts_with("/v1/messages");
        headers.get(API_KEY).filter(|_| is_messages).map(HeaderValue::as_bytes)
    })
}

/// The rights of pages of other origins.
#[derive(Clone, Debug, Default)]
pub struct Cors {
    /// Allowed origins. `*` allows any origin; an empty list turns CORS off.
    pub origins: Vec<String>,
    /// Allowed methods. `*` allows any method.
    pub methods: Vec<String>,
    /// Allowed request headers. `*` allows any header.
    pub headers: Vec<String>,
    /// Whether cookies and authorization are allowed.
    pub credentials: bool,
}

impl Cors {
    fn origin(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        let is_any = self.origins.iter().any(|allowed| allowed == "*");
        let is_listed = self.origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes());
        match (is_any, is_listed) {
            (true, _) if !self.credentials => Some(HeaderValue::from_static("*")),
            (true, _) | (_, true) => Some(origin.clone()),
            _ => None,
        }
    }

    fn mark(&self, origin: &HeaderValue, headers: &mut HeaderMap) {
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = self.origin(origin) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            if self.credentials {
                headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
            }
        }
    }

    /// The response to a preflight request.
    fn preflight(&self, origin: &HeaderValue, asked: Option<&HeaderValue>) -> Response {
        let mut response = StatusCode::OK.into_response();
        let headers = response.headers_mut();
        let is_any = |list: &[String]| list.iter().any(|item| item == "*");
        let methods = if is_any(&self.methods) { ALL_METHODS.to_owned() } else { self.methods.join(",") };
        if let Ok(methods) = HeaderValue::from_str(&methods) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        }
        let allowed = if is_any(&self.headers) {
            asked.cloned()
        } else {
            HeaderValue::from_str(&self.headers.join(",")).ok().filter(|list| !list.is_empty())
        };
        if let Some(allowed) = allowed {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
        }
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_MAX_AGE_S));
        self.mark(origin, headers);
        response
    }
}

/// Answers preflight requests and adds CORS headers to responses.
pub(super) async fn cors<F: Future<Output = Response>>(
    cors: &Cors,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let Some(origin) = request.headers().get(header::ORIGIN).filter(|_| !cors.origins.is_empty()).cloned() else {
        return next(request).await;
    };
    let is_preflight = request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if request.method() == Method::OPTIONS && is_preflight {
        return cors.preflight(&origin, request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS));
    }
    let mut response = next(request).await;
    cors.mark(&origin, response.headers_mut());
    response
}

/// Settings of the access log.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestLog {
    /// Whether all responses have the header `X-Request-Id`. Failures always have it.
    pub has_id_header: bool,
}

/// Assigns a request id, logs the request under the target `access`, and converts a panic to an error with the id.
/// This is the outermost layer.
pub(super) async fn log_request<F: Future<Output = Response>>(
    log: RequestLog,
    ids: &RequestIds,
    peer: SocketAddr,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let given = request.headers().get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    let id = given.filter(|id| !id.is_empty()).map_or_else(|| Name::Own(ids.long()), |id| Name::Given(id.into()));
    // Copy the path: the URI shares the buffer of the whole head, and a long stream would keep it in memory.
    let (method, path) = (request.method().clone(), Box::<str>::from(request.uri().path()));
    let start = Instant::now();
    let mut response = match AssertUnwindSafe(next(request)).catch_unwind().await {
        Ok(response) => guarded(response, || {
            let (id, path) = (id.clone(), path.clone());
            move || {
                told_panic(&id, &path);
                internal_error(&id)
            }
        }),
        Err(_) => {
            told_panic(&id, &path);
            (StatusCode::INTERNAL_SERVER_ERROR, axum::Json(internal_error(&id))).into_response()
        }
    };
    let is_failure = response.status().is_server_error();
    if let Some(Failure(message)) = response.extensions_mut().remove() {
        tracing::warn!(request_id = %id.logged(), %method, path = &*path, status = response.status().as_u16(), "{message}");
    }
    let elapsed_ms = start.elapsed().as_secs_f64() * 1e3;
    tracing::debug!(
        target: "access",
        request_id = %id.logged(),
        %peer,
        %method,
        path = &*path,
        status = response.status().as_u16(),
        elapsed_ms,
    );
    // The id links a failure to the log.
    if (log.has_id_header || is_failure)
        && let Ok(value) = HeaderValue::from_str(&id.to_string())
    {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

#[derive(Clone, Debug)]
enum Name {
    Given(Box<str>),
    Own(LongId),
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(id) => out.write_str(id),
            Self::Own(id) => id.fmt(out),
        }
    }
}

impl Name {
    /// Formats the id for the log. Ids that are not plain words are quoted, so that a client cannot fake other log
    /// fields.
    fn logged(&self) -> impl fmt::Display + '_ {
        struct Logged<'a>(&'a Name);
        impl fmt::Display for Logged<'_> {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                let is_word = |id: &str| id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte));
                match self.0 {
                    Name::Given(id) if !is_word(id) => write!(out, "{id:?}"),
                    name => name.fmt(out),
                }
            }
        }
        Logged(self)
    }
}

fn told_panic(id: &Name, path: &str) {
    tracing::error!(request_id = %id.logged(), path, "a request failed on an internal error");
}

fn internal_error(id: &Name) -> Value {
    let message = format!("Internal server error (request {id})");
    json!({"error": {"message": message, "type": "InternalServerError", "param": null, "code": 500}})
}
