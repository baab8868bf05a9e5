//! `GET /v1/models`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::server::{App, unix_s};

/// Lists the names of the model, then the adapters.
pub(in crate::api) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let model = &app.model;
    let created = unix_s() as u64;
    let card = |id: &str, root: &str, parent: Option<&str>, max_model_len: Option<u32>| {
        json!({
            "id": id, "object": "model", "created": created, "owned_by": "vcr", "root": root, "parent": parent,
            "max_model_len": max_model_len,
        })
    };
    let names = model.names.iter().map(|name| card(name, &model.root, None, Some(model.max_model_len)));
    let base = model.names.first().map(String::as_str);
    let adapters = model.adapters.all();
    let adapters = adapters.iter().map(|adapter| card(&adapter.name, &adapter.path, base, None));
    Json(json!({"object": "list", "data": names.chain(adapters).collect::<Vec<_>>()}))
}
