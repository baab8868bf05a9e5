//! Paths and their handlers.

use axum::extract::State;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};

use crate::control::Refusal;
use crate::control::listen::Context;
use crate::control::view::{EngineView, Engines, FaultsView, Health};
use crate::control::{change, client_faults, fake_metrics, gpu_metrics, metrics};

const METRICS_PATHS: &str = "GET /metrics, GET /healthz";
const ADMIN_PATHS: &str = "GET /metrics, GET /healthz, GET /engines, POST /latency, POST /time-scale, \
    GET, POST or DELETE /faults, GET, POST or DELETE /client-faults, \
    GET, POST or DELETE /fake-metrics, POST /pause, POST /resume, POST /reset-prefix-cache, POST /shutdown";

pub(crate) fn metrics_routes(context: Context) -> Router {
    finished(status_routes(), METRICS_PATHS, context)
}

/// All routes, also those that change engines.
pub(crate) fn admin_routes(context: Context) -> Router {
    let routes = status_routes()
        .route("/engines", get(engines))
        .route("/latency", post(change::latency))
        .route("/time-scale", post(change::time_scale))
        .route("/faults", get(faults).post(change::add_fault).delete(change::clear_faults))
        .route("/client-faults", get(client_faults::list).post(client_faults::add).delete(client_faults::clear))
        .route("/fake-metrics", get(fake_metrics::list).post(fake_metrics::set).delete(fake_metrics::clear))
        .route("/pause", post(change::pause))
        .route("/resume", post(change::resume))
        .route("/reset-prefix-cache", post(change::reset_prefix_cache))
        .route("/shutdown", post(change::shut_down));
    finished(routes, ADMIN_PATHS, context)
}

pub(crate) fn gpu_routes(context: Context) -> Router {
    finished(Router::new().route("/metrics", get(gpus)), "GET /metrics", context)
}

fn status_routes() -> Router<Context> {
    Router::new().route("/metrics", get(metrics)).route("/healthz", get(health))
}

fn finished(routes: Router<Context>, paths: &'static str, context: Context) -> Router {
    let hint = move || format!("expected one of {paths}");
    let not_found = move |uri: Uri| async move {
        Refusal::new(StatusCode::NOT_FOUND, format!("unknown path {}", uri.path())).hint(hint())
    };
    let not_allowed = move |method: Method, uri: Uri| async move {
        let message = format!("{} cannot be asked with {method}", uri.path());
        Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message).hint(hint())
    };
    routes.fallback(not_found).method_not_allowed_fallback(not_allowed).with_state(context)
}

async fn metrics(State(context): State<Context>) -> Response {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::exposition(&context.registry)).into_response()
}

async fn gpus(State(context): State<Context>) -> Response {
    let text = context.gpus.as_ref().map(|gpus| gpus.exposition(&context.engines)).unwrap_or_default();
    ([(header::CONTENT_TYPE, gpu_metrics::CONTENT_TYPE)], text).into_response()
}

async fn health(State(context): State<Context>) -> Response {
    let health = Health::of(&context.engines.snapshots());
    let status = if health.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health)).into_response()
}

async fn engines(State(context): State<Context>) -> Json<Engines<EngineView>> {
    Json(Engines::of(&context.engines.snapshots(), EngineView::of))
}

async fn faults(State(context): State<Context>) -> Json<Engines<FaultsView>> {
    Json(Engines::of(&context.engines.snapshots(), FaultsView::of))
}
