//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use vcr_text::{TemplateErrorKind, TemplateRequest, Value as Templated};

use super::logprobs::{chat_logprobs, prompt_logprobs};
use super::message;
use super::prompt::{no_tokens, truncate_to};
use super::ranges::ChatFields;
use super::request::{Body, StreamOptions, request_id, submit, text_request};
use super::run::{Answer, failure, gather, stop_reason};
use super::sse::{self, Events, Source};
use super::usage::Usage;
use crate::generate::{Merged, Piece};
use crate::server::error::ApiError;
use crate::server::model::Model;
use crate::server::{App, Counted, unix_s};

text_request! {
    /// The body of a request.
    #[serde(expecting = "struct ChatCompletionRequest")]
    ChatRequest {
        #[serde(deserialize_with = "super::message::messages")]
        messages: Vec<Templated>,
        #[serde(default, deserialize_with = "super::request::or_default")]
        logprobs: bool,
        top_logprobs: Option<i32>,
        max_tokens: Option<u32>,
        max_completion_tokens: Option<u32>,
        tools: Option<Vec<Templated>>,
        documents: Option<Vec<Templated>>,
        add_generation_prompt: Option<bool>,
        #[serde(default)]
        continue_final_message: bool,
        #[serde(default)]
        add_special_tokens: bool,
        #[serde(default)]
        echo: bool,
        chat_template: Option<String>,
        chat_template_kwargs: Option<BTreeMap<String, Templated>>,
    }
}

impl ChatRequest {
    fn check(&self) -> Result<(), ApiError> {
        message::check(&self.messages)?;
        self.ranges().check()?;
        if self.echo && self.truncate_prompt_tokens.is_some() {
            return Err(ApiError::invalid_param("echo", "`echo=true` is not supported with `truncate_prompt_tokens`."));
        }
        self.check_shared()?;
        if self.tools.as_ref().is_some_and(Vec::is_empty) {
            return Err(ApiError::invalid_param(
                "tools",
                "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
            ));
        }
        if self.chat_template.is_some() {
            return Err(ApiError::untrusted_template());
        }
        Ok(())
    }

    fn ranges(&self) -> ChatFields {
        ChatFields {
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            temperature: self.temperature,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs,
            max_tokens: self.max_completion_tokens.or(self.max_tokens),
            min_tokens: self.min_tokens,
            n: self.n,
            prompt_logprobs: self.prompt_logprobs,
            stream: self.stream,
            has_stream_options: StreamOptions::check(self.stream_options.as_ref(), false).is_err(),
        }
    }

    /// The tokens of its prompt.
    fn prompt(&mut self, model: &Model) -> Result<Vec<u32>, ApiError> {
        let text = render(
            model,
            &self.messages,
            self.tools.as_deref(),
            self.documents.as_deref(),
            message::generation_prompt(&self.messages, self.add_generation_prompt, self.continue_final_message)?,
            self.continue_final_message,
            self.chat_template_kwargs.as_ref(),
        )?;
        let mut tokens = model.encode(&text, self.add_special_tokens)?;
        truncate_to(&mut tokens, self.truncate_prompt_tokens, model.max_model_len)?;
        Ok(tokens)
    }
}

/// The text of a chat.
pub(super) fn render(
    model: &Model,
    messages: &[Templated],
    tools: Option<&[Templated]>,
    documents: Option<&[Templated]>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    kwargs: Option<&BTreeMap<String, Templated>>,
) -> Result<String, ApiError> {
    let Some(template) = &model.template else {
        return Err(ApiError::invalid(
            "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template \
             if the tokenizer does not define one.",
        ));
    };
    let list = |values: &[Templated]| values.iter().cloned().collect::<Templated>();
    let request = TemplateRequest {
        messages: list(messages),
        tools: tools.map(list),
        documents: documents.map(list),
        add_generation_prompt,
        continue_final_message,
        kwargs: kwargs.cloned().unwrap_or_default(),
        now_s: Some(unix_s() as i64),
    };
    template.render_chat(&request).map_err(|error| match error.kind {
        TemplateErrorKind::Raised | TemplateErrorKind::Request => ApiError::invalid(error.reason),
        _ => ApiError::internal(format!("failed to submit chat request: {error}")),
    })
}

/// What the answers look like.
struct Form {
    id: String,
    created: u64,
    model: String,
    role: String,
    prompt: Vec<u32>,
    n: usize,
    /// Likeliest tokens to show, if logprobs are.
    top_logprobs: Option<usize>,
    returns_token_ids: bool,
    tokens_as_ids: bool,
    prompt_details: bool,
}

/// A chat whose requests are with the engines.
pub(super) struct Chat {
    form: Form,
    merged: Merged,
    usages: (bool, bool),
    counted: Counted,
}

impl Chat {
    /// Checks a request, renders its prompt and hands it to the engines.
    pub(super) fn start(app: &Arc<App>, headers: &HeaderMap, mut request: ChatRequest) -> Result<Self, ApiError> {
        let counted = app.count();
        let (model, adapter) = app.model.resolve(request.model.as_deref())?;
        request.check()?;
        let id = request_id(app, headers, "chatcmpl", request.request_id.as_deref());
        let place = request.placement(headers, adapter);
        let usages = StreamOptions::usages(request.stream_options.as_ref());
        let top = request.top_logprobs.unwrap_or(0);
        let form = Form {
            id,
            created: unix_s() as u64,
            model,
            role: "assistant".to_owned(),
            prompt: request.prompt(&app.model)?,
            n: request.n.unwrap_or(1).max(1) as usize,
            top_logprobs: request.logprobs.then(|| usize::try_from(top).unwrap_or(usize::MAX)),
            returns_token_ids: request.return_token_ids.unwrap_or(false),
            tokens_as_ids: request.return_tokens_as_token_ids.unwrap_or(false),
            prompt_details: app.options.enable_prompt_tokens_details,
        };
        if form.prompt.is_empty() {
            return Err(no_tokens(&form.id));
        }
        let mut sampling = request.take_sampling();
        sampling.max_tokens = request.max_completion_tokens.or(request.max_tokens);
        sampling.logprobs = request.logprobs.then_some(top);
        if request.echo && !request.stream {
            sampling.prompt_logprobs = sampling.prompt_logprobs.or(Some(top));
        }
        let asked = sampling.ask(&app.model, form.prompt.clone(), place)?;
        let mut streams = Vec::with_capacity(form.n);
        for index in 0..form.n {
            streams.push(submit(app, &form.id, index, form.n, asked.clone())?);
        }
        Ok(Self { form, merged: Merged::new(streams), usages, counted })
    }

    /// The name of the model that answers.
    pub(super) fn model(&self) -> &str {
        &self.form.model
    }

    /// Its id without the prefix that says which API it came by.
    pub(super) fn own_id(&self) -> &str {
        self.form.id.strip_prefix("chatcmpl-").unwrap_or(&self.form.id)
    }

    /// The events of its stream.
    pub(super) fn stream(self) -> impl Source {
        Stream::new(self.form, self.merged, self.usages, self.counted)
    }

    /// Waits for its answers.
    pub(super) async fn whole(self) -> Result<impl Serialize, ApiError> {
        let answers = gather(self.merged, self.form.n).await?;
        Ok(self.form.whole(&answers))
    }
}

/// The number of tokens of a chat's prompt.
pub(super) fn count_tokens(app: &App, mut request: ChatRequest) -> Result<usize, ApiError> {
    app.model.resolve(request.model.as_deref())?;
    message::check(&request.messages)?;
    Ok(request.prompt(&app.model)?.len())
}

/// Answers chats.
pub(super) async fn chat_completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let Json(request) = body?;
    let is_streamed = request.stream;
    let chat = Chat::start(&app, &headers, request)?;
    if is_streamed {
        return Ok(sse::response(chat.stream()));
    }
    Ok(Json(chat.whole().await?).into_response())
}

#[derive(Serialize)]
struct Completion {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<Choice>,
    service_tier: Option<String>,
    usage: Usage,
    metrics: Option<Value>,
    system_fingerprint: Option<String>,
    prompt_logprobs: Option<Value>,
    prompt_token_ids: Option<Vec<u32>>,
    prompt_text: Option<String>,
    kv_transfer_params: Option<Value>,
    ec_transfer_params: Option<Value>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChoiceLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<Value>,
    token_ids: Option<Vec<u32>>,
    routed_experts: Option<String>,
    weight_versions: Option<Value>,
}

#[derive(Serialize)]
struct Message {
    role: String,
    content: Option<String>,
    refusal: Option<String>,
    annotations: Option<Value>,
    audio: Option<Value>,
    function_call: Option<Value>,
    reasoning: Option<String>,
}

#[derive(Serialize)]
struct ChoiceLogprobs {
    content: Vec<Value>,
}

impl Form {
    fn logprobs(&self, positions: &[crate::generate::Position]) -> Option<ChoiceLogprobs> {
        self.top_logprobs.map(|top| ChoiceLogprobs { content: chat_logprobs(positions, top, self.tokens_as_ids) })
    }

    fn whole(&self, answers: &[Answer]) -> Completion {
        let choice = |(index, answer): (usize, &Answer)| Choice {
            index,
            message: Message {
                role: self.role.clone(),
                content: (!answer.text.is_empty()).then(|| answer.text.clone()),
                refusal: None,
                annotations: None,
                audio: None,
                function_call: None,
                reasoning: None,
            },
            logprobs: self.logprobs(&answer.logprobs),
            finish_reason: answer.reason(),
            stop_reason: answer.stop_reason(),
            token_ids: self.returns_token_ids.then(|| answer.tokens.clone()),
            routed_experts: None,
            weight_versions: None,
        };
        let output_tokens = answers.iter().map(|answer| answer.tokens.len()).sum();
        let cached = answers.first().map_or(0, |answer| answer.cached_tokens as usize);
        let of_prompt = answers.first().and_then(|answer| answer.prompt_logprobs.as_ref());
        Completion {
            id: self.id.clone(),
            object: "chat.completion",
            created: self.created,
            model: self.model.clone(),
            choices: answers.iter().enumerate().map(choice).collect(),
            service_tier: None,
            usage: Usage::new(self.prompt.len(), output_tokens, self.prompt_details.then_some(cached)),
            metrics: None,
            system_fingerprint: None,
            prompt_logprobs: of_prompt
                .and_then(|positions| serde_json::to_value(prompt_logprobs(positions, false)).ok()),
            prompt_token_ids: self.returns_token_ids.then(|| self.prompt.clone()),
            prompt_text: None,
            kv_transfer_params: answers.first().and_then(Answer::kv_transfer_params),
            ec_transfer_params: None,
        }
    }
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
}

#[derive(Default, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<ChoiceLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

struct Stream {
    form: Form,
    merged: Merged,
    include_usage: bool,
    continuous_usage: bool,
    /// Output tokens of each answer.
    output_tokens: Vec<usize>,
    cached_tokens: usize,
    has_begun: bool,
    _counted: Counted,
}

impl Stream {
    fn new(form: Form, merged: Merged, (include_usage, continuous_usage): (bool, bool), counted: Counted) -> Self {
        let output_tokens = vec![0; form.n];
        Self {
            form,
            merged,
            include_usage,
            continuous_usage,
            output_tokens,
            cached_tokens: 0,
            has_begun: false,
            _counted: counted,
        }
    }

    fn push(&self, out: &mut Events, choice: ChunkChoice) {
        let output_tokens = self.output_tokens[choice.index];
        let is_first = choice.delta.role.is_some() && self.form.returns_token_ids;
        let usage = self.continuous_usage.then(|| Usage::new(self.form.prompt.len(), output_tokens, None));
        self.push_chunk(out, &[choice], usage, is_first.then_some(&self.form.prompt));
    }

    fn push_chunk(&self, out: &mut Events, choices: &[ChunkChoice], usage: Option<Usage>, prompt: Option<&Vec<u32>>) {
        let Form { id, created, model, .. } = &self.form;
        let prompt_token_ids = prompt.map(Vec::as_slice);
        let object = "chat.completion.chunk";
        out.push(&Chunk { id, object, created: *created, model, choices, usage, prompt_token_ids });
    }

    fn take(&mut self, out: &mut Events, index: usize, piece: Piece) -> Result<(), ApiError> {
        if let Some(error) = piece.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        self.output_tokens[index] += piece.tokens.len();
        self.cached_tokens = piece.cached_tokens.map_or(self.cached_tokens, |cached| cached as usize);
        let is_shown = !piece.text.is_empty() || self.form.top_logprobs.is_some() || self.form.returns_token_ids;
        if is_shown && !(piece.tokens.is_empty() && piece.text.is_empty()) {
            let choice = ChunkChoice {
                index,
                delta: Delta { role: None, content: Some(piece.text) },
                logprobs: self.form.logprobs(&piece.logprobs),
                token_ids: self.form.returns_token_ids.then_some(piece.tokens),
                ..ChunkChoice::default()
            };
            self.push(out, choice);
        }
        if let Some(finish) = &piece.finish {
            let finish_reason = Some(finish.reason.name());
            let choice =
                ChunkChoice { index, finish_reason, stop_reason: stop_reason(finish), ..ChunkChoice::default() };
            self.push(out, choice);
        }
        Ok(())
    }
}

impl Source for Stream {
    async fn next(&mut self, out: &mut Events) -> Result<bool, ApiError> {
        if !std::mem::replace(&mut self.has_begun, true) {
            for index in 0..self.form.n {
                let delta = Delta { role: Some(self.form.role.clone()), content: None };
                self.push(out, ChunkChoice { index, delta, ..ChunkChoice::default() });
            }
            return Ok(true);
        }
        if let Some((index, piece)) = self.merged.next().await? {
            self.take(out, index, piece)?;
            return Ok(true);
        }
        if self.include_usage {
            let output_tokens = self.output_tokens.iter().sum();
            let cached = self.form.prompt_details.then_some(self.cached_tokens);
            self.push_chunk(out, &[], Some(Usage::new(self.form.prompt.len(), output_tokens, cached)), None);
        }
        Ok(false)
    }
}
