//! `POST /v1/responses`: OpenAI's Responses API, and the responses that it keeps.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::{Translated, Translation};
use crate::api::answer::sse;
use crate::api::chat::Chat;
use crate::api::request::body::{Body, FastJson};
use crate::api::translated;
use crate::dialects::responses::{self, ResponseHead, ResponseStream, input_messages};
use crate::dialects::{ChatAnswer, ChatDelta, Event};
use crate::server::error::ApiError;
use crate::server::responses::StoredResponse;
use crate::server::{App, unix_s};

/// Where a response is kept when it is complete.
struct ResponseSlot {
    app: Arc<App>,
    id: String,
    /// The chat that it answers.
    messages: Vec<Value>,
}

impl ResponseSlot {
    /// Keeps a response; its answer is a part of the chat that goes on from it.
    fn store(self, response: &Value) {
        let mut messages = self.messages;
        // Items of an answer are items of an input.
        messages.extend(input_messages(&json!({ "input": response["output"] })).unwrap_or_default());
        self.app.responses.insert(&self.id, StoredResponse { response: response.clone(), messages });
    }
}

/// A streamed response, which is kept in the end if it has a slot.
struct StoredStream {
    stream: ResponseStream,
    slot: Option<ResponseSlot>,
}

impl Translation for StoredStream {
    fn push(&mut self, chunk: &ChatDelta, out: &mut Vec<Event>) {
        self.stream.push(chunk, out);
    }

    fn finish(&mut self, out: &mut Vec<Event>) {
        let response = self.stream.finish(out);
        if let Some(slot) = self.slot.take() {
            slot.store(&response);
        }
    }

    fn error(&self, error: &ApiError) -> Event {
        let data = json!({ "type": "error", "code": error.kind, "message": error.message, "param": error.param });
        Event { name: "error", data }
    }
}

/// The chat before a request: that of the response which it continues.
fn earlier(app: &App, request: &Value) -> Result<Vec<Value>, ApiError> {
    let Some(id) = request["previous_response_id"].as_str() else { return Ok(Vec::new()) };
    if !id.starts_with("resp_") {
        let message = format!("Invalid 'previous_response_id': '{id}'. Expected an ID that begins with 'resp'.");
        return Err(ApiError::invalid_param("previous_response_id", message));
    }
    Ok(found(app, id)?.messages)
}

fn found(app: &App, id: &str) -> Result<StoredResponse, ApiError> {
    app.responses.get(id).ok_or_else(|| ApiError::not_found(format!("Response with id '{id}' not found.")))
}

/// Answers requests for a response.
pub(in crate::api) async fn responses(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<Value>,
) -> Result<Response, ApiError> {
    let FastJson(mut request) = body?;
    let mut messages = earlier(&app, &request)?;
    if request["background"] == true {
        return Err(ApiError::invalid_param("background", "background is not supported."));
    }
    let translated = responses::chat_request(&request, &messages);
    messages.extend(input_messages(&request).unwrap_or_default());
    // The chat has its text by now.
    if let Some(fields) = request.as_object_mut() {
        fields.remove("input");
    }
    let chat = Chat::start(&app, &headers, translated::chat(translated)?)?;
    let id = format!("resp_{}", chat.own_id());
    let head = ResponseHead::new(id.clone(), unix_s() as u64, chat.model(), &request);
    let slot = (request["store"] != false).then(|| ResponseSlot { app: Arc::clone(&app), id, messages });
    if request["stream"] == true {
        let translation = StoredStream { stream: ResponseStream::new(head), slot };
        return Ok(sse::response(Translated { chat: chat.stream(), translation }));
    }
    let completion = serde_json::to_value(chat.whole().await?)
        .map_err(|error| ApiError::internal(format!("cannot write the answer: {error}")))?;
    let response = responses::response(&head, &ChatAnswer::read(&completion));
    if let Some(slot) = slot {
        slot.store(&response);
    }
    Ok(Json(response).into_response())
}

/// A response that is kept.
pub(in crate::api) async fn response(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(found(&app, &id)?.response))
}

/// Forgets a response.
pub(in crate::api) async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    found(&app, &id)?;
    app.responses.remove(&id);
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

/// Refuses to cancel a response: only those made in the background can be.
pub(in crate::api) async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    found(&app, &id)?;
    Err(ApiError::invalid_param("response_id", "Cannot cancel a synchronous response."))
}
