//! All layers around the routes, in their order.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse as _;
use axum::routing::get;

use super::large::beside_others;
use super::layers::{ApiKeys, Cors, RequestLog, cors, log_request, require_key};
use crate::metrics::{self, CONTENT_TYPE, FakePage, Metrics};

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

impl Around {
    /// Puts the layers around routes: from the outside in, the access log, CORS,
    /// API keys and the metrics of HTTP. `faults` adds the innermost one, so that
    /// logs and metrics show faults as clients meet them.
    pub fn routes(&self, routes: Router, faults: impl FnOnce(Router) -> Router) -> Router {
        let served = match &self.fake_metrics {
            None => get(metrics::serve).with_state(self.metrics.clone()),
            Some(page) => {
                let page = Arc::clone(page);
                get(async move || ([(header::CONTENT_TYPE, CONTENT_TYPE)], page.exposition()).into_response())
            }
        };
        let keys = ApiKeys::new(self.api_keys.iter().cloned(), &self.metrics);
        faults(routes.route("/metrics", served))
            .layer(DefaultBodyLimit::max(self.max_body_bytes))
            .layer(from_fn(beside_others))
            .layer(from_fn_with_state(self.metrics.clone(), metrics::count))
            .layer(from_fn_with_state(keys, require_key))
            .layer(from_fn_with_state(Arc::new(self.cors.clone()), cors))
            .layer(from_fn_with_state(self.log, log_request))
    }
}
