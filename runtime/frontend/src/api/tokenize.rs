//! `POST /tokenize` and `POST /detokenize`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use vcr_text::Value as Templated;

use super::chat::{check_messages, render};
use super::request::Body;
use crate::media::ChatMedia;
use crate::server::App;
use crate::server::error::ApiError;

/// A text or a chat.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizeRequest {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Templated>>,
    tools: Option<Vec<Templated>>,
    add_special_tokens: Option<bool>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: bool,
    chat_template_kwargs: Option<BTreeMap<String, Templated>>,
    #[serde(default)]
    return_token_strs: Option<bool>,
}

/// The tokens of a text or a chat.
pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Body<TokenizeRequest>,
) -> Result<Json<Value>, ApiError> {
    let Json(request) = body?;
    app.model.resolve(request.model.as_deref())?;
    let tokens = match (&request.messages, &request.prompt) {
        (Some(messages), _) => {
            check_messages(messages)?;
            let (messages, media) = ChatMedia::take(messages, app.model.template.as_ref(), &app.model.media)?;
            let text = render(
                &app.model,
                &messages,
                request.tools.as_deref(),
                None,
                request.add_generation_prompt.unwrap_or(!request.continue_final_message),
                request.continue_final_message,
                request.chat_template_kwargs.as_ref(),
            )?;
            media.prompt(&text, &app.model.tokenizer, request.add_special_tokens.unwrap_or(false))?.0
        }
        (None, Some(prompt)) => app.model.encode(prompt, request.add_special_tokens.unwrap_or(true))?,
        (None, None) => {
            return Err(ApiError::invalid("data did not match any variant of untagged enum TokenizeRequest"));
        }
    };
    let strings = request.return_token_strs.unwrap_or(false).then(|| {
        let text = |token: &u32| app.model.tokenizer.token_text(*token);
        tokens.iter().map(text).collect::<Vec<_>>()
    });
    let (count, max_model_len) = (tokens.len(), app.model.max_model_len);
    Ok(Json(json!({"count": count, "max_model_len": max_model_len, "tokens": tokens, "token_strs": strings})))
}

/// Tokens.
#[derive(Debug, Deserialize)]
pub(super) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// The text of tokens.
pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    body: Body<DetokenizeRequest>,
) -> Result<Json<Value>, ApiError> {
    let Json(request) = body?;
    app.model.resolve(request.model.as_deref())?;
    Ok(Json(json!({"prompt": app.model.tokenizer.decode(&request.tokens, false)})))
}
