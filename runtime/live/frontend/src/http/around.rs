//! Combines all layers around the routes.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use hyper::body::Incoming;

use super::body::{BodyLimits, Cut, LimitedBody, Verdict};
use super::connection::ConnectionControl;
use super::large::{BodyMemory, beside_others, content_length};
use super::layers::{ApiKeys, Cors, RequestLog, cors, log_request, require_key};
use super::pod::PodHeaders;
use super::session::SessionCookie;
use crate::engine::with_connection;
use crate::metrics::{self, FakeSlot, HttpRecorder, Metrics, count};
use crate::page::{Page, PageRequest, Peer, watched};
use crate::server::error::{ApiError, refusal};
use crate::server::ids::RequestIds;
use crate::server::routes::{Handlers, Routes};

/// The layers around the routes.
#[derive(Clone, Debug)]
pub struct Around {
    pub metrics: Metrics,
    /// Fake metrics, which are served instead of the real ones, if set.
    pub fake_metrics: Option<Arc<FakeSlot>>,
    pub api_keys: Vec<String>,
    /// Rules for pages of other origins.
    pub cors: Cors,
    /// Request ids and the access log.
    pub log: RequestLog,
    /// The pod that response headers name.
    pub pod: PodHeaders,
    /// The session cookie, if enabled.
    pub session_cookie: Option<SessionCookie>,
    /// Limits of a request body.
    pub body: BodyLimits,
    /// Memory limit for all large bodies together.
    pub body_memory_bytes: usize,
    /// A service that runs before the routes, if any.
    pub before: Option<Arc<dyn Before>>,
    /// The page at `/_vcr/`, if enabled.
    pub page: Option<Arc<Page>>,
}

/// A service between the layers and the routes.
pub trait Innermost: Send + Sync + 'static {
    /// Answers a request, or passes it to `next`.
    fn run(&self, request: Request, next: Next<'_>) -> impl Future<Output = Response> + Send;
}

/// A service that can answer instead of the routes, for example from recordings. Faults apply to its answers, too.
pub trait Before: std::fmt::Debug + Send + Sync {
    /// Sees a request before faults apply, and returns it.
    fn see(&self, request: Request) -> Pin<Box<dyn Future<Output = Request> + Send + '_>>;

    /// Answers a request, or passes it to `next`.
    fn answer<'a>(&'a self, request: Request, next: Next<'a>) -> Pin<Box<dyn Future<Output = Response> + Send + 'a>>;
}

/// Passes a request from [`Innermost`] to the [`Before`] service and the routes.
pub struct Next<'a> {
    handlers: &'a Handlers,
    before: Option<&'a dyn Before>,
}

impl std::fmt::Debug for Next<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Next")
    }
}

impl Next<'_> {
    /// Passes the request on to the routes.
    pub async fn run(self, request: Request) -> Response {
        match self.before {
            None => self.handlers.answer(request).await,
            Some(before) => before.answer(request, Next { before: None, ..self }).await,
        }
    }
}

/// A service that answers all requests.
pub trait Service: Send + Sync {
    /// Answers a client's request. The future is boxed, so that a connection needs no space for it after the
    /// response has started.
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: Client,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>>;
}

/// The client of a request.
#[derive(Clone, Debug)]
pub struct Client {
    pub peer: SocketAddr,
    /// The connection of the request.
    pub connection: ConnectionControl,
    /// Whether the request arrived at the page's own address.
    pub is_at_page: bool,
}

/// The routes and all layers in one future. In axum's router, each layer would be cloned and boxed for every
/// request.
struct Layers<I> {
    log: RequestLog,
    pod: PodHeaders,
    session_cookie: Option<SessionCookie>,
    ids: RequestIds,
    cors: Cors,
    keys: ApiKeys,
    http: HttpRecorder,
    body_limits: BodyLimits,
    body_memory: BodyMemory,
    innermost: I,
    before: Option<Arc<dyn Before>>,
    page: Option<Arc<Page>>,
    handlers: Handlers,
}

impl Around {
    /// Adds the layers around `routes`. From the outside in: access log, CORS, API keys, HTTP metrics. Faults are
    /// `innermost`, so that logs and metrics show what clients see.
    pub(crate) fn site(&self, routes: Routes, innermost: impl Innermost) -> Arc<dyn Service> {
        let served = match &self.fake_metrics {
            None => get(metrics::serve).with_state(self.metrics.clone()),
            Some(fake) => {
                let (fake, metrics) = (Arc::clone(fake), self.metrics.clone());
                get(async move |headers: HeaderMap| metrics.answer(fake.exposition(), &headers))
            }
        };
        let (handlers, paths) = routes.route("/metrics", served).into_parts();
        Arc::new(Layers {
            log: self.log,
            pod: self.pod.clone(),
            session_cookie: self.session_cookie.clone(),
            ids: RequestIds::new(),
            cors: self.cors.clone(),
            keys: ApiKeys::new(self.api_keys.iter().cloned(), &self.metrics),
            http: HttpRecorder::new(&self.metrics, paths),
            body_limits: self.body,
            body_memory: BodyMemory::new(self.body_memory_bytes, self.body.max_bytes),
            innermost,
            before: self.before.clone(),
            page: self.page.clone(),
            handlers,
        })
    }
}

impl<I: Innermost> Service for Layers<I> {
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: Client,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        let (mut request, verdict) = LimitedBody::of(request, self.body_limits);
        if !is_within_unset_limit(request.headers()) {
            // The body already has its own limit.
            DefaultBodyLimit::disable().apply(&mut request);
        }
        let Client { peer, connection, is_at_page } = client;
        let port = connection.port();
        let cookie = self.session_cookie.as_ref().and_then(|cookie| cookie.enter(request.headers_mut(), &self.ids));
        Box::pin(with_connection(connection, async move {
            let limited = |request| self.limited(request, &verdict);
            let counted = |request| count(&self.http, request, limited);
            let paged = |request| self.paged(request, Peer { address: peer, is_at_own: is_at_page }, counted);
            let opened = |request| require_key(&self.keys, request, paged);
            let marked = |request| cors(&self.cors, request, opened);
            let watched = |request| watched(self.page.as_deref(), peer, request, marked);
            let answered = log_request(self.log, &self.ids, peer, request, watched);
            let mut response = answered.await;
            self.pod.add(&mut response, port);
            if let Some(cookie) = cookie {
                response.headers_mut().append(header::SET_COOKIE, cookie);
            }
            response
        }))
    }
}

impl<I: Innermost> Layers<I> {
    /// Lets the page answer requests for its paths.
    async fn paged<F: Future<Output = Response>>(
        &self,
        request: Request,
        peer: Peer,
        next: impl FnOnce(Request) -> F,
    ) -> Response {
        let asked = match &self.page {
            Some(page) if Page::owns(request.uri().path()) => Box::pin(page.answer(request, peer)).await,
            _ => PageRequest::Other(request),
        };
        match asked {
            PageRequest::Answered(response) => response,
            PageRequest::Server(request) => self.handlers.answer(request).await,
            PageRequest::Other(_) if peer.is_at_own => StatusCode::NOT_FOUND.into_response(),
            PageRequest::Other(request) => next(request).await,
        }
    }

    /// Answers a request, and refuses it if its body exceeds the limits.
    async fn limited(&self, request: Request, verdict: &Verdict) -> Response {
        let is_http1 = request.version() < Version::HTTP_2;
        let refused = refusal(request.uri().path());
        let cut = match content_length(request.headers()) {
            Some(bytes) if bytes > self.body_limits.max_bytes as u64 => Cut::TooLarge,
            _ => {
                let next = async |mut request| {
                    if let Some(before) = &self.before {
                        request = before.see(request).await;
                    }
                    let next = Next { handlers: &self.handlers, before: self.before.as_deref() };
                    self.innermost.run(request, next).await
                };
                let response = beside_others(&self.body_memory, verdict, request, next).await;
                match verdict.get() {
                    None => return response,
                    Some(cut) => cut,
                }
            }
        };
        let mut response = refused(&match cut {
            Cut::TooLarge => ApiError::too_large(self.body_limits.max_bytes),
            Cut::TooSlow => ApiError::too_slow(),
        });
        if is_http1 {
            // The rest of the body is not read.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// axum's limit for a body without another limit.
const UNSET_LIMIT_BYTES: u64 = 2_097_152;

/// Whether the stated content length is within axum's limit. HTTP enforces the stated length.
fn is_within_unset_limit(headers: &HeaderMap) -> bool {
    content_length(headers).is_some_and(|bytes| bytes <= UNSET_LIMIT_BYTES)
}
