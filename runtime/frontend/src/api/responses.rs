//! `POST /v1/responses`: OpenAI's Responses API.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::chat::Chat;
use super::request::Body;
use super::sse;
use super::translated::{self, Translated, Translation};
use crate::dialects::responses::{self, ResponseHead, ResponseStream};
use crate::dialects::{ChatAnswer, ChatDelta, Event};
use crate::server::error::ApiError;
use crate::server::{App, unix_s};

impl Translation for ResponseStream {
    fn push(&mut self, chunk: &ChatDelta, out: &mut Vec<Event>) {
        self.push(chunk, out);
    }

    fn finish(&mut self, out: &mut Vec<Event>) {
        self.finish(out);
    }

    fn error(&self, error: &ApiError) -> Event {
        let data = json!({ "type": "error", "code": error.kind, "message": error.message, "param": error.param });
        Event { name: "error", data }
    }
}

/// Answers requests for a response.
pub(super) async fn responses(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<Value>,
) -> Result<Response, ApiError> {
    let Json(request) = body?;
    // Responses are not stored, as in vLLM without VLLM_ENABLE_RESPONSES_API_STORE.
    if let Some(id) = request["previous_response_id"].as_str() {
        return Err(ApiError::not_found(format!("Response with id '{id}' not found.")));
    }
    let chat = Chat::start(&app, &headers, translated::chat(responses::chat_request(&request, &[]))?)?;
    let head = ResponseHead::new(format!("resp_{}", chat.own_id()), unix_s() as u64, chat.model(), &request);
    if request["stream"] == true {
        let translation = ResponseStream::new(head);
        return Ok(sse::response(Translated { chat: chat.stream(), translation }));
    }
    let completion = serde_json::to_value(chat.whole().await?)
        .map_err(|error| ApiError::internal(format!("cannot write the answer: {error}")))?;
    Ok(Json(responses::response(&head, &ChatAnswer::read(&completion))).into_response())
}
