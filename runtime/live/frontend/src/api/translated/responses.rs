//! `POST /v1/responses`: OpenAI's Responses API, and stored responses.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{Translated, Translation};
use crate::api::answer::sse;
use crate::api::chat::Chat;
use crate::api::request::body::{Body, FastJson};
use crate::api::translated;
use crate::dialects::responses::{self, ResponseHead, ResponseStream, input_messages};
use crate::dialects::{ChatChunk, Event};
use crate::server::error::ApiError;
use crate::server::responses::{KeyOwner, Repeated, ResponseId, StoredResponse};
use crate::server::{App, unix_s};

/// The API key's owner. An extension holds it if the server has API keys.
type Owner = Option<Extension<KeyOwner>>;

fn owner_of(owner: Owner) -> KeyOwner {
    owner.map_or_else(KeyOwner::default, |Extension(owner)| owner)
}

/// A response that will be stored when it is complete.
struct ResponseSlot {
    app: Arc<App>,
    id: ResponseId,
    owner: KeyOwner,
    /// The messages that the response answers, as a JSON list.
    messages: Bytes,
}

impl ResponseSlot {
    /// Returns none if the response is not to be stored, or storage is off.
    fn new(app: &Arc<App>, id: ResponseId, owner: KeyOwner, messages: &[Value]) -> Option<Self> {
        let messages = app.responses.packed(&messages)?;
        Some(Self { app: Arc::clone(app), id, owner, messages })
    }

    /// Stores a response together with the messages that a continued chat starts with.
    fn store(self, response: &Value) {
        let store = &self.app.responses;
        // Output items have the same format as input items.
        let answer = input_messages(&json!({ "input": response["output"] })).unwrap_or_default();
        if let (Some(response), Some(answer)) = (store.packed(response), store.packed(&answer)) {
            let messages = joined(&self.messages, &answer).into();
            store.insert(self.id, self.owner, StoredResponse { response, messages });
        }
    }
}

/// Concatenates two JSON lists.
fn joined(first: &[u8], second: &[u8]) -> Vec<u8> {
    if first == b"[]" || second == b"[]" {
        return [first, second].into_iter().find(|list| *list != b"[]").unwrap_or(first).to_vec();
    }
    [&first[..first.len() - 1], b",", &second[1..]].concat()
}

/// A streamed response. If it has a slot, it is stored at its end.
struct StoredStream {
    stream: ResponseStream,
    slot: Option<ResponseSlot>,
    _repeated: Repeated,
}

impl Translation for StoredStream {
    fn push(&mut self, chunk: &ChatChunk, out: &mut Vec<Event>) {
        self.stream.push(chunk, out);
    }

    fn finish(&mut self, out: &mut Vec<Event>) {
        let response = self.stream.finish(out);
        if let Some(slot) = self.slot.take() {
            slot.store(&response);
        }
    }

    fn error(&self, error: &ApiError) -> Event {
        self.stream.error(error.kind, &error.message, error.param.as_deref())
    }
}

/// The messages of the response that a request continues.
fn earlier(app: &App, owner: KeyOwner, request: &Value) -> Result<Vec<Value>, ApiError> {
    let Some(id) = request["previous_response_id"].as_str() else { return Ok(Vec::new()) };
    if !id.starts_with("resp_") {
        let message = format!("Invalid 'previous_response_id': '{id}'. Expected an ID that begins with 'resp'.");
        return Err(ApiError::invalid_param("previous_response_id", message));
    }
    let stored = found(app, owner, &ResponseId::given(id))?;
    serde_json::from_slice(&stored.messages)
        .map_err(|error| ApiError::internal(format!("cannot read the stored response: {error}")))
}

/// Finds a stored response. A response of another API key counts as missing.
fn found(app: &App, owner: KeyOwner, id: &ResponseId) -> Result<StoredResponse, ApiError> {
    app.responses.get(id, owner).ok_or_else(|| {
        let hint = match app.responses.is_enabled() {
            true => "",
            false => " This server stores no responses: start it with `--store-responses`.",
        };
        ApiError::not_found(format!("Response with id '{id}' not found.{hint}"))
    })
}

pub(in crate::api) async fn responses(
    State(app): State<Arc<App>>,
    owner: Owner,
    headers: HeaderMap,
    body: Body<Value>,
) -> Result<Response, ApiError> {
    let FastJson(mut request) = body?;
    let owner = owner_of(owner);
    let mut messages = earlier(&app, owner, &request)?;
    if request["background"] == true {
        return Err(ApiError::invalid_param("background", "background is not supported."));
    }
    let translated = responses::chat_request(&request, &messages);
    let id = ResponseId::new().ok_or_else(|| ApiError::internal("the system has no randomness for an id"))?;
    let slot = if request["store"] == false {
        None
    } else {
        messages.extend(input_messages(&request).unwrap_or_default());
        ResponseSlot::new(&app, id.clone(), owner, &messages)
    };
    drop(messages);
    // The chat already has a copy of the input.
    if let Some(fields) = request.as_object_mut() {
        fields.remove("input");
    }
    let repeated = app.repeated.hold(&request).ok_or_else(|| {
        ApiError::unavailable(
            "the metadata and other fields of running responses take too much memory: try again later",
        )
    })?;
    let chat = Chat::start(&app, &headers, translated::chat(translated)?, "responses").await?;
    let head = ResponseHead::new(id.as_str(), unix_s() as u64, chat.model(), &request);
    let is_streamed = request["stream"] == true;
    drop(request);
    if is_streamed {
        let translation = StoredStream { stream: ResponseStream::new(head), slot, _repeated: repeated };
        return Ok(sse::response(Translated { chat: chat.stream(), translation }));
    }
    let (choice, usage) = chat.whole().await?.into_first();
    let response = responses::response(&head, &choice, usage);
    if let Some(slot) = slot {
        slot.store(&response);
    }
    drop(repeated);
    Ok(Json(response).into_response())
}

/// Returns a stored response.
pub(in crate::api) async fn response(
    State(app): State<Arc<App>>,
    owner: Owner,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let stored = found(&app, owner_of(owner), &ResponseId::given(&id))?;
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(([kind], stored.response).into_response())
}

/// Deletes a stored response.
pub(in crate::api) async fn delete(
    State(app): State<Arc<App>>,
    owner: Owner,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let (owner, stored) = (owner_of(owner), ResponseId::given(&id));
    found(&app, owner, &stored)?;
    app.responses.remove(&stored, owner);
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

/// Refuses to cancel a response, because only background responses can be cancelled.
pub(in crate::api) async fn cancel(
    State(app): State<Arc<App>>,
    owner: Owner,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    found(&app, owner_of(owner), &ResponseId::given(&id))?;
    Err(ApiError::invalid_param("response_id", "Cannot cancel a synchronous response."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_joined_as_their_text() {
        for (first, second, both) in
            [("[]", "[]", "[]"), ("[1]", "[]", "[1]"), ("[]", "[2]", "[2]"), ("[1]", "[2,3]", "[1,2,3]")]
        {
            assert_eq!(joined(first.as_bytes(), second.as_bytes()), both.as_bytes());
        }
    }
}
