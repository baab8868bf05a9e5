//! `POST /tokenize` and `POST /detokenize`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use vcr_text::Value as Templated;

use crate::api::chat::message;
use crate::api::chat::render;
use crate::api::request::body::{Body, FastJson};
use crate::api::request::{check_named, yes};
use crate::media::ChatMedia;
use crate::server::App;
use crate::server::error::ApiError;
use crate::server::model::Model;

/// A chat, or otherwise a text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(in crate::api) enum TokenizeRequest {
    Chat(ChatTokens),
    Text(TextTokens),
}

#[derive(Debug, Deserialize)]
pub(in crate::api) struct ChatTokens {
    model: Option<String>,
    #[serde(deserialize_with = "crate::api::chat::message::messages")]
    messages: Vec<Templated>,
    tools: Option<Vec<Templated>>,
    #[serde(default)]
    add_special_tokens: bool,
    #[serde(default = "yes")]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    chat_template: Option<String>,
    chat_template_kwargs: Option<BTreeMap<String, Templated>>,
    return_token_strs: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(in crate::api) struct TextTokens {
    model: Option<String>,
    prompt: String,
    #[serde(default = "yes")]
    add_special_tokens: bool,
    return_token_strs: Option<bool>,
}

impl ChatTokens {
    fn tokens(&self, model: &Model) -> Result<Vec<u32>, ApiError> {
        message::check(&self.messages, model.frontend)?;
        if self.chat_template.is_some() {
            return Err(ApiError::untrusted_template());
        }
        let adds =
            message::generation_prompt(&self.messages, Some(self.add_generation_prompt), self.continue_final_message)?;
        let (tools, kwargs) = (self.tools.as_deref(), self.chat_template_kwargs.as_ref());
        let (messages, media) = ChatMedia::take(&self.messages, model.template.as_ref(), &model.media)?;
        let text = render(model, &messages, tools, None, adds, self.continue_final_message, kwargs)?;
        Ok(media.prompt(&text, &model.tokenizer, self.add_special_tokens)?.0)
    }
}

/// The tokens of a text or chat. This type is serialized directly: a list of JSON values would take eight times the
/// memory.
#[derive(Debug, Serialize)]
pub(in crate::api) struct Tokens {
    count: usize,
    max_model_len: u32,
    token_strs: Option<Vec<String>>,
    tokens: Vec<u32>,
}

pub(in crate::api) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Body<TokenizeRequest>,
) -> Result<Json<Tokens>, ApiError> {
    let FastJson(request) = body?;
    let (model, names) = match &request {
        TokenizeRequest::Chat(chat) => (&chat.model, chat.return_token_strs),
        TokenizeRequest::Text(text) => (&text.model, text.return_token_strs),
    };
    check_named(model.as_deref(), &app.model)?;
    app.model.resolve(model.as_deref())?;
    let tokens = match &request {
        TokenizeRequest::Chat(chat) => chat.tokens(&app.model)?,
        TokenizeRequest::Text(text) => app.model.encode(&text.prompt, text.add_special_tokens)?,
    };
    let token_strs = names.unwrap_or(false).then(|| {
        let name = |token: &u32| app.model.tokenizer.token_name(*token);
        tokens.iter().map(name).collect()
    });
    Ok(Json(Tokens { count: tokens.len(), max_model_len: app.model.max_model_len, token_strs, tokens }))
}

#[derive(Debug, Deserialize)]
pub(in crate::api) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
}

pub(in crate::api) async fn detokenize(
    State(app): State<Arc<App>>,
    body: Body<DetokenizeRequest>,
) -> Result<Json<Value>, ApiError> {
    let FastJson(request) = body?;
    check_named(request.model.as_deref(), &app.model)?;
    app.model.resolve(request.model.as_deref())?;
    Ok(Json(json!({"prompt": app.model.tokenizer.decode(&request.tokens, false)})))
}

/// The tokenizer's configuration, if the server is allowed to return it.
pub(in crate::api) async fn tokenizer_info(State(app): State<Arc<App>>) -> Json<Value> {
    Json(app.options.tokenizer_info.clone().unwrap_or_default())
}
