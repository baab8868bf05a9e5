//! `POST /v1/embeddings` and `POST /pooling`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::PoolRequest;
use super::vectors::{Encoded, Encoding};
use crate::api::request::body::{Body, FastJson};
use crate::server::App;
use crate::server::error::ApiError;
use crate::server::model::Model;

#[derive(Serialize)]
struct Embedding {
    index: usize,
    object: &'static str,
    embedding: Encoded,
}

#[derive(Serialize)]
struct Pooled {
    index: usize,
    object: &'static str,
    data: Encoded,
}

/// Checks the requested number of dimensions.
pub(in crate::api) fn dimensions(model: &Model, asked: Option<i64>) -> Result<Option<u32>, ApiError> {
    let Some(asked) = asked else { return Ok(None) };
    let longest = model.embedding_dimensions;
    let fits = u32::try_from(asked).ok().filter(|asked| (1..=longest).contains(asked));
    let name = model.names.first().map_or("", String::as_str);
    fits.map(Some).ok_or_else(|| {
        ApiError::invalid(format!("Model '{name}' only supports dimensions in range [1, {longest}], got {asked}."))
    })
}

pub(in crate::api) async fn embeddings(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<PoolRequest>,
) -> Result<Response, ApiError> {
    let FastJson(request) = body?;
    let dimensions = dimensions(&app.model, request.dimensions)?;
    let encoding = Encoding::of(&request)?;
    let mut answer = request.vectors(&app, &headers, "embd", dimensions).await?;
    if let Some(response) = encoding.raw(&answer) {
        return Ok(response);
    }
    let embedding = |(index, vector)| Embedding { index, object: "embedding", embedding: encoding.json(vector) };
    let data = std::mem::take(&mut answer.vectors).into_iter().enumerate().map(embedding).collect();
    Ok(Json(answer.list(data)).into_response())
}

/// Answers with the output of the model's pooler, which is its embedding.
pub(in crate::api) async fn pooling(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<PoolRequest>,
) -> Result<Response, ApiError> {
    let FastJson(request) = body?;
    if request.dimensions.is_some() {
        return Err(ApiError::invalid_param("dimensions", "dimensions is currently not supported"));
    }
    if let Some(task) = request.task.as_deref().filter(|task| *task != "embed") {
        let message = format!("Unsupported task: '{task}' Supported tasks: ('generate', 'embed')");
        return Err(ApiError::invalid_param("task", message));
    }
    let encoding = Encoding::of(&request)?;
    let mut answer = request.vectors(&app, &headers, "pooling", None).await?;
    if let Some(response) = encoding.raw(&answer) {
        return Ok(response);
    }
    let pooled = |(index, vector)| Pooled { index, object: "pooling", data: encoding.json(vector) };
    let data = std::mem::take(&mut answer.vectors).into_iter().enumerate().map(pooled).collect();
    Ok(Json(answer.list(data)).into_response())
}
