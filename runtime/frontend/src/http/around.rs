//! All layers around the routes, in their order.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use super::large::beside_others;
use super::layers::{ApiKeys, Cors, RequestLog, cors, log_request, require_key};
use crate::metrics::{self, CONTENT_TYPE, FakePage, HttpRecorder, Metrics, count};
use crate::server::ids::RequestIds;

/// What stands around the routes.
#[derive(Clone, Debug)]
pub struct Around {
    /// The metrics.
    pub metrics: Metrics,
    /// Made-up metrics that are served in their place.
    pub fake_metrics: Option<Arc<FakePage>>,
    /// Keys of the API.
    pub api_keys: Vec<String>,
    /// Pages of other origins.
    pub cors: Cors,
    /// Ids and the access log.
    pub log: RequestLog,
    /// The limit of a request's body.
    pub max_body_bytes: usize,
}

/// The layers with what they need. One future holds all of them: a box for each
/// would cost more than what they do.
struct Layers {
    log: RequestLog,
    ids: RequestIds,
    cors: Cors,
    keys: ApiKeys,
    http: HttpRecorder,
}

impl Around {
    /// Puts the layers around routes: from the outside in, the access log, CORS,
    /// API keys and the metrics of HTTP. `faults` is the innermost one, so that
    /// logs and metrics show faults as clients meet them.
    pub fn routes<F>(
        &self,
        routes: Router,
        faults: impl Fn(Request, Next) -> F + Clone + Send + Sync + 'static,
    ) -> Router
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let served = match &self.fake_metrics {
            None => get(metrics::serve).with_state(self.metrics.clone()),
            Some(page) => {
                let page = Arc::clone(page);
                get(async move || ([(header::CONTENT_TYPE, CONTENT_TYPE)], page.exposition()).into_response())
            }
        };
        let layers = Arc::new(Layers {
            log: self.log,
            ids: RequestIds::new(),
            cors: self.cors.clone(),
            keys: ApiKeys::new(self.api_keys.iter().cloned(), &self.metrics),
            http: HttpRecorder::new(&self.metrics),
        });
        let layer = move |request: Request, next: Next| {
            let faults = faults.clone();
            Arc::clone(&layers).run(request, move |request| faults(request, next))
        };
        routes.route("/metrics", served).layer(DefaultBodyLimit::max(self.max_body_bytes)).layer(from_fn(layer))
    }
}

impl Layers {
    async fn run<F: Future<Output = Response>>(
        self: Arc<Self>,
        request: Request,
        next: impl FnOnce(Request) -> F,
    ) -> Response {
        let counted = |request| count(&self.http, request, |request| beside_others(request, next));
        let opened = |request| require_key(&self.keys, request, counted);
        log_request(self.log, &self.ids, request, |request| cors(&self.cors, request, opened)).await
    }
}
