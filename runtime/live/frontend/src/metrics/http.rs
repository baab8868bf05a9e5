//! Metrics of HTTP requests, and the route that serves all metrics.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::response::Response;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::page::{Labels, Metrics};
use super::table::Name;
use crate::server::routes::Paths;

/// Routes that vLLM excludes from these metrics.
const UNCOUNTED: &[&str] = &["/metrics", "/health", "/load", "/ping", "/version", "/server_info"];
/// The handler label of requests without a route.
const NO_HANDLER: &str = "none";

/// Serves all metrics.
pub async fn serve(State(metrics): State<Metrics>, headers: HeaderMap) -> Response {
    metrics.answer(None, &headers)
}

/// Records HTTP requests. Each series is looked up once.
#[derive(Debug)]
pub(crate) struct HttpRecorder {
    metrics: Metrics,
    /// The paths of the routes, used as handler labels.
    paths: Paths,
    /// Series by handler label.
    series: Mutex<BTreeMap<&'static str, Vec<HttpSeries>>>,
}

/// The series of one method and status class.
#[derive(Clone, Debug)]
struct HttpSeries {
    method: Method,
    class: u16,
    requests: Counter,
    duration: Histogram,
    duration_fine: Histogram,
    request_size: Histogram,
    response_size: Histogram,
}

/// The body sizes that are stated in the headers of a request and its response.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    request_bytes: u64,
    response_bytes: u64,
}

impl HttpRecorder {
    pub(crate) fn new(metrics: &Metrics, paths: Paths) -> Self {
        Self { metrics: metrics.clone(), paths, series: Mutex::default() }
    }

    fn record(&self, handler: &'static str, method: &Method, class: u16, elapsed_s: f64, sizes: Sizes) {
        let mut all = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(handler).or_default();
        let found = known.iter().position(|series| series.class == class && series.method == method);
        let place = found.unwrap_or_else(|| {
            known.push(self.create(handler, method, class));
            known.len() - 1
        });
        let HttpSeries { requests, duration, duration_fine, request_size, response_size, .. } = &known[place];
        request_size.observe(sizes.request_bytes as f64);
        response_size.observe(sizes.response_bytes as f64);
        requests.inc();
        duration.observe(elapsed_s);
        duration_fine.observe(elapsed_s);
    }

    fn create(&self, handler: &str, method: &Method, class: u16) -> HttpSeries {
        let status = ("status", format!("{class}xx"));
        let (of_method, of_handler) = (("method", method.as_str().to_owned()), ("handler", handler.to_owned()));
        let labels = vec![of_method.clone(), status, of_handler.clone()];
        HttpSeries {
            method: method.clone(),
            class,
            requests: self.metrics.counter(Name::HttpRequests, &labels),
            request_size: self.metrics.histogram(Name::HttpRequestSizeBytes, &vec![of_handler.clone()]),
            response_size: self.metrics.histogram(Name::HttpResponseSizeBytes, &vec![of_handler.clone()]),
            duration: self.metrics.histogram(Name::HttpRequestDurationSeconds, &vec![of_method, of_handler]),
            duration_fine: self.metrics.histogram(Name::HttpRequestDurationHighrSeconds, &Labels::new()),
        }
    }
}

/// Counts a request, and the time until the head of its response. Runs after the check of API keys, so refused
/// requests are not counted.
pub(crate) async fn count<F: Future<Output = Response>>(
    recorder: &HttpRecorder,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let handler = recorder.paths.of(request.uri().path()).unwrap_or(NO_HANDLER);
    let method = request.method().clone();
    let request_bytes = length_of(request.headers());
    let start = Instant::now();
    let response = next(request).await;
    if !UNCOUNTED.contains(&handler) && method != Method::OPTIONS {
        // The content length of a complete body is set later.
        let response_bytes = response.body().size_hint().exact().unwrap_or(0);
        let (class, elapsed_s) = (response.status().as_u16() / 100, start.elapsed().as_secs_f64());
        recorder.record(handler, &method, class, elapsed_s, Sizes { request_bytes, response_bytes });
    }
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if is_stream { watched(&recorder.metrics, response) } else { response }
}

fn length_of(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    length.unwrap_or(0)
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

/// Increases a gauge by one until dropped.
#[derive(Debug)]
pub struct Held(Gauge);

impl Held {
    pub(crate) fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }

    /// Counts a client's connection.
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
    /// Counts an injected fault.
    pub(crate) fn fault(&self, kind: &str) {
        self.counter(Name::VcrFaultsInjected, &vec![("kind", kind.to_owned())]).inc();
    }

    /// Counts a request without a valid API key.
    pub(crate) fn unauthorized(&self) {
        self.counter(Name::VcrRequestsUnauthorized, &Labels::new()).inc();
    }
}
