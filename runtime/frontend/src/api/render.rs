//! Render endpoints: a request becomes one in tokens, as `/inference/v1/generate` takes
//! it, and nothing is computed.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::Value;

use super::chat::ChatRequest;
use super::completions::CompletionRequest;
use super::quick::{Body, Quick};
use super::rendered::Rendered;
use super::translated;
use crate::dialects::{anthropic, responses};
use crate::server::App;
use crate::server::error::ApiError;

/// Renders a chat.
pub(super) async fn chat(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<ChatRequest>,
) -> Result<Json<Rendered>, ApiError> {
    let Quick(request) = body?;
    request.rendered(&app, &headers, "chatcmpl").map(Json)
}

/// Renders prompts.
pub(super) async fn completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<CompletionRequest>,
) -> Result<Json<Vec<Rendered>>, ApiError> {
    let Quick(request) = body?;
    request.rendered(&app, &headers).map(Json)
}

/// Renders a request of Anthropic's API.
pub(super) async fn messages(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<Value>,
) -> Result<Json<Rendered>, ApiError> {
    let Quick(request) = body?;
    translated::chat(anthropic::chat_request(&request))?.rendered(&app, &headers, "chatcmpl").map(Json)
}

/// Renders a request for a response.
pub(super) async fn responses(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<Value>,
) -> Result<Json<Rendered>, ApiError> {
    let Quick(request) = body?;
    if request["previous_response_id"].is_string() {
        let message = "previous_response_id is not supported by the stateless render endpoint.";
        return Err(ApiError::invalid_param("previous_response_id", message));
    }
    translated::chat(responses::chat_request(&request, &[]))?.rendered(&app, &headers, "resp").map(Json)
}
