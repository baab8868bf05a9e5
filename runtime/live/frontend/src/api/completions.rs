//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;

use super::answer::{failure, gather};
use super::request::{StreamOptions, check_length, check_submission, request_id, submit, text_request, transfer_of};
use crate::api::answer::logprobs::{CompletionLogprobs, prompt_logprobs};
use crate::api::answer::sse::{self, Events, Source};
use crate::api::request::body::{Call, json};
use crate::api::request::prompt::{Prompt, Tokenized};
use crate::api::request::structured::{late_format, structure, wire};
use crate::api::tokens::rendered::{Rendered, Rendering};
use crate::generate::{Merged, Piece, StopCause, Usage};
use crate::server::error::ApiError;
use crate::server::model::Model;
use crate::server::{App, Counted, unix_s};

text_request! {
    CompletionRequest {
        prompt: Prompt,
        response_format: Option<vcr_text::Value>,
        #[serde(default, deserialize_with = "super::request::or_default")]
        echo: bool,
        logprobs: Option<i32>,
        max_tokens: Option<u32>,
        suffix: Option<String>,
        prompt_embeds: Option<Value>,
        #[serde(default = "super::request::yes")]
        add_special_tokens: bool,
        // Ignores unknown fields. Without `flatten`, serde would accept a list as a request.
        #[serde(flatten)]
        _other: std::collections::BTreeMap<String, serde::de::IgnoredAny>,
    }
}

const DEFAULT_MAX_TOKENS: u32 = 16;

impl CompletionRequest {
    fn check(&self, model: &Model) -> Result<(), ApiError> {
        self.check_shared(model)?;
        check_length(model, "max_tokens", self.max_tokens)?;
        if self.max_tokens == Some(0) && !self.echo {
            return Err(ApiError::invalid_param("max_tokens", "max_tokens=0 is only supported when echo=true."));
        }
        if self.echo && self.truncate_prompt_tokens.is_some() {
            return Err(ApiError::invalid_param("echo", "`echo=true` is not supported with `truncate_prompt_tokens`."));
        }
        if self.suffix.is_some() {
            return Err(ApiError::invalid_param("suffix", "suffix is not supported."));
        }
        if self.prompt_embeds.is_some() {
            return Err(ApiError::invalid_param("prompt_embeds", "prompt_embeds is not supported."));
        }
        if self.logprobs.is_some_and(|logprobs| logprobs < -1) {
            return Err(ApiError::invalid_param("logprobs", "`logprobs` must be a non-negative value or -1."));
        }
        Ok(())
    }
}

impl CompletionRequest {
    /// Converts the request to tokens, for the render endpoint: one request per prompt.
    pub(super) fn rendered(mut self, with: Rendering<'_>, headers: &HeaderMap) -> Result<Vec<Rendered>, ApiError> {
        let (model, _) = with.model.resolve(self.model.as_deref())?;
        self.check(with.model)?;
        let id = request_id(with.ids, headers, "cmpl", self.request_id.as_deref());
        let carried = self.carried(headers);
        let mut sampling = self.take_sampling();
        sampling.max_tokens = Some(self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
        sampling.logprobs = self.logprobs;
        let prompts = self.prompt.tokenize(with.model, self.add_special_tokens, self.truncate_prompt_tokens, &id)?;
        let is_only = prompts.len() == 1;
        let rendered = |(index, prompt): (usize, Tokenized)| {
            let id = if is_only { id.clone() } else { format!("{id}-{index}") };
            Rendered::new(id, model.clone(), (prompt.tokens, None), sampling.clone(), carried.clone())
        };
        Ok(prompts.into_iter().enumerate().map(rendered).collect())
    }
}

/// The contents of answers in addition to generated text.
struct Form {
    id: String,
    created: u64,
    model: String,
    /// The prompts with their tokens, if the response contains them. Each has `n` answers.
    prompts: Vec<Tokenized>,
    prompt_tokens: Vec<usize>,
    n: usize,
    echo: bool,
    /// Whether the client wants no output (`max_tokens` is 0). Engines generate one token, which is hidden.
    is_prompt_only: bool,
    has_logprobs: bool,
    has_prompt_logprobs: bool,
    returns_token_ids: bool,
    tokens_as_ids: bool,
    prompt_details: bool,
}

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    Call { headers, body: request, given }: Call<Box<CompletionRequest>>,
) -> Result<Response, ApiError> {
    let counted = app.count();
    let started = start(&app, &headers, request).await.map_err(|error| given.refusal(error));
    drop(given);
    let Started { form, merged, stream, usages } = started?;
    if stream {
        return Ok(sse::response(Stream::new(form, merged, usages, counted)));
    }
    let answers = gather(merged, form.prompts.len() * form.n).await?;
    Ok(json(&form.whole(&app, &answers)))
}

/// A request whose prompts have been sent to the engines.
struct Started {
    form: Form,
    merged: Merged,
    stream: bool,
    usages: (bool, bool),
}

/// Checks a request and sends its prompts to the engines.
async fn start(app: &Arc<App>, headers: &HeaderMap, mut request: Box<CompletionRequest>) -> Result<Started, ApiError> {
    let (model, adapter) = app.model.resolve(request.model.as_deref())?;
    request.check(&app.model)?;
    let id = request_id(&app.ids, headers, "cmpl", request.request_id.as_deref());
    let place = request.placement(headers, adapter);
    let is_prompt_only = request.max_tokens == Some(0);
    let (stream, usages) = (request.stream, StreamOptions::usages(request.stream_options.as_ref(), app));
    let mut form = Form {
        id,
        created: unix_s() as u64,
        model,
        prompts: Vec::new(),
        prompt_tokens: Vec::new(),
        n: request.n.unwrap_or(1).max(1) as usize,
        echo: request.echo,
        is_prompt_only,
        has_logprobs: request.logprobs.is_some(),
        has_prompt_logprobs: request.prompt_logprobs.is_some() || (request.echo && request.logprobs.is_some()),
        returns_token_ids: request.return_token_ids.unwrap_or(false),
        tokens_as_ids: request.return_tokens_as_token_ids.unwrap_or(app.options.tokens_as_ids),
        prompt_details: app.options.enable_prompt_tokens_details,
    };
    let format = late_format(request.response_format.as_ref())?;
    let structure = structure(format.as_ref(), request.structured_outputs.as_ref())?;
    let mut sampling = request.take_sampling();
    sampling.structured_outputs = structure.map(wire);
    sampling.max_tokens = Some(if is_prompt_only { 1 } else { request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS) });
    sampling.logprobs = request.logprobs;
    if form.echo && !stream {
        sampling.prompt_logprobs = sampling.prompt_logprobs.or(request.logprobs);
    }
    let prompt = request.prompt;
    form.prompts = prompt.tokenize(&app.model, request.add_special_tokens, request.truncate_prompt_tokens, &form.id)?;
    form.prompt_tokens = form.prompts.iter().map(|prompt| prompt.tokens.len()).collect();

    let count = form.prompts.len() * form.n;
    let mut streams = Vec::with_capacity(count);
    let is_shown = form.echo || form.returns_token_ids;
    let (transfer, num_prompts) = (sampling.kv_transfer_params.take(), form.prompts.len());
    for (index, prompt) in form.prompts.iter_mut().enumerate() {
        let tokens = if is_shown { prompt.tokens.clone() } else { std::mem::take(&mut prompt.tokens) };
        let mut own = sampling.clone();
        own.kv_transfer_params = transfer_of(transfer.as_ref(), index, num_prompts, app.options.sglang.is_some())?;
        let mut asked = own.into_engine_request(&app.model, tokens, place.clone())?;
        if streams.is_empty() {
            check_submission(app, &mut asked).await?;
        }
        for asked in std::iter::repeat_n(asked, form.n) {
            streams.push(submit(app, &form.id, streams.len(), count, asked)?);
        }
    }
    Ok(Started { form, merged: Merged::new(streams), stream, usages })
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice>,
    usage: Usage,
    metrics: Option<Value>,
    system_fingerprint: Option<String>,
    kv_transfer_params: Option<Value>,
    ec_transfer_params: Option<Value>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopCause>,
    prompt_logprobs: Option<Value>,
    token_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
}

impl Form {
    fn prompt_of(&self, index: usize) -> &Tokenized {
        &self.prompts[index / self.n]
    }

    fn prompt_text(&self, app: &App, index: usize) -> String {
        let prompt = self.prompt_of(index);
        prompt.text.clone().unwrap_or_else(|| app.model.tokenizer.decode(&prompt.tokens, false))
    }

    fn whole(&self, app: &App, answers: &[Piece]) -> Completion<'_> {
        let choices = answers.iter().enumerate().map(|(index, answer)| self.choice(app, index, answer)).collect();
        let prompt_tokens = self.prompt_tokens.iter().sum();
        let output_tokens = answers.iter().map(|answer| answer.tokens.len()).sum();
        let cached = answers.iter().map(|answer| answer.cached_tokens.unwrap_or(0) as usize).sum();
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            choices,
            usage: Usage::new(prompt_tokens, output_tokens, self.prompt_details.then_some(cached)),
            metrics: None,
            system_fingerprint: None,
            kv_transfer_params: answers.first().and_then(Piece::kv_transfer_params),
            ec_transfer_params: None,
        }
    }

    fn choice(&self, app: &App, index: usize, answer: &Piece) -> Choice {
        let prompt = self.prompt_of(index);
        let mut text = if self.echo { self.prompt_text(app, index) } else { String::new() };
        if !self.is_prompt_only {
            text.push_str(&answer.text);
        }
        let own = if self.is_prompt_only { &[][..] } else { &answer.logprobs };
        let logprobs = self.has_logprobs.then(|| {
            let mut logprobs = CompletionLogprobs::default();
            let mut offset = 0;
            if let (true, Some(positions), Some(first)) = (self.echo, &answer.prompt_logprobs, prompt.tokens.first()) {
                let first_text = app.model.tokenizer.token_text(*first);
                offset = logprobs.push_first(*first, first_text, self.tokens_as_ids);
                offset = logprobs.extend(positions, offset, self.tokens_as_ids);
            }
            logprobs.extend(own, offset, self.tokens_as_ids);
            logprobs
        });
        let of_prompt = answer.prompt_logprobs.as_ref().filter(|_| self.has_prompt_logprobs);
        let token_ids = if self.is_prompt_only { Vec::new() } else { answer.tokens.clone() };
        Choice {
            index,
            text,
            logprobs,
            finish_reason: answer.reason(),
            stop_reason: answer.stop_reason(),
            prompt_logprobs: of_prompt
                .and_then(|positions| serde_json::to_value(prompt_logprobs(positions, false)).ok()),
            token_ids: self.returns_token_ids.then_some(token_ids),
            prompt_token_ids: self.returns_token_ids.then(|| prompt.tokens.clone()),
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
}

#[derive(Default, Serialize)]
struct ChunkChoice {
    index: usize,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<CompletionLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<StopCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

/// The parts of one answer that have been sent.
#[derive(Clone, Copy, Default)]
struct Progress {
    output_tokens: usize,
    cached_tokens: usize,
    text_chars: usize,
}

struct Stream {
    form: Form,
    merged: Merged,
    include_usage: bool,
    continuous_usage: bool,
    progress: Vec<Progress>,
    has_begun: bool,
    counted: Counted,
}

impl Stream {
    fn new(form: Form, merged: Merged, (include_usage, continuous_usage): (bool, bool), counted: Counted) -> Self {
        let progress = vec![Progress::default(); form.prompts.len() * form.n];
        Self { form, merged, include_usage, continuous_usage, progress, has_begun: false, counted }
    }

    fn push(&self, out: &mut Events, choice: ChunkChoice) {
        let usage = self.continuous_usage.then(|| {
            let progress = self.progress[choice.index];
            Usage::new(self.form.prompt_tokens[choice.index / self.form.n], progress.output_tokens, None)
        });
        self.push_chunk(out, &[choice], usage);
    }

    fn push_chunk(&self, out: &mut Events, choices: &[ChunkChoice], usage: Option<Usage>) {
        let Form { id, created, model, .. } = &self.form;
        out.push(&Chunk { id, object: "text_completion", created: *created, model, choices, usage });
    }

    /// Sends the chunks before any output: the echoed text and the tokens of the prompts.
    fn begin(&mut self, out: &mut Events) {
        let ids = self.form.returns_token_ids;
        for index in 0..self.progress.len() {
            if !self.form.echo && !ids {
                continue;
            }
            let text = if self.form.echo { self.form.prompt_text(self.counted.app(), index) } else { String::new() };
            self.progress[index].text_chars = text.chars().count();
            let prompt_token_ids = ids.then(|| self.form.prompt_of(index).tokens.clone());
            let choice =
                ChunkChoice { index, text, token_ids: ids.then(Vec::new), prompt_token_ids, ..ChunkChoice::default() };
            self.push(out, choice);
        }
    }

    fn take(&mut self, out: &mut Events, index: usize, piece: Piece) -> Result<(), ApiError> {
        let ids = self.form.returns_token_ids;
        if let Some(error) = piece.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        let progress = &mut self.progress[index];
        progress.output_tokens += piece.tokens.len();
        progress.cached_tokens = piece.cached_tokens.map_or(progress.cached_tokens, |cached| cached as usize);
        // An end without tokens produces no text chunk.
        let is_empty = piece.tokens.is_empty() && piece.text.is_empty();
        if !(self.form.is_prompt_only || is_empty) {
            let offset = progress.text_chars;
            progress.text_chars += piece.text.chars().count();
            let logprobs = self.form.has_logprobs.then(|| {
                let mut logprobs = CompletionLogprobs::default();
                logprobs.extend(&piece.logprobs, offset, self.form.tokens_as_ids);
                logprobs
            });
            let token_ids = ids.then_some(piece.tokens);
            self.push(out, ChunkChoice { index, text: piece.text, logprobs, token_ids, ..ChunkChoice::default() });
        }
        if let Some(finish) = &piece.finish {
            let choice = ChunkChoice {
                index,
                finish_reason: Some(finish.name()),
                stop_reason: finish.stop.clone(),
                token_ids: ids.then(Vec::new),
                ..ChunkChoice::default()
            };
            self.push(out, choice);
        }
        Ok(())
    }
}

impl Source for Stream {
    async fn next(&mut self, out: &mut Events) -> Result<bool, ApiError> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.begin(out);
            return Ok(true);
        }
        if let Some((index, piece)) = self.merged.next().await? {
            self.take(out, index, piece)?;
            return Ok(true);
        }
        if self.include_usage {
            let prompt_tokens = self.form.prompt_tokens.iter().sum();
            let output_tokens = self.progress.iter().map(|progress| progress.output_tokens).sum();
            let cached = self.progress.iter().map(|progress| progress.cached_tokens).sum();
            let usage = Usage::new(prompt_tokens, output_tokens, self.form.prompt_details.then_some(cached));
            self.push_chunk(out, &[], Some(usage));
        }
        Ok(false)
    }
}
