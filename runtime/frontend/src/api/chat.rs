//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use vcr_finish_reason::FinishReason;
use vcr_text::{TemplateErrorKind, TemplateRequest, Value as Templated};

use super::logprobs::{chat_logprobs, prompt_logprobs};
use super::message;
use super::prompt::{no_tokens, truncate_to};
use super::quick::Quick;
use super::ranges::ChatFields;
use super::rendered::Rendered;
use super::reply::{Delta, Message, Progress, Reply, Update};
use super::request::{StreamOptions, request_id, submit, text_request};
use super::run::{Answer, failure, gather, stop_reason};
use super::sse::{self, Events, Source};
use super::structured::{ResponseFormat, checked_wire, structure, wire};
use super::tools::{OfferedTool, ToolChoice, ToolContext};
use super::usage::Usage;
use crate::generate::{Finish, Merged, Piece};
use crate::media::{ChatMedia, MediaPrompt, shifted};
use crate::parse::Parser;
use crate::server::chats::ChatOptions;
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

/// How much is to be reasoned.
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

    /// Variables of its template: the server's, its own, and its effort.
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

    /// The tools that it offers and wants.
    fn tool_context(&mut self) -> Result<ToolContext, ApiError> {
        let is_parallel = self.parallel_tool_calls.unwrap_or(true);
        ToolContext::new(self.tools.take(), &self.messages, self.tool_choice.as_ref(), is_parallel)
    }

    /// The tokens of its prompt, and the media in it.
    fn prompt(&mut self, model: &Model, tools: &ToolContext, options: &ChatOptions) -> Result<MediaPrompt, ApiError> {
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
        let (mut tokens, media) = media.prompt(&text, &model.tokenizer, self.add_special_tokens)?;
        let len_tokens = tokens.len();
        truncate_to(&mut tokens, self.truncate_prompt_tokens, model.max_model_len)?;
        let media = shifted(media, len_tokens - tokens.len());
        Ok((tokens, media))
    }
}

impl ChatRequest {
    /// The request in tokens, as render endpoints answer it.
    pub(super) fn rendered(mut self, app: &Arc<App>, headers: &HeaderMap, prefix: &str) -> Result<Rendered, ApiError> {
        let (model, _) = app.model.resolve(self.model.as_deref())?;
        self.check()?;
        let id = request_id(app, headers, prefix, self.request_id.as_deref());
        let carried = self.carried(headers);
        let structure = structure(self.response_format.as_ref(), self.structured_outputs.as_ref())?;
        let tools = self.tool_context()?;
        let kwargs = self.chat_template_kwargs.clone();
        let prompt = self.prompt(&app.model, &tools, &app.options.chat)?;
        let mut sampling = self.take_sampling();
        sampling.structured_outputs = checked_wire(structure)?;
        sampling.max_tokens = self.max_completion_tokens.or(self.max_tokens);
        sampling.logprobs = self.logprobs.then(|| self.top_logprobs.unwrap_or(0));
        let mut rendered = Rendered::new(id, model, prompt, sampling, carried);
        rendered.set_template_kwargs(kwargs.as_ref());
        Ok(rendered)
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
    include_reasoning: bool,
    /// An answer that the client made a call ends as text does.
    is_call_named: bool,
}

/// A chat whose requests are with the engines.
pub(super) struct Chat {
    form: Form,
    merged: Merged,
    /// Of each answer.
    parsers: Vec<Parser>,
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
        let options = &app.options.chat;
        let structure = structure(request.response_format.as_ref(), request.structured_outputs.as_ref())?;
        let tools = request.tool_context()?;
        let calls = tools.form(options)?;
        let (prompt, media) = request.prompt(&app.model, &tools, options)?;
        let form = Form {
            id,
            created: unix_s() as u64,
            model,
            role: "assistant".to_owned(),
            prompt,
            n: request.n.unwrap_or(1).max(1) as usize,
            top_logprobs: request.logprobs.then(|| usize::try_from(top).unwrap_or(usize::MAX)),
            returns_token_ids: request.return_token_ids.unwrap_or(false),
            tokens_as_ids: request.return_tokens_as_token_ids.unwrap_or(false),
            prompt_details: app.options.enable_prompt_tokens_details,
            include_reasoning: request.include_reasoning,
            is_call_named: tools.is_named(),
        };
        if form.prompt.is_empty() {
            return Err(no_tokens(&form.id));
        }
        let mut sampling = request.take_sampling();
        let is_part = options.reasoning.is_some() || calls.is_some();
        sampling.structured_outputs = if is_part { structure.map(wire) } else { checked_wire(structure)? };
        sampling.max_tokens = request.max_completion_tokens.or(request.max_tokens);
        sampling.logprobs = request.logprobs.then_some(top);
        if request.echo && !request.stream {
            sampling.prompt_logprobs = sampling.prompt_logprobs.or(Some(top));
        }
        let mut asked = sampling.ask(&app.model, form.prompt.clone(), place)?;
        asked.request.mm_features = media;
        asked.text.has_spans = options.reasoning.is_some();
        if let Some(form) = calls {
            tools.constrain(form, options, &mut asked);
        }
        let mut streams = Vec::with_capacity(form.n);
        for index in 0..form.n {
            streams.push(submit(app, &form.id, index, form.n, asked.clone())?);
        }
        let tokens = (&app.model.tokenizer, &form.prompt[..]);
        let parser = |_| Parser::new(options.reasoning.as_ref(), calls, tools.calls_max(), app.ids.seed(), tokens);
        let parsers = (0..form.n).map(parser).collect();
        Ok(Self { form, merged: Merged::new(streams), parsers, usages, counted })
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
        Stream::new(self.form, self.merged, self.parsers, self.usages, self.counted)
    }

    /// Waits for its answers.
    pub(super) async fn whole(self) -> Result<impl Serialize, ApiError> {
        let answers = gather(self.merged, self.form.n).await?;
        Ok(self.form.whole(&answers, self.parsers))
    }
}

/// The number of tokens of a chat's prompt.
pub(super) fn count_tokens(app: &App, mut request: ChatRequest) -> Result<usize, ApiError> {
    app.model.resolve(request.model.as_deref())?;
    message::check(&request.messages)?;
    let tools = request.tool_context()?;
    Ok(request.prompt(&app.model, &tools, &app.options.chat)?.0.len())
}

/// Answers chats.
pub(super) async fn chat_completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Result<Quick<ChatRequest>, ApiError>,
) -> Result<Response, ApiError> {
    let Quick(request) = body?;
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
struct ChoiceLogprobs {
    content: Vec<Value>,
}

impl Form {
    fn logprobs(&self, positions: &[crate::generate::Position]) -> Option<ChoiceLogprobs> {
        self.top_logprobs.map(|top| ChoiceLogprobs { content: chat_logprobs(positions, top, self.tokens_as_ids) })
    }

    fn whole(&self, answers: &[Answer], parsers: Vec<Parser>) -> Completion {
        let mut reasoning_tokens = 0;
        let choices = answers.iter().zip(parsers).enumerate().map(|(index, (answer, parser))| {
            let reply = Reply::read(&self.role, parser, &answer.text, &answer.spans);
            reasoning_tokens += reply.reasoning_tokens;
            self.choice(index, answer, reply)
        });
        let choices = choices.collect();
        let output_tokens = answers.iter().map(|answer| answer.tokens.len()).sum();
        let cached = answers.first().map_or(0, |answer| answer.cached_tokens as usize);
        let of_prompt = answers.first().and_then(|answer| answer.prompt_logprobs.as_ref());
        Completion {
            id: self.id.clone(),
            object: "chat.completion",
            created: self.created,
            model: self.model.clone(),
            choices,
            service_tier: None,
            usage: Usage::new(self.prompt.len(), output_tokens, self.prompt_details.then_some(cached))
                .with_reasoning(reasoning_tokens),
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

    fn choice(&self, index: usize, answer: &Answer, reply: Reply) -> Choice {
        let shows_tokens = reply.shows_tokens(self.include_reasoning);
        let finish_reason = answer.finish.as_ref().map(|finish| self.finish_reason(finish, reply.has_calls()));
        Choice {
            index,
            message: reply.message(self.include_reasoning),
            logprobs: self.logprobs(&answer.logprobs).filter(|_| shows_tokens),
            finish_reason,
            stop_reason: answer.stop_reason(),
            token_ids: (self.returns_token_ids && shows_tokens).then(|| answer.tokens.clone()),
            routed_experts: None,
            weight_versions: None,
        }
    }

    fn finish_reason(&self, finish: &Finish, has_calls: bool) -> &'static str {
        let is_call = has_calls && !self.is_call_named && finish.reason == FinishReason::Stop;
        if is_call { "tool_calls" } else { finish.reason.name() }
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

struct Stream {
    form: Form,
    merged: Merged,
    include_usage: bool,
    continuous_usage: bool,
    /// Of each answer.
    progress: Vec<Progress>,
    /// Output tokens of each answer.
    output_tokens: Vec<usize>,
    cached_tokens: usize,
    has_begun: bool,
    _counted: Counted,
}

impl Stream {
    fn new(
        form: Form,
        merged: Merged,
        parsers: Vec<Parser>,
        (include_usage, continuous_usage): (bool, bool),
        counted: Counted,
    ) -> Self {
        let output_tokens = vec![0; form.n];
        let is_combined = form.top_logprobs.is_some() || form.returns_token_ids || continuous_usage;
        let progress = |parser| Progress::new(parser, form.include_reasoning, is_combined);
        let progress = parsers.into_iter().map(progress).collect();
        Self {
            form,
            merged,
            progress,
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
        let reasoning_tokens = self.progress[choice.index].reasoning_tokens();
        let usage = self
            .continuous_usage
            .then(|| Usage::new(self.form.prompt.len(), output_tokens, None).with_reasoning(reasoning_tokens));
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
        let Update { mut deltas, shows_tokens } = self.progress[index].push(&piece.text, &piece.spans);
        let has_tokens = shows_tokens && !piece.tokens.is_empty();
        let mut logprobs = has_tokens.then(|| self.form.logprobs(&piece.logprobs)).flatten();
        let mut token_ids = (has_tokens && self.form.returns_token_ids).then_some(piece.tokens);
        if deltas.is_empty() && (logprobs.is_some() || token_ids.is_some()) {
            deltas.push(Delta::default());
        }
        for delta in deltas {
            let (logprobs, token_ids) = (logprobs.take(), token_ids.take());
            self.push(out, ChunkChoice { index, delta, logprobs, token_ids, ..ChunkChoice::default() });
        }
        if let Some(finish) = &piece.finish {
            for delta in self.progress[index].finish() {
                self.push(out, ChunkChoice { index, delta, ..ChunkChoice::default() });
            }
            let finish_reason = Some(self.form.finish_reason(finish, self.progress[index].has_calls()));
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
                let delta = Delta::of_role(&self.form.role);
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
            let reasoning_tokens = self.progress.iter().map(Progress::reasoning_tokens).sum();
            let usage = Usage::new(self.form.prompt.len(), output_tokens, cached).with_reasoning(reasoning_tokens);
            self.push_chunk(out, &[], Some(usage), None);
        }
        Ok(false)
    }
}
