//! Serves the page and answers its requests.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use vcr_report::{LivePage, write_live_page};

use super::engines::EngineWatch;
use super::guard::{Audience, Peer, refused, vouch};
use super::view::{capture, detail, summary};
use super::watch::{UNSEEN_PER_SECOND, Watch};

pub(crate) const PREFIX: &str = "/_vcr/";
const STYLE: &str = include_str!("../../assets/page.css");
const SCRIPT: &str = concat!(
    include_str!("../../assets/parse.js"),
    include_str!("../../assets/requests.js"),
    include_str!("../../assets/detail.js"),
    include_str!("../../assets/engines.js"),
    include_str!("../../assets/controls.js"),
    include_str!("../../assets/page.js"),
);

/// In addition to what reports may do, the page may send requests to its own origin.
const POLICY: &str = "; connect-src 'self'";
/// Headers of all responses: no other page may frame them, and no cache may store them.
const HEADERS: [(header::HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, "frame-ancestors 'none'"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
];

/// Server paths that the page requests. A change by such a request happens on behalf of whoever has the page open.
const SERVER_PATHS: [&str; 12] = [
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
    "/reset_prefix_cache",
    "/v1/models",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/messages/render",
    "/v1/responses/render",
];

/// The subject of a page.
#[derive(Debug, Default)]
pub struct PageOf {
    /// The command, such as `serve`.
    pub command: &'static str,
    /// The model, or the server behind a proxy.
    pub title: String,
    /// The exchanges with clients, if there are any.
    pub watch: Option<Arc<Watch>>,
    /// The engines in this process, if there are any.
    pub engines: Option<Arc<EngineWatch>>,
    /// Tokens per KV block of the engines.
    pub block_size: Option<u32>,
    /// The routes of the control plane.
    pub control: Option<Router>,
    /// Whether the page can send requests to the server's routes.
    pub has_server: bool,
    /// Whether each request needs an API key of the server.
    pub needs_key: bool,
}

#[derive(Debug)]
pub struct Page {
    of: PageOf,
    audience: Audience,
    /// Whether the page has its own address. Then it is served only there.
    has_own_address: bool,
    html: Bytes,
}

/// The answer to a request, or the request if the page does not answer it.
#[derive(Debug)]
pub enum PageRequest {
    /// The page has answered the request.
    Answered(Response),
    /// The server's routes must answer the request on behalf of the page.
    Server(Request),
    /// The request is not for the page.
    Other(Request),
}

impl Page {
    /// Creates a page.
    pub fn new(of: PageOf, audience: Audience, has_own_address: bool) -> std::io::Result<Self> {
        let mut html = Vec::new();
        let data = json!({
            "command": of.command,
            "title": of.title,
            "version": env!("CARGO_PKG_VERSION"),
            "requests": of.watch.is_some(),
            "engines": of.engines.is_some(),
            "control": of.control.is_some(),
            "server": of.has_server,
            "needs_key": of.needs_key,
            "block_size": of.block_size,
            "unseen_per_second": UNSEEN_PER_SECOND,
        });
        let live = LivePage { style: STYLE, script: SCRIPT, policy: POLICY };
        write_live_page(&mut html, &of.title, &data, live, &mut |out| {
            writeln!(out, "<div id=\"app\"></div>\n<noscript>This page needs JavaScript.</noscript>")
        })?;
        Ok(Self { of, audience, has_own_address, html: html.into() })
    }

    /// Whether a path belongs to the page.
    #[must_use]
    pub fn owns(path: &str) -> bool {
        matches!(path, "/_vcr" | PREFIX) || path.starts_with("/_vcr/api/")
    }

    /// Whether the page should show a request. It hides its own requests, and frequent probes and scrapes.
    #[must_use]
    fn shows(path: &str) -> bool {
        const PROBES: [&str; 7] = ["/health", "/ready", "/ping", "/load", "/metrics", "/health/ready", "/favicon.ico"];
        !path.starts_with("/_vcr") && !PROBES.contains(&path)
    }

    /// Whether the request is for the page itself. It contains no secrets; its data needs a key.
    #[must_use]
    pub fn is_shell(method: &Method, path: &str) -> bool {
        matches!(path, "/_vcr" | PREFIX) && method == Method::GET
    }

    /// Routes that serve the page on this machine.
    pub fn routes(self: Arc<Self>) -> Router {
        let answer = move |request: Request| {
            let page = Arc::clone(&self);
            async move {
                // The control plane listens only on loopback addresses.
                let peer = Peer { address: ([127, 0, 0, 1], 0).into(), is_at_own: false };
                match page.answer(request, peer).await {
                    PageRequest::Answered(response) => response,
                    _ => StatusCode::NOT_FOUND.into_response(),
                }
            }
        };
        ["/_vcr", PREFIX, "/_vcr/api/{*rest}"]
            .iter()
            .fold(Router::new(), |routes, path| routes.route(path, any(answer.clone())))
    }

    /// Answers a request if it belongs to the page.
    pub async fn answer(&self, request: Request, peer: Peer) -> PageRequest {
        if !Self::owns(request.uri().path()) || self.has_own_address != peer.is_at_own {
            return PageRequest::Other(request);
        }
        if let Err(refused) = self.audience.check(&request, peer) {
            return PageRequest::Answered(refused.into_response());
        }
        let mut answered = match self.asked(request).await {
            PageRequest::Answered(response) => response,
            other => return other,
        };
        for (name, value) in HEADERS {
            answered.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        PageRequest::Answered(answered)
    }

    async fn asked(&self, mut request: Request) -> PageRequest {
        let path = request.uri().path().to_owned();
        if let Some(rest) = path.strip_prefix("/_vcr/api/control") {
            let Some(control) = &self.of.control else { return answered(no_part("no engines to control")) };
            if !renamed(&mut request, rest) {
                return answered(unknown(&path));
            }
            vouch(&mut request);
            // Routes never return an error.
            let Ok(response) = TowerToHyperService::new(control.clone()).call(request).await;
            return answered(response);
        }
        if let Some(rest) = path.strip_prefix("/_vcr/api/server") {
            if !self.of.has_server || !SERVER_PATHS.contains(&rest) || !renamed(&mut request, rest) {
                return answered(unknown(&path));
            }
            vouch(&mut request);
            return PageRequest::Server(request);
        }
        match (request.method(), path.as_str()) {
            (&Method::GET, "/_vcr") => {
                answered((StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, PREFIX)]).into_response())
            }
            (&Method::GET, PREFIX) => {
                let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
                answered((kind, Body::from(self.html.clone())).into_response())
            }
            _ => self.data(request).await,
        }
    }

    /// Answers the page's periodic requests for data.
    async fn data(&self, request: Request) -> PageRequest {
        // The request body is not needed, and a future that holds it could not move between threads.
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let path = uri.path();
        let Some(rest) = path.strip_prefix("/_vcr/api/") else { return PageRequest::Other(request) };
        drop(request);
        let after = match parameter(&uri, "after") {
            Ok(after) => after.unwrap_or(0.0),
            Err(message) => {
                return answered((StatusCode::BAD_REQUEST, axum::Json(json!({"error": message}))).into_response());
            }
        };
        let response = match (&method, rest, &self.of.watch, &self.of.engines) {
            (&Method::GET, "requests", Some(watch), _) => {
                let (watch, after) = (Arc::clone(watch), after as u64);
                let skipped = watch.look();
                aside(move || {
                    // Read the revision before the list, so that changes in between are reported next time.
                    let revision = watch.revision();
                    let changed: Vec<Value> = watch.since(after).iter().map(|exchange| summary(exchange)).collect();
                    let list = json!({"revision": revision, "oldest": watch.oldest(), "requests": changed, "skipped": skipped});
                    axum::Json(list)
                })
                .await
            }
            (&Method::DELETE, "requests", Some(watch), _) => {
                watch.clear();
                StatusCode::NO_CONTENT.into_response()
            }
            (&Method::GET, "engines", _, Some(engines)) => axum::Json(engines.json(after)).into_response(),
            (&Method::GET, rest, Some(watch), _) => {
                let one = rest.strip_prefix("requests/").unwrap_or_default();
                let (number, is_capture) = one.strip_suffix("/capture").map_or((one, false), |number| (number, true));
                match number.parse().ok().and_then(|number| watch.find(number)) {
                    Some(exchange) if is_capture => {
                        let failed = |error: serde_json::Error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
                        aside(move || capture(&exchange).map_err(failed)).await
                    }
                    Some(exchange) => aside(move || axum::Json(detail(&exchange))).await,
                    None => unknown(path),
                }
            }
            _ => unknown(path),
        };
        answered(response)
    }
}

/// Lets the page observe a request and its response.
pub(crate) async fn watched<F: Future<Output = Response>>(
    page: Option<&Page>,
    peer: SocketAddr,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    match page.and_then(|page| page.of.watch.as_ref()).filter(|_| Page::shows(request.uri().path())) {
        Some(watch) if watch.keeps_next() => watch.around(peer, request, next).await,
        _ => next(request).await,
    }
}

fn answered(response: Response) -> PageRequest {
    PageRequest::Answered(response)
}

/// Builds a response on a thread that serves no clients, because reading many bodies takes time.
async fn aside<R: IntoResponse + Send + 'static>(make: impl FnOnce() -> R + Send + 'static) -> Response {
    match spawn_blocking(make).await {
        Ok(made) => made.into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn unknown(path: &str) -> Response {
    let message = format!("unknown path {path}, or it is no longer kept");
    (StatusCode::NOT_FOUND, axum::Json(json!({"error": message}))).into_response()
}

fn no_part(message: &str) -> Response {
    refused(message, "vcr serve and vcr play have engines").into_response()
}

/// Replaces the path of a request and keeps its query. Returns `false` if the path is invalid.
fn renamed(request: &mut Request, path: &str) -> bool {
    let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
    let Ok(target) = PathAndQuery::try_from(format!("{path}{query}")) else { return false };
    if !path.starts_with('/') {
        return false;
    }
    *request.uri_mut() = Uri::from(target);
    true
}

/// A number of the query, such as a revision or a time.
fn parameter(uri: &Uri, name: &str) -> Result<Option<f64>, String> {
    let pairs = uri.query().unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let Some((_, value)) = pairs.into_iter().find(|(key, _)| *key == name) else { return Ok(None) };
    let number = value.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.map(Some).ok_or_else(|| format!("invalid `{name}` `{value}`: expected a number of at least 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbers() {
        let of = |uri: &str| parameter(&uri.parse().expect("it is a URI"), "after");
        assert_eq!(of("/a?x=1&after=12.5"), Ok(Some(12.5)));
        assert_eq!(of("/a?x=1"), Ok(None));
        for wrong in ["/a?after=x", "/a?after=-1", "/a?after=NaN", "/a?after=", "/a?after"] {
            assert!(of(wrong).is_err_and(|message| message.ends_with("expected a number of at least 0")), "{wrong}");
        }
    }
}
