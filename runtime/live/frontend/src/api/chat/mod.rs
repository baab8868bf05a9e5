//! `POST /v1/chat/completions`.

pub(super) mod answers;
pub(super) mod message;
pub(super) mod ranges;
pub(super) mod reply;
pub(super) mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;
use tokio::time::sleep;
use vcr_text::{ChatTemplate, TemplateError, TemplateErrorKind, TemplateRequest, Value as Templated};

use self::answers::{Completion, Form, Stream};
use self::ranges::ChatFields;
use self::tools::{OfferedTool, ToolChoice, ToolContext};
use super::answer::gather;
use super::request::{StreamOptions, check_length, check_submission, request_id, submit_all, text_request};
use crate::api::answer::sse;
use crate::api::request::body::{Call, json};
use crate::api::request::prompt::{no_tokens, truncate_to};
use crate::api::request::structured::{ResponseFormat, structure, wire};
use crate::api::tokens::rendered::{Rendered, Rendering};
use crate::generate::Merged;
use crate::media::{ChatMedia, MediaPrompt, shifted};
use crate::parse::Parser;
use crate::server::chats::ChatOptions;
use crate::server::error::ApiError;
use crate::server::frontend_kind::FrontendKind;
use crate::server::model::Model;
use crate::server::{App, Counted, unix_s};

text_request! {
    #[serde(expecting = "struct ChatCompletionRequest")]
    ChatRequest {
        #[serde(deserialize_with = "self::message::messages")]
        messages: Vec<Templated>,
        #[serde(default, deserialize_with = "super::request::or_default")]
        logprobs: bool,
        top_logprobs: Option<i32>,
        max_tokens: Option<u32>,
        max_completion_tokens: Option<u32>,
        response_format: Option<ResponseFormat>,
        tools: Option<Vec<OfferedTool>>,
        tool_choice: Option<ToolChoice>,
        parallel_tool_calls: Option<bool>,
        #[serde(default = "super::request::yes")]
        include_reasoning: bool,
        reasoning_effort: Option<ReasoningEffort>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReasoningEffort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    XHigh,
    Max,
}

impl ReasoningEffort {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::XHigh => "xhigh",
            Self::Max => "max",
        }
    }
}

impl ChatRequest {
    fn check(&self, model: &Model) -> Result<(), ApiError> {
        message::check(&self.messages, model.frontend)?;
        // The Python server checks these fields as sampling parameters.
        match model.frontend {
            FrontendKind::Rust => self.ranges().check()?,
            FrontendKind::Python => self.check_as_python()?,
        }
        check_length(model, "max_completion_tokens", self.max_completion_tokens)?;
        check_length(model, "max_tokens", self.max_tokens.filter(|_| self.max_completion_tokens.is_none()))?;
        if self.echo && self.truncate_prompt_tokens.is_some() {
            return Err(ApiError::invalid_param("echo", "`echo=true` is not supported with `truncate_prompt_tokens`."));
        }
        self.check_shared(model)?;
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

    /// Checks that only the Python server makes, or that it makes differently.
    fn check_as_python(&self) -> Result<(), ApiError> {
        let top = self.top_logprobs.unwrap_or(0);
        if top < -1 {
            return Err(ApiError::invalid_param("top_logprobs", "`top_logprobs` must be a positive value or -1."));
        }
        if top != 0 && !self.logprobs {
            let message = "when using `top_logprobs`, `logprobs` must be set to true.";
            return Err(ApiError::invalid_param("top_logprobs", message));
        }
        if self.max_completion_tokens.or(self.max_tokens) == Some(0) {
            return Err(ApiError::invalid_param("max_tokens", "max_tokens must be at least 1, got 0."));
        }
        if self.continue_final_message && self.add_generation_prompt.unwrap_or(true) {
            let message = "continue_final_message and add_generation_prompt are not compatible.";
            return Err(ApiError::invalid(message));
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

    /// The variables for the template: the server's, then the reasoning effort, then the request's.
    fn template_kwargs(&mut self, options: &ChatOptions) -> BTreeMap<String, Templated> {
        let own = self.chat_template_kwargs.take().unwrap_or_default();
        let mut kwargs = options.template_kwargs.clone();
        if let Some(effort) = self.reasoning_effort {
            kwargs.insert("enable_thinking".to_owned(), (effort != ReasoningEffort::None).into());
        }
        kwargs.extend(own);
        if let Some(effort) = self.reasoning_effort {
            kwargs.insert("reasoning_effort".to_owned(), effort.name().into());
        }
        kwargs
    }

    /// The tools that the request offers, and its tool choice.
    fn tool_context(&mut self) -> Result<ToolContext, ApiError> {
        let is_parallel = self.parallel_tool_calls.unwrap_or(true);
        ToolContext::new(self.tools.take(), &self.messages, self.tool_choice.as_ref(), is_parallel)
    }

    /// Renders and tokenizes the prompt, and refuses text that is far too long. Consumes the messages.
    fn prompt(&mut self, model: &Model, tools: &ToolContext, options: &ChatOptions) -> Result<MediaPrompt, ApiError> {
        let is_cut = self.truncate_prompt_tokens.is_some();
        self.prompt_if(model, tools, options, |text| if is_cut { Ok(()) } else { model.check_text(text) })
    }

    /// Like [`prompt`](Self::prompt), but checks the text with `check`.
    fn prompt_if(
        &mut self,
        model: &Model,
        tools: &ToolContext,
        options: &ChatOptions,
        check: impl FnOnce(&str) -> Result<(), ApiError>,
    ) -> Result<MediaPrompt, ApiError> {
        let kwargs = self.template_kwargs(options);
        let (messages, media) = ChatMedia::take(&self.messages, model.template.as_ref(), &model.media)?;
        let text = render(
            model,
            &messages,
            tools.templated(options).as_deref(),
            self.documents.as_deref(),
            message::generation_prompt(&self.messages, self.add_generation_prompt, self.continue_final_message)?,
            self.continue_final_message,
            Some(&kwargs),
        )?;
        // Free the messages now: the rendered text is as large, and its tokens may take more memory.
        drop(messages);
        self.messages = Vec::new();
        check(&text)?;
        let (mut tokens, media) = media.prompt(&text, &model.tokenizer, self.add_special_tokens)?;
        let len_tokens = tokens.len();
        truncate_to(&mut tokens, self.truncate_prompt_tokens, model.max_model_len)?;
        let media = shifted(media, len_tokens - tokens.len());
        Ok((tokens, media))
    }

    /// Converts the request to tokens, for the render endpoint.
    pub(super) fn rendered(
        mut self,
        with: Rendering<'_>,
        headers: &HeaderMap,
        prefix: &str,
    ) -> Result<Rendered, ApiError> {
        let (model, _) = with.model.resolve(self.model.as_deref())?;
        self.check(with.model)?;
        let id = request_id(with.ids, headers, prefix, self.request_id.as_deref());
        let carried = self.carried(headers);
        let structure = structure(self.response_format.as_ref(), self.structured_outputs.as_ref())?;
        let tools = self.tool_context()?;
        let kwargs = self.chat_template_kwargs.clone();
        let prompt = self.prompt(with.model, &tools, with.chats)?;
        let mut sampling = self.take_sampling();
        sampling.structured_outputs = structure.map(wire);
        sampling.max_tokens = self.max_completion_tokens.or(self.max_tokens);
        sampling.logprobs = self.logprobs.then(|| self.top_logprobs.unwrap_or(0));
        let mut rendered = Rendered::new(id, model, prompt, sampling, carried);
        rendered.set_template_kwargs(kwargs.as_ref());
        Ok(rendered)
    }
}

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
    rendered(template, &request).map_err(|error| match error.kind {
        TemplateErrorKind::Raised | TemplateErrorKind::Request => ApiError::invalid(error.reason),
        TemplateErrorKind::Limit => ApiError::invalid(format!("the chat cannot be rendered: {error}")),
        TemplateErrorKind::Busy => ApiError::unavailable(error.reason),
        _ => ApiError::internal(format!("failed to submit chat request: {error}")),
    })
}

/// Renders a chat. If this may take long, other tasks of this thread move to another thread.
fn rendered(template: &ChatTemplate, request: &TemplateRequest) -> Result<String, TemplateError> {
    let is_many = || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if template.waits() && is_many() {
        return block_in_place(|| template.render_chat(request));
    }
    template.render_chat(request)
}

/// A chat whose requests have been sent to the engines.
pub(super) struct Chat {
    form: Form,
    merged: Merged,
    /// One parser for each answer.
    parsers: Vec<Parser>,
    usages: (bool, bool),
    counted: Counted,
}

impl Chat {
    /// Checks a request, renders its prompt and sends it to the engines. `request_type` is the API's name in
    /// metrics.
    pub(super) async fn start(
        app: &Arc<App>,
        headers: &HeaderMap,
        mut request: ChatRequest,
        request_type: &'static str,
    ) -> Result<Self, ApiError> {
        let counted = app.count();
        let (model, adapter) = app.model.resolve(request.model.as_deref())?;
        request.check(&app.model)?;
        let id = request_id(&app.ids, headers, "chatcmpl", request.request_id.as_deref());
        let place = request.placement(headers, adapter);
        let usages = StreamOptions::usages(request.stream_options.as_ref(), app);
        let top = request.top_logprobs.unwrap_or(0);
        let options = &app.options.chat;
        let structure = structure(request.response_format.as_ref(), request.structured_outputs.as_ref())?;
        let tools = request.tool_context()?;
        let calls = tools.form(options)?;
        let (prompt, media) = request.prompt(&app.model, &tools, options)?;
        let form = Form {
            id,
            created: unix_s() as u64,
            model,
            role: options.response_role.clone().unwrap_or_else(|| "assistant".to_owned()),
            prompt_tokens: prompt.len(),
            prompt_ids: request.return_token_ids.unwrap_or(false).then(|| prompt.clone()),
            n: request.n.unwrap_or(1).max(1) as usize,
            top_logprobs: request.logprobs.then(|| usize::try_from(top).unwrap_or(usize::MAX)),
            tokens_as_ids: request.return_tokens_as_token_ids.unwrap_or(app.options.tokens_as_ids),
            prompt_details: app.options.enable_prompt_tokens_details,
            include_reasoning: request.include_reasoning,
            is_call_named: tools.is_named(),
            ec_transfer_params: app.options.encoder.as_ref().and_then(|encoder| encoder.params(media.as_deref())),
            parsed_for: (calls.is_some() && tools.is_auto()).then_some(request_type),
            image: None,
        };
        if prompt.is_empty() {
            return Err(no_tokens(&form.id, &app.model));
        }
        app.model.check_text_prompt(prompt.len())?;
        let mut sampling = request.take_sampling();
        sampling.structured_outputs = structure.map(wire);
        sampling.max_tokens = request.max_completion_tokens.or(request.max_tokens);
        sampling.logprobs = request.logprobs.then_some(top);
        if request.echo && !request.stream {
            sampling.prompt_logprobs = sampling.prompt_logprobs.or(Some(top));
        }
        let parsed = calls.map(|form| (form, Arc::new(tools.types())));
        let tokens = (&app.model.tokenizer, &prompt[..]);
        let parser =
            |_| Parser::new(options.reasoning.as_ref(), parsed.clone(), tools.calls_max(), app.ids.seed(), tokens);
        let parsers = (0..form.n).map(parser).collect();
        let mut asked = sampling.into_engine_request(&app.model, prompt, place)?;
        asked.request.mm_features = media;
        asked.text.has_spans = options.reasoning.is_some();
        if let Some(form) = calls {
            tools.constrain(form, options, &mut asked);
        }
        check_submission(app, &mut asked).await?;
        let streams = submit_all(app, &form.id, form.n, asked)?;
        Ok(Self { form, merged: Merged::new(streams), parsers, usages, counted })
    }

    /// Adds an image to each text answer. Generating it takes this long.
    fn with_image(mut self, image: Option<Duration>) -> Self {
        self.form.image = image;
        self
    }

    pub(super) fn model(&self) -> &str {
        &self.form.model
    }

    /// The request id without the prefix `chatcmpl-`.
    pub(super) fn own_id(&self) -> &str {
        self.form.id.strip_prefix("chatcmpl-").unwrap_or(&self.form.id)
    }

    pub(super) fn stream(self) -> Stream {
        Stream::new(self.form, self.merged, self.parsers, self.usages, self.counted)
    }

    pub(super) async fn whole(self) -> Result<Completion, ApiError> {
        let answers = gather(self.merged, self.form.n).await?;
        if let Some(time) = self.form.image {
            sleep(time).await;
        }
        Ok(self.form.whole(&answers, self.parsers, &self.counted))
    }
}

/// Counts the tokens of a chat's prompt, which may exceed the model's limit.
pub(super) fn count_tokens(app: &App, mut request: ChatRequest) -> Result<usize, ApiError> {
    app.model.resolve(request.model.as_deref())?;
    message::check(&request.messages, app.model.frontend)?;
    let tools = request.tool_context()?;
    Ok(request.prompt_if(&app.model, &tools, &app.options.chat, |_| Ok(()))?.0.len())
}

pub(super) async fn chat_completions(
    State(app): State<Arc<App>>,
    Call { headers, body: request, given }: Call<ChatRequest>,
) -> Result<Response, ApiError> {
    let is_streamed = request.stream;
    let started = Chat::start(&app, &headers, request, "chat_completions").await.map_err(|error| given.refusal(error));
    drop(given);
    let chat = started?.with_image(app.images.of_chat(&headers));
    if is_streamed {
        return Ok(sse::response(chat.stream()));
    }
    Ok(json(&chat.whole().await?))
}
