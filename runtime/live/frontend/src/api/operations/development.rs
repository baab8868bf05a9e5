//! Routes of vLLM's development mode, routes that only its Python frontend has, and the lookup of engines by rank.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{MatchedPath, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::routing::{MethodRouter, get, post};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use vcr_wire::{KvEventsConfig, ReadyResponse, Value as WireValue};

use super::admin::{Params, call_error};
use super::changes;
use crate::api::request::body::{Body, FastJson};
use crate::generate::{json_of, wire_of};
use crate::server::App;
use crate::server::error::ApiError;
use crate::server::routes::Routes;

/// Paths of vLLM that are not simulated.
const NOT_SIMULATED: [&str; 8] = [
    "/v1/chat/completions/batch",
    "/v1/chat/completions/derender",
    "/v1/completions/derender",
    "/v1/decisions",
    "/v1/systemone",
    "/weight_checker",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
];

pub(in crate::api) fn routes() -> Routes<Arc<App>> {
    let call = |method, message| changes(move |state, body| replace_weights(state, body, method, message));
    let mut routes: Routes<Arc<App>> = Routes::new()
        .route("/query", get(query))
        .route("/server_info", get(server_info))
        .route("/get_world_size", get(world_size))
        .route("/kv_event_sources", get(kv_event_sources))
        .route("/abort_requests", changes(abort_requests))
        .route("/collective_rpc", changes(collective_rpc))
        .route("/reset_mm_cache", clears("reset_mm_cache"))
        .route("/reset_encoder_cache", clears("reset_encoder_cache"))
        .route("/release_kv_cache_memory", changes(release_kv_cache_memory))
        .route("/weight_info", get(weight_info))
        .route("/update_weight_version", changes(update_weight_version))
        .route("/init_weight_transfer_engine", call("init_weight_transfer_engine", "Weight transfer initialized"))
        .route("/start_weight_update", call("start_weight_update", "Weight update started"))
        .route("/start_draft_weight_update", call("start_draft_weight_update", "Draft weight update started"))
        .route("/update_weights", call("update_weights", "Weights updated"))
        .route("/finish_weight_update", call("finish_weight_update", "Weight update finished"))
        .route(
            "/shutdown_weight_transfer_engine",
            call("shutdown_weight_transfer_engine", "Weight transfer shut down"),
        );
    for path in NOT_SIMULATED {
        routes = routes.route(path, post(not_simulated));
    }
    routes
}

async fn not_simulated(method: Method, path: MatchedPath) -> ApiError {
    ApiError::not_simulated(&format!("{method} {}", path.as_str()))
}

/// A call that clears a cache. Simulated engines have no such cache.
fn clears(method: &'static str) -> MethodRouter<Arc<App>> {
    changes(move |State(app): State<Arc<App>>| async move {
        app.engines.call_all(method, &[]).await.map(|_| StatusCode::OK).map_err(call_error(method))
    })
}

/// Engine ids by data-parallel rank, in the format of Mooncake's bootstrap server.
async fn query(State(app): State<Arc<App>>) -> Json<Value> {
    let (id, ranks) = (&app.options.engine_id, app.engines.num_ranks());
    let entry = |rank: usize| {
        let engine_id = if ranks > 1 { format!("{id}_dp{rank}") } else { id.clone() };
        (rank.to_string(), json!({"engine_id": engine_id, "worker_addr": {}}))
    };
    Json(Value::Object((0..ranks).map(entry).collect()))
}

/// The frontend's settings.
fn config(app: &App) -> Value {
    let model = &app.model;
    let ready = app.engines.settings().map(|settings| *settings).unwrap_or_default();
    json!({
        "model": model.root,
        "served_model_name": model.names,
        "max_model_len": model.max_model_len,
        "vocab_size": model.vocab_size,
        "data_parallel_size": app.engines.num_ranks(),
        "tensor_parallel_size": ready.tensor_parallel_size,
        "pipeline_parallel_size": ready.pipeline_parallel_size,
        "block_size": ready.block_size,
        "num_gpu_blocks": ready.num_gpu_blocks,
        "max_num_seqs": ready.max_num_seqs,
        "max_num_batched_tokens": ready.max_num_batched_tokens,
        "max_loras": ready.max_loras,
        "vllm_version": ready.vllm_version,
        "vcr_version": env!("CARGO_PKG_VERSION"),
    })
}

/// The frontend's settings and environment.
async fn server_info(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Json<Value>, ApiError> {
    let params = Params::read(query);
    let config = config(&app);
    let config = match params.get("config_format").unwrap_or("text") {
        "json" => config,
        "text" => {
            let line = |(key, value): (&String, &Value)| match value {
                Value::String(text) => format!("{key}={text}"),
                other => format!("{key}={other}"),
            };
            let lines: Vec<String> = config.as_object().into_iter().flatten().map(line).collect();
            Value::from(lines.join("\n"))
        }
        other => {
            let reason = format!("unknown variant `{other}`, expected `text` or `json`");
            return Err(ApiError::invalid(format!("Failed to deserialize query string: config_format: {reason}")));
        }
    };
    let is_public = |name: &String| {
        const SECRETS: [&str; 6] = ["KEY", "SECRET", "TOKEN", "PASSWORD", "CREDENTIAL", "AUTH"];
        name.starts_with("VLLM_") && !SECRETS.iter().any(|secret| name.contains(secret))
    };
    // vLLM's own variables are all valid text.
    let variables =
        std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
    let vllm_env: BTreeMap<String, String> = variables.filter(|(name, _)| is_public(name)).collect();
    let system_env = json!({
        "arch": std::env::consts::ARCH, "family": std::env::consts::FAMILY, "os": std::env::consts::OS,
    });
    Ok(Json(json!({"vllm_config": config, "vllm_env": vllm_env, "system_env": system_env})))
}

/// The number of GPUs of all ranks, or of one rank.
async fn world_size(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Json<Value>, ApiError> {
    let with_ranks = Params::read(query).flag("include_dp", true)?;
    let of_rank = app.engines.settings().map_or(1, |settings| settings.world_size);
    let ranks = if with_ranks { app.engines.num_ranks() as u64 } else { 1 };
    Ok(Json(json!({"world_size": of_rank * ranks})))
}

/// The endpoints of the KV events of each rank.
async fn kv_event_sources(State(app): State<Arc<App>>) -> Json<Value> {
    let source = |events: KvEventsConfig| {
        json!({
            "enable_kv_cache_events": events.enable_kv_cache_events,
            "publisher": events.publisher,
            "endpoint": events.endpoint,
            "replay_endpoint": events.replay_endpoint,
            "buffer_steps": events.buffer_steps,
            "hwm": events.hwm,
            "max_queue_size": events.max_queue_size,
            "topic": events.topic,
        })
    };
    let entry = |ready: ReadyResponse| Some((ready.data_parallel_rank.to_string(), source(ready.kv_events_config?)));
    Json(Value::Object(app.engines.all_settings().into_iter().filter_map(entry).collect()))
}

#[derive(Deserialize)]
pub(in crate::api) struct AbortRequest {
    request_ids: Option<Vec<String>>,
}

/// Aborts requests. Without ids, aborts all.
pub(in crate::api) async fn abort_requests(
    State(app): State<Arc<App>>,
    body: Body<AbortRequest>,
) -> Result<StatusCode, ApiError> {
    let FastJson(request) = body?;
    app.engines.abort(&request.request_ids.unwrap_or_default());
    Ok(StatusCode::OK)
}

#[derive(Deserialize)]
struct RpcRequest {
    method: Option<String>,
    timeout: Option<f64>,
    #[serde(default)]
    args: Vec<Value>,
    #[serde(default)]
    kwargs: Map<String, Value>,
}

/// Calls a function on all workers. Simulated workers return null.
async fn collective_rpc(State(app): State<Arc<App>>, body: Body<RpcRequest>) -> Result<Json<Value>, ApiError> {
    let FastJson(request) = body?;
    let Some(method) = request.method else {
        return Err(ApiError::invalid_param("method", "Missing 'method' in request body"));
    };
    let timeout = request.timeout.map_or(WireValue::Nil, WireValue::F64);
    let args = WireValue::Array(request.args.iter().map(wire_of).collect());
    let kwargs = wire_of(&Value::Object(request.kwargs));
    let answers = app.engines.call_all("collective_rpc", &[method.as_str().into(), timeout, args, kwargs]).await;
    let answers = answers.map_err(call_error("collective_rpc"))?;
    let results: Vec<Value> = answers
        .iter()
        .flat_map(|answer| match json_of(answer) {
            Value::Array(results) => results,
            other => vec![other],
        })
        .collect();
    Ok(Json(json!({"results": results})))
}

async fn release_kv_cache_memory(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let method = "release_kv_cache_memory";
    app.engines.call_all(method, &[]).await.map_err(call_error(method))?;
    Ok(Json(json!({"status": "kv_cache_released"})))
}

/// The version name of the engines' weights.
async fn weight_info(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let method = "get_weight_version";
    let versions = app.engines.call_all(method, &[]).await.map_err(call_error(method))?;
    Ok(Json(json!({"weight_version": versions.first().map(json_of)})))
}

#[derive(Deserialize)]
struct VersionRequest {
    new_version: String,
}

async fn set_weight_version(app: &App, version: &str) -> Result<(), ApiError> {
    let method = "set_weight_version";
    app.engines.call_all(method, &[version.into()]).await.map(drop).map_err(call_error(method))
}

/// Sets the version name of the weights.
async fn update_weight_version(
    State(app): State<Arc<App>>,
    body: Body<VersionRequest>,
) -> Result<Json<Value>, ApiError> {
    let FastJson(VersionRequest { new_version }) = body?;
    set_weight_version(&app, &new_version).await?;
    Ok(Json(json!({"success": true, "new_version": new_version})))
}

/// One step of replacing weights. Simulated engines have no weights, so a step only affects their log and faults.
/// The last step may set a version name.
async fn replace_weights(
    State(app): State<Arc<App>>,
    body: Bytes,
    method: &'static str,
    message: &'static str,
) -> Result<Json<Value>, ApiError> {
    // Most of these calls have no body.
    let body: Value = if body.is_empty() { Value::Null } else { Json::from_bytes(&body)?.0 };
    let (field, is_right): (_, fn(&Value) -> bool) = match method {
        "init_weight_transfer_engine" => ("init_info", Value::is_object),
        "update_weights" => ("update_info", |info| {
            info.is_object() || info.as_array().is_some_and(|parts| parts.iter().all(Value::is_object))
        }),
        _ => ("", |_| true),
    };
    if !is_right(&body[field]) {
        let list = if method == "update_weights" { " or a list of per-worker JSON objects" } else { "" };
        return Err(ApiError::invalid(format!("'{field}' must be a JSON object{list}")));
    }
    let args: &[WireValue] = if field.is_empty() { &[] } else { &[wire_of(&body[field])] };
    app.engines.call_all(method, args).await.map_err(call_error(method))?;
    if let Some(version) = body["weight_version"].as_str().filter(|_| method == "finish_weight_update") {
        set_weight_version(&app, version).await?;
    }
    Ok(Json(json!({"message": message})))
}
