//! Shared parts of requests for embeddings, pooling, classes and scores.

pub(super) mod classify;
pub(super) mod cohere;
pub(super) mod embed_dtype;
pub(super) mod embeddings;
pub(super) mod score;
pub(super) mod vectors;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vcr_text::Value as Templated;

use super::chat::render;
use super::request::{priority_of, rank_of, request_id, session_of};
use crate::api::chat::message;
use crate::generate::{Placement, Pooling, pooled};
use crate::media::{ChatMedia, MediaPrompt, shifted};
use crate::server::error::ApiError;
use crate::server::model::Model;
use crate::server::{App, unix_s};

/// Fields that all these requests have.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PoolOptions {
    pub(super) model: Option<String>,
    request_id: Option<String>,
    #[serde(default)]
    priority: i64,
    cache_salt: Option<String>,
    truncate_prompt_tokens: Option<i64>,
    truncation_side: Option<Side>,
    pub(super) use_activation: Option<bool>,
    /// The maximum length of a prompt, if longer prompts must be refused rather than cut.
    #[serde(skip)]
    pub(super) refused_above: Option<i64>,
}

/// The side of a long prompt that is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    Left,
    Right,
}

/// Fields of requests whose input is one prompt, several prompts, or a chat.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PoolRequest {
    #[serde(flatten)]
    pub(super) options: PoolOptions,
    input: Option<Value>,
    messages: Option<Value>,
    add_special_tokens: Option<bool>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    chat_template: Option<String>,
    chat_template_kwargs: Option<BTreeMap<String, Templated>>,
    pub(super) dimensions: Option<i64>,
    #[serde(default)]
    pub(super) encoding_format: EncodingFormat,
    pub(super) embed_dtype: Option<String>,
    pub(super) endianness: Option<Endianness>,
    pub(super) task: Option<String>,
    normalize: Option<Value>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EncodingFormat {
    #[default]
    Float,
    Base64,
    Bytes,
    BytesOnly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Endianness {
    Native,
    Little,
    Big,
}

/// Token counts, with vLLM's fields.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PoolUsage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    prompt_tokens_details: Option<()>,
    completion_tokens_details: Option<()>,
}

impl PoolUsage {
    pub(super) fn new(prompt_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            total_tokens: prompt_tokens,
            completion_tokens: 0,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }
}

/// A response with a list of items.
#[derive(Serialize)]
pub(in crate::api) struct List<T> {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<T>,
    usage: PoolUsage,
}

/// The vectors of a response, with its other fields.
pub(super) struct Vectors {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) prompt_tokens: usize,
}

impl Vectors {
    /// Builds the response with these items instead of the vectors.
    pub(super) fn list<T>(self, data: Vec<T>) -> List<T> {
        let Self { id, created, model, prompt_tokens, .. } = self;
        List { id, object: "list", created, model, data, usage: PoolUsage::new(prompt_tokens) }
    }
}

/// One input: a text, tokens, or a chat.
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Chat(Vec<Templated>),
}

impl PoolRequest {
    pub(super) fn prompts(&mut self) -> Result<Vec<Prompt>, ApiError> {
        if self.normalize.is_some() {
            let message = "Parameter `normalize` was removed; use `use_activation` instead.";
            return Err(ApiError::invalid_param("normalize", message));
        }
        if self.add_generation_prompt && self.continue_final_message {
            let message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
            return Err(ApiError::invalid(message));
        }
        if self.chat_template.is_some() {
            return Err(ApiError::invalid(
                "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request \
                 with untrusted chat template.",
            ));
        }
        let prompts = match (self.messages.take(), self.input.take()) {
            (Some(messages), _) => chats(messages, "messages")?,
            (None, Some(input)) => inputs(input)?,
            (None, None) => return Err(ApiError::malformed("missing field `input`")),
        };
        if prompts.is_empty() {
            return Err(ApiError::invalid("You must pass at least one prompt"));
        }
        Ok(prompts)
    }

    fn tokenize(&self, model: &Model, prompt: Prompt) -> Result<MediaPrompt, ApiError> {
        let is_cut = self.options.truncate_prompt_tokens.is_some();
        let check = |text: &str| if is_cut { Ok(()) } else { model.check_text(text) };
        match prompt {
            Prompt::Text(text) => {
                check(&text)?;
                Ok((model.encode(&text, self.add_special_tokens.unwrap_or(true))?, None))
            }
            Prompt::Tokens(tokens) => Ok((tokens, None)),
            Prompt::Chat(messages) => {
                message::check(&messages, model.frontend)?;
                let (messages, media) = ChatMedia::take(&messages, model.template.as_ref(), &model.media)?;
                let text = render(
                    model,
                    &messages,
                    None,
                    None,
                    self.add_generation_prompt,
                    self.continue_final_message,
                    self.chat_template_kwargs.as_ref(),
                )?;
                check(&text)?;
                media.prompt(&text, &model.tokenizer, self.add_special_tokens.unwrap_or(false))
            }
        }
    }

    /// Computes the vectors of the request's prompts.
    pub(super) async fn vectors(
        mut self,
        app: &Arc<App>,
        headers: &HeaderMap,
        prefix: &str,
        dimensions: Option<u32>,
    ) -> Result<Vectors, ApiError> {
        let prompts = self.prompts()?;
        let prompts: Result<Vec<_>, _> = prompts.into_iter().map(|prompt| self.tokenize(&app.model, prompt)).collect();
        let prompts = prompts?;
        self.options.vectors(app, headers, prefix, prompts, dimensions).await
    }
}

impl PoolOptions {
    /// Computes the vectors of these prompts.
    pub(super) async fn vectors(
        &self,
        app: &Arc<App>,
        headers: &HeaderMap,
        prefix: &str,
        mut prompts: Vec<MediaPrompt>,
        dimensions: Option<u32>,
    ) -> Result<Vectors, ApiError> {
        let _counted = app.count();
        let (model, adapter) = app.model.resolve(self.model.as_deref())?;
        for prompt in &mut prompts {
            self.fit(&app.model, prompt)?;
        }
        let id = request_id(&app.ids, headers, prefix, self.request_id.as_deref());
        let place = Placement {
            priority: priority_of(headers).map_or(self.priority, i64::from),
            cache_salt: self.cache_salt.clone(),
            session_id: session_of(headers),
            rank: rank_of(headers),
            adapter,
            least_cached: None,
        };
        let created = unix_s() as u64;
        let prompt_tokens = prompts.iter().map(|(tokens, _)| tokens.len()).sum();
        let pooling = Pooling { dimensions, use_activation: self.use_activation };
        let vectors = pooled(app, &id, prompts, &pooling, &place).await?;
        Ok(Vectors { id, created, model, vectors, prompt_tokens })
    }

    /// Cuts a prompt as requested, and refuses a prompt that is still too long.
    fn fit(&self, model: &Model, (tokens, media): &mut MediaPrompt) -> Result<(), ApiError> {
        let longest = i64::from(model.max_model_len);
        if let Some(asked) = self.truncate_prompt_tokens {
            if asked < -1 {
                let message = "truncate_prompt_tokens must be greater than or equal to -1";
                return Err(ApiError::invalid_param("truncate_prompt_tokens", message));
            }
            if asked > longest {
                return Err(ApiError::invalid(
                    "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation \
                     size.",
                ));
            }
            let kept = usize::try_from(asked).unwrap_or(model.max_model_len as usize);
            let removed = tokens.len().saturating_sub(kept);
            if self.truncation_side == Some(Side::Left) {
                tokens.drain(..removed);
                *media = shifted(media.take(), removed);
            } else {
                tokens.truncate(kept);
            }
        }
        let (len, most) = (tokens.len() as i64, self.refused_above);
        if let Some(most) = most.filter(|most| len > *most) {
            return Err(ApiError::invalid(format!(
                "Input of {len} tokens exceeds max_tokens={most} with truncate=NONE. Set truncate to END or START to \
                 allow truncation."
            )));
        }
        if tokens.is_empty() {
            return Err(ApiError::invalid("The decoder prompt cannot be empty"));
        }
        model.check_prompt(tokens.len())
    }
}

/// Reads a chat, or a list of chats.
fn chats(value: Value, field: &'static str) -> Result<Vec<Prompt>, ApiError> {
    let expected = || ApiError::malformed(format!("{field}: expected a list of messages, or a list of such lists"));
    let Value::Array(items) = value else { return Err(expected()) };
    let chat = |items: Vec<Value>| {
        let is_message = |item: &Value| item["role"].is_string();
        if items.is_empty() || !items.iter().all(is_message) {
            return Err(expected());
        }
        let messages = items.into_iter().map(serde_json::from_value).collect::<Result<_, _>>();
        messages.map(Prompt::Chat).map_err(|_| expected())
    };
    if !items.iter().any(Value::is_array) {
        return Ok(vec![chat(items)?]);
    }
    let several = items.into_iter().map(|item| match item {
        Value::Array(items) => chat(items),
        _ => Err(expected()),
    });
    several.collect()
}

/// Reads one prompt or several: texts, lists of tokens, or chats.
fn inputs(value: Value) -> Result<Vec<Prompt>, ApiError> {
    let expected = || ApiError::malformed("input: expected a text, a list of tokens, a chat, or a list of these");
    let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok()).ok_or_else(expected);
    let tokens = |values: &[Value]| values.iter().map(token).collect::<Result<Vec<_>, _>>().map(Prompt::Tokens);
    match value {
        Value::String(text) => Ok(vec![Prompt::Text(text)]),
        Value::Array(items) => match items.first() {
            Some(Value::Number(_)) => Ok(vec![tokens(&items)?]),
            Some(Value::Object(_)) => chats(Value::Array(items), "input"),
            Some(Value::Array(first)) if first.first().is_some_and(Value::is_object) => {
                chats(Value::Array(items), "input")
            }
            _ => items
                .into_iter()
                .map(|item| match item {
                    Value::String(text) => Ok(Prompt::Text(text)),
                    Value::Array(values) => tokens(&values),
                    _ => Err(expected()),
                })
                .collect(),
        },
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn inputs_have_many_forms() {
        let kinds = |value: Value| -> Result<String, u16> {
            let letter = |prompt: &Prompt| match prompt {
                Prompt::Text(_) => 't',
                Prompt::Tokens(_) => 'i',
                Prompt::Chat(_) => 'c',
            };
            inputs(value).map(|prompts| prompts.iter().map(letter).collect()).map_err(|error| error.status.as_u16())
        };
        let message = json!({"role": "user", "content": "a"});
        for (value, expected) in [
            (json!("a"), "t"),
            (json!(["a", "b"]), "tt"),
            (json!([1, 2]), "i"),
            (json!([[1], [2, 3]]), "ii"),
            (json!([message]), "c"),
            (json!([[message], [message]]), "cc"),
            (json!([]), ""),
        ] {
            assert_eq!(kinds(value.clone()).as_deref(), Ok(expected), "{value}");
        }
        for value in [json!(1), json!([1, "a"]), json!([-1]), json!([{}]), json!({}), json!(["a", 1])] {
            assert_eq!(kinds(value.clone()), Err(400), "{value}");
        }
    }
}
