//! Metrics of HTTP requests, and the route that serves all metrics.

use std::future::Future;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::metrics::gauge::Gauge;

use super::page::{CONTENT_TYPE, Labels, Metrics};
use super::table::Name;

/// Routes that vLLM leaves out of these metrics.
const UNCOUNTED: &[&str] = &["/metrics", "/health", "/load", "/ping", "/version", "/server_info"];
/// The handler of requests without a route.
const NO_HANDLER: &str = "none";

/// Serves the exposition.
pub async fn serve(State(metrics): State<Metrics>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.exposition()).into_response()
}

/// Counts a request and its time until the head of its response. A layer of the
/// routes, inside of authorization: refused requests have no handler.
pub(crate) async fn count<F: Future<Output = Response>>(
    metrics: &Metrics,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let handler = path.unwrap_or_else(|| NO_HANDLER.to_owned());
    let method = request.method().clone();
    let start = Instant::now();
    let response = next(request).await;
    if !UNCOUNTED.contains(&handler.as_str()) && method != Method::OPTIONS {
        let elapsed_s = start.elapsed().as_secs_f64();
        let status = format!("{}xx", response.status().as_u16() / 100);
        let method = ("method", method.as_str().to_owned());
        let handler = ("handler", handler);
        let labels = vec![method.clone(), ("status", status), handler.clone()];
        metrics.counter(Name::HttpRequests, &labels).inc();
        metrics.histogram(Name::HttpRequestDurationSeconds, &vec![method, handler]).observe(elapsed_s);
        metrics.histogram(Name::HttpRequestDurationHighrSeconds, &Labels::new()).observe(elapsed_s);
    }
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if is_stream { watched(metrics, response) } else { response }
}

/// Counts a stream as open until its body is dropped.
fn watched(metrics: &Metrics, response: Response) -> Response {
    use futures_util::StreamExt as _;

    let open = Held::new(metrics.gauge(Name::VcrStreamsOpen, &Labels::new()));
    response.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |data| {
            let _open = &open;
            data
        }))
    })
}

/// One more in a gauge while it lives.
#[derive(Debug)]
pub struct Held(Gauge);

impl Held {
    pub(crate) fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }

    /// A connection of a client.
    #[must_use]
    pub fn connection(metrics: &Metrics) -> Self {
        Self::new(metrics.gauge(Name::VcrConnectionsOpen, &Labels::new()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// A fault that a client met.
    pub(crate) fn fault(&self, kind: &str) {
        self.counter(Name::VcrFaultsInjected, &vec![("kind", kind.to_owned())]).inc();
    }

    /// A request without a valid API key.
    pub(crate) fn unauthorized(&self) {
        self.counter(Name::VcrRequestsUnauthorized, &Labels::new()).inc();
    }
}
