//! SGLang's endpoints for information about the server, and for changes of its engines.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::answer::gather;
use crate::api::operations::admin::call_error;
use crate::api::request::body::{Body, FastJson};
use crate::api::request::submit_all;
use crate::generate::{Merged, Placement, Sampling};
use crate::server::App;
use crate::server::error::ApiError;

/// Checks health by generating a token, unless other requests are in progress.
pub(super) async fn health_generate(State(app): State<Arc<App>>) -> StatusCode {
    let token = async {
        if app.load.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let sampling = Sampling { max_tokens: Some(1), temperature: Some(0.0), ..Sampling::default() };
        let asked = sampling.into_engine_request(&app.model, vec![0], Placement::default())?;
        let id = format!("HEALTH_CHECK_{}", app.ids.next());
        gather(Merged::new(submit_all(&app, &id, 1, asked)?), 1).await.map(drop)
    };
    let is_well = app.engines.is_healthy() && token.await.is_ok();
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

pub(super) async fn model_info(State(app): State<Arc<App>>) -> Json<Value> {
    let name = app.model.names.first();
    let mode = app.options.sglang.as_ref().and_then(|info| info.get("disaggregation_mode"));
    Json(json!({
        "model_path": app.model.root,
        "served_model_name": name,
        "tokenizer_path": app.model.root,
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": "default",
        "load_format": "auto",
        "reasoning_parser": null,
        "tool_call_parser": null,
        "disaggregation_mode": mode,
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": null,
        "architectures": null,
    }))
}

/// The settings, and the state of each engine.
pub(super) async fn server_info(State(app): State<Arc<App>>) -> Json<Value> {
    let mut info = app.options.sglang.clone().unwrap_or_default();
    let loads = app.engines.loads();
    info.extend([
        ("model_path".to_owned(), app.model.root.as_str().into()),
        ("tokenizer_path".to_owned(), app.model.root.as_str().into()),
        ("served_model_name".to_owned(), json!(app.model.names.first())),
        ("context_length".to_owned(), app.model.max_model_len.into()),
        ("dp_size".to_owned(), loads.len().into()),
        ("internal_states".to_owned(), loads.iter().map(|load| json!({"num_requests": load})).collect()),
        ("vcr_version".to_owned(), env!("CARGO_PKG_VERSION").into()),
    ]);
    Json(info.into())
}

/// The number of requests in progress per engine, for routers.
pub(super) async fn load(State(app): State<Arc<App>>) -> Json<Value> {
    let of_rank = |(rank, load): (usize, usize)| json!({"dp_rank": rank, "num_reqs": load});
    Json(app.engines.loads().into_iter().enumerate().map(of_rank).collect())
}

/// Resets the radix cache, unless requests are in progress.
pub(super) async fn flush_cache(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let is_flushed = app.engines.reset_prefix_cache(false, false).await.map_err(call_error("flush_cache"))?;
    Ok(if is_flushed {
        "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the \
         operation will not be performed.)\n"
            .into_response()
    } else {
        (StatusCode::BAD_REQUEST, "Flush cache failed.\n").into_response()
    })
}

#[derive(Deserialize)]
pub(super) struct AbortRequest {
    #[serde(default)]
    rid: Option<String>,
    #[serde(default)]
    abort_all: bool,
}

/// Aborts one request or all. Unknown ids are ignored.
pub(super) async fn abort_request(
    State(app): State<Arc<App>>,
    body: Body<AbortRequest>,
) -> Result<StatusCode, ApiError> {
    let FastJson(AbortRequest { rid, abort_all }) = body?;
    let rid = rid.filter(|rid| !rid.is_empty());
    if abort_all {
        app.engines.abort(&[]);
    } else if let Some(rid) = rid {
        app.engines.abort(&[rid]);
    }
    Ok(StatusCode::OK)
}
