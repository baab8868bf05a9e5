//! Render endpoints. They convert a request to the tokenized form that `/inference/v1/generate` accepts, and
//! compute nothing.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Serialize;
use serde_json::Value;

use super::rendered::{Rendered, Rendering};
use crate::api::chat::ChatRequest;
use crate::api::completions::CompletionRequest;
use crate::api::request::body::{Body, FastJson, read};
use crate::api::translated;
use crate::dialects::{anthropic, responses};
use crate::server::App;
use crate::server::chats::ChatOptions;
use crate::server::error::ApiError;
use crate::server::ids::RequestIds;
use crate::server::model::Model;

/// APIs whose requests can be rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenderedApi {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/responses`.
    Responses,
}

/// Renders a request body like the render endpoint of its API, without a server.
pub fn render_body(api: RenderedApi, body: &[u8], model: &Model, chats: &ChatOptions) -> Result<Value, ApiError> {
    fn json(rendered: impl Serialize) -> Result<Value, ApiError> {
        serde_json::to_value(rendered)
            .map_err(|error| ApiError::internal(format!("cannot write the rendered request: {error}")))
    }
    let (ids, headers) = (RequestIds::new(), HeaderMap::new());
    let with = Rendering { model, chats, ids: &ids };
    match api {
        RenderedApi::Chat => json(read::<ChatRequest>(body)?.rendered(with, &headers, CHAT_PREFIX)?),
        RenderedApi::Completions => json(read::<CompletionRequest>(body)?.rendered(with, &headers)?),
        RenderedApi::Messages => json(rendered_messages(&read(body)?, with, &headers)?),
        RenderedApi::Responses => json(rendered_response(&read(body)?, with, &headers)?),
    }
}

/// The id prefix of chats.
const CHAT_PREFIX: &str = "chatcmpl";

fn rendered_messages(request: &Value, with: Rendering<'_>, headers: &HeaderMap) -> Result<Rendered, ApiError> {
    translated::chat(anthropic::chat_request(request))?.rendered(with, headers, CHAT_PREFIX)
}

fn rendered_response(request: &Value, with: Rendering<'_>, headers: &HeaderMap) -> Result<Rendered, ApiError> {
    if request["previous_response_id"].is_string() {
        let message = "previous_response_id is not supported by the stateless render endpoint.";
        return Err(ApiError::invalid_param("previous_response_id", message));
    }
    translated::chat(responses::chat_request(request, &[]))?.rendered(with, headers, "resp")
}

pub(in crate::api) async fn chat(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<ChatRequest>,
) -> Result<Json<Rendered>, ApiError> {
    let FastJson(request) = body?;
    request.rendered(Rendering::of(&app), &headers, CHAT_PREFIX).map(Json)
}

pub(in crate::api) async fn completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<CompletionRequest>,
) -> Result<Json<Vec<Rendered>>, ApiError> {
    let FastJson(request) = body?;
    request.rendered(Rendering::of(&app), &headers).map(Json)
}

pub(in crate::api) async fn messages(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<Value>,
) -> Result<Json<Rendered>, ApiError> {
    let FastJson(request) = body?;
    rendered_messages(&request, Rendering::of(&app), &headers).map(Json)
}

pub(in crate::api) async fn responses(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<Value>,
) -> Result<Json<Rendered>, ApiError> {
    let FastJson(request) = body?;
    rendered_response(&request, Rendering::of(&app), &headers).map(Json)
}
