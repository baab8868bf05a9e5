//! Streams of chats in the words of other APIs.

pub(super) mod messages;
pub(super) mod responses;

use serde_json::Value;

use super::chat::ChatRequest;
use super::chat::answers::Stream;
use crate::api::answer::sse::{Events, Source};
use crate::dialects::{ChatChunk, Event, InvalidRequest};
use crate::server::error::ApiError;

/// Translation of the chunks of a chat into events of another API.
pub(super) trait Translation: Send + Sync + 'static {
    /// Appends the events of a chunk.
    fn push(&mut self, chunk: &ChatChunk, out: &mut Vec<Event>);

    /// Appends the events of the end.
    fn finish(&mut self, out: &mut Vec<Event>);

    fn error(&self, error: &ApiError) -> Event;
}

/// A stream of a chat in the words of another API.
pub(super) struct Translated<T> {
    pub(super) chat: Stream,
    pub(super) translation: T,
}

impl<T: Translation> Source for Translated<T> {
    const HAS_DONE: bool = false;

    async fn next(&mut self, out: &mut Events) -> Result<bool, ApiError> {
        let mut events = Vec::new();
        let goes_on = self.chat.advance(&mut |_, chunk| self.translation.push(&chunk, &mut events)).await?;
        if !goes_on {
            self.translation.finish(&mut events);
        }
        for event in events {
            out.push_named(event.name, &event.data);
        }
        Ok(goes_on)
    }

    fn fail(&self, error: &ApiError, out: &mut Events) {
        let event = self.translation.error(error);
        out.push_named(event.name, &event.data);
    }
}

/// The chat that a translated request asks for.
pub(super) fn chat(translated: Result<Value, InvalidRequest>) -> Result<ChatRequest, ApiError> {
    let request = translated.map_err(|error| ApiError::invalid(error.message))?;
    serde_json::from_value(request).map_err(|error| ApiError::invalid(format!("invalid request: {error}")))
}
