//! Streams of chats in the words of other APIs.

pub(super) mod messages;
pub(super) mod responses;

use serde_json::Value;

use super::chat::ChatRequest;
use crate::api::answer::sse::{Events, Source};
use crate::dialects::{ChatDelta, Event, InvalidRequest};
use crate::server::error::ApiError;

/// Translation of the chunks of a chat into events of another API.
pub(super) trait Translation: Send + Sync + 'static {
    /// Appends the events of a chunk.
    fn push(&mut self, chunk: &ChatDelta, out: &mut Vec<Event>);

    /// Appends the events of the end.
    fn finish(&mut self, out: &mut Vec<Event>);

    /// The event of an error.
    fn error(&self, error: &ApiError) -> Event;
}

/// A stream of a chat in the words of another API.
pub(super) struct Translated<S, T> {
    pub(super) chat: S,
    pub(super) translation: T,
}

impl<S: Source + Sync, T: Translation> Source for Translated<S, T> {
    const HAS_DONE: bool = false;

    async fn next(&mut self, out: &mut Events) -> Result<bool, ApiError> {
        let mut chunks = Events::default();
        let goes_on = self.chat.next(&mut chunks).await?;
        let mut events = Vec::new();
        for chunk in chunks.take_json() {
            self.translation.push(&ChatDelta::read(&chunk), &mut events);
        }
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
