//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::{Translated, Translation};
use crate::api::answer::sse;
use crate::api::chat::{self, Chat};
use crate::api::request::body::{Body, FastJson};
use crate::api::translated;
use crate::dialects::anthropic::{self, MessageStream};
use crate::dialects::{ChatChunk, Event};
use crate::server::App;
use crate::server::error::ApiError;

/// An error in the format of this API.
pub(in crate::api) struct Refusal(ApiError);

impl<E: Into<ApiError>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0.status, Json(error_object(&self.0))).into_response()
    }
}

fn error_object(error: &ApiError) -> Value {
    anthropic::error(error.status.as_u16(), &error.message)
}

impl Translation for MessageStream {
    fn push(&mut self, chunk: &ChatChunk, out: &mut Vec<Event>) {
        self.push(chunk, out);
    }

    fn finish(&mut self, out: &mut Vec<Event>) {
        self.finish(out);
    }

    fn error(&self, error: &ApiError) -> Event {
        Event { name: "error", data: error_object(error) }
    }
}

pub(in crate::api) async fn messages(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<Value>,
) -> Result<Response, Refusal> {
    let FastJson(request) = body?;
    let (is_streamed, translated) = (request["stream"] == true, anthropic::chat_request(&request));
    drop(request);
    let chat = Chat::start(&app, &headers, translated::chat(translated)?, "chat_completions").await?;
    let (id, model) = (format!("msg_{}", chat.own_id()), chat.model().to_owned());
    if is_streamed {
        let translation = MessageStream::new(id, model);
        return Ok(sse::response(Translated { chat: chat.stream(), translation }));
    }
    let (choice, usage) = chat.whole().await?.into_first();
    Ok(Json(anthropic::message(&id, &model, &choice, usage)).into_response())
}

pub(in crate::api) async fn count_tokens(State(app): State<Arc<App>>, body: Body<Value>) -> Result<Response, Refusal> {
    let FastJson(request) = body?;
    let translated = anthropic::prompt_request(&request);
    drop(request);
    let tokens = chat::count_tokens(&app, translated::chat(translated)?)?;
    Ok(Json(json!({ "input_tokens": tokens })).into_response())
}
