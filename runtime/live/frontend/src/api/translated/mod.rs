//! Streams chats in the format of other APIs.

pub(super) mod messages;
pub(super) mod responses;

use serde_json::Value;

use super::chat::ChatRequest;
use super::chat::answers::Stream;
use crate::api::answer::sse::{Events, Source};
use crate::dialects::{ChatChunk, Event, InvalidRequest};
use crate::server::error::ApiError;

/// Converts the chunks of a chat to events of another API.
pub(super) trait Translation: Send + Sync + 'static {
    /// Appends the events of a chunk.
    fn push(&mut self, chunk: &ChatChunk, out: &mut Vec<Event>);

    /// Appends the final events.
    fn finish(&mut self, out: &mut Vec<Event>);

    fn error(&self, error: &ApiError) -> Event;
}

/// A stream of a chat in the format of another API.
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

/// Deserializes the chat request that a translation produced.
pub(super) fn chat(translated: Result<Value, InvalidRequest>) -> Result<ChatRequest, ApiError> {
    let request = translated.map_err(|error| ApiError::invalid(error.message))?;
    serde_json::from_value(request).map_err(|error| ApiError::invalid(format!("invalid request: {error}")))
}
