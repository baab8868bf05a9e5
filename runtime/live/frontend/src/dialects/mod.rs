//! The other APIs of the frontend: Anthropic's Messages and OpenAI's Responses.
//!
//! Both are translations, as in vLLM: a request becomes a chat completion, and the answer, complete or in chunks,
//! is written in the API's format. This module knows nothing about engines, HTTP or time. Ids and times are
//! arguments, so equal inputs give equal outputs.

pub mod anthropic;
mod chat;
pub(crate) mod responses;

pub(crate) use chat::{
    Call, CallDelta, CalledFunction, ChatChunk, ChatLogprob, Choice, ChoiceLogprobs, ChunkChoice, Delta, Message,
};

use serde_json::Value;

/// A request that cannot be translated: HTTP status 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct InvalidRequest {
    /// The problem, for the user.
    pub(crate) message: String,
    /// The invalid parameter, such as `messages[2].content`.
    pub(crate) param: Option<String>,
}

impl InvalidRequest {
    fn new(param: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let param = param.into();
        Self { message: format!("invalid {param}: {problem}"), param: Some(param) }
    }
}

/// A server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// The name, on the `event:` line.
    pub(crate) name: &'static str,
    /// The JSON, on the `data:` line.
    pub(crate) data: Value,
}

/// Reads a JSON string. An error names `param`.
fn text<'a>(value: &'a Value, param: &str) -> Result<&'a str, InvalidRequest> {
    value.as_str().ok_or_else(|| InvalidRequest::new(param, "expected a string"))
}

/// Reads a JSON list. An error names `param`.
fn list<'a>(value: &'a Value, param: &str) -> Result<&'a [Value], InvalidRequest> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| InvalidRequest::new(param, "expected a list"))
}

/// Returns a field that is present and not null.
fn given<'a>(value: &'a Value, field: &str) -> Option<&'a Value> {
    value.get(field).filter(|value| !value.is_null())
}

/// Copies fields that have the same meaning in both APIs.
fn copy(from: &Value, names: &[&str], to: &mut serde_json::Map<String, Value>) {
    for name in names {
        if let Some(value) = given(from, name) {
            to.insert((*name).to_owned(), value.clone());
        }
    }
}
