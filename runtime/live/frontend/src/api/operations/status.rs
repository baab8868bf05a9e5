//! Health, version and load.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::server::App;

fn status(is_good: bool) -> StatusCode {
    if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Whether all engines are healthy.
pub(in crate::api) async fn health(State(app): State<Arc<App>>) -> StatusCode {
    status(app.engines.is_healthy())
}

/// Like [`health`], but not ready during the startup delay.
pub(in crate::api) async fn ready(State(app): State<Arc<App>>) -> StatusCode {
    status(app.is_ready())
}

/// The simulated version of vLLM.
pub(in crate::api) async fn version(State(app): State<Arc<App>>) -> Json<Value> {
    let version = app.engines.settings().map(|settings| settings.vllm_version).unwrap_or_default();
    Json(json!({"version": version, "vcr_version": env!("CARGO_PKG_VERSION")}))
}

/// The number of text requests in progress.
pub(in crate::api) async fn load(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"server_load": app.load.load(Ordering::Relaxed)}))
}
