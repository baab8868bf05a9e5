//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;

use crate::api::request::body::{Body, FastJson};
use crate::server::App;
use crate::server::adapters::NewAdapter;
use crate::server::error::ApiError;

#[derive(Debug, Deserialize)]
pub(in crate::api) struct LoadRequest {
    lora_name: String,
    lora_path: String,
    #[serde(default)]
    load_inplace: bool,
    #[serde(default)]
    is_3d_lora_weight: bool,
}

pub(in crate::api) async fn load(State(app): State<Arc<App>>, body: Body<LoadRequest>) -> Result<String, ApiError> {
    let FastJson(LoadRequest { lora_name: name, lora_path: path, load_inplace, is_3d_lora_weight: is_3d }) = body?;
    let done = format!("Success: LoRA adapter '{name}' added successfully.");
    let adapter = NewAdapter { name, path, load_inplace, is_3d };
    app.model.adapters.load(&app.engines, &app.model.names, adapter).await?;
    Ok(done)
}

#[derive(Debug, Deserialize)]
pub(in crate::api) struct UnloadRequest {
    lora_name: String,
    lora_int_id: Option<u64>,
}

pub(in crate::api) async fn unload(State(app): State<Arc<App>>, body: Body<UnloadRequest>) -> Result<String, ApiError> {
    let FastJson(UnloadRequest { lora_name: name, lora_int_id }) = body?;
    if name.is_empty() {
        let message = "'lora_name' needs to be provided to unload a LoRA adapter.";
        return Err(ApiError::invalid_param("lora_name", message));
    }
    app.model.adapters.unload(&app.engines, &name, lora_int_id).await?;
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}
