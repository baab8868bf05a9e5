//! Answers of chats, complete or as streamed chunks.

use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::time::{Sleep, sleep};
use vcr_base::finish_reason::FinishReason;

use super::reply::{Progress, Reply, Update};
use crate::api::answer::failure;
use crate::api::answer::logprobs::{chat_logprobs, prompt_logprobs};
use crate::api::answer::sse::{Events, Source};
use crate::dialects::{ChatChunk, Choice, ChoiceLogprobs, ChunkChoice, Delta};
use crate::engine::ToolParsing;
use crate::generate::{Finish, Merged, Piece, Position, Usage};
use crate::parse::Parser;
use crate::server::Counted;
use crate::server::error::ApiError;

/// The contents of answers in addition to generated text.
pub(in crate::api) struct Form {
    pub(in crate::api) id: String,
    pub(in crate::api) created: u64,
    pub(in crate::api) model: String,
    pub(in crate::api) role: String,
    pub(in crate::api) prompt_tokens: usize,
    /// The prompt's token ids, if the request wants them.
    pub(in crate::api) prompt_ids: Option<Vec<u32>>,
    pub(in crate::api) n: usize,
    /// Number of the most likely tokens to return, if logprobs are requested.
    pub(in crate::api) top_logprobs: Option<usize>,
    pub(in crate::api) tokens_as_ids: bool,
    pub(in crate::api) prompt_details: bool,
    pub(in crate::api) include_reasoning: bool,
    /// Whether the client named the tool to call. Then the finish reason is never `tool_calls`.
    pub(in crate::api) is_call_named: bool,
    /// The place of the encoder outputs of the prompt's media, if they can be fetched.
    pub(in crate::api) ec_transfer_params: Option<Value>,
    /// The API name for the metric of parsed tool calls, if answers are counted there.
    pub(in crate::api) parsed_for: Option<&'static str>,
    /// If set, text answers end with an image, whose generation takes this long.
    pub(in crate::api) image: Option<Duration>,
}

#[derive(Serialize)]
pub(in crate::api) struct Completion {
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

impl Completion {
    /// The first answer, and the usage of all answers.
    pub(in crate::api) fn into_first(self) -> (Choice, Usage) {
        (self.choices.into_iter().next().unwrap_or_default(), self.usage)
    }
}

impl Form {
    fn logprobs(&self, positions: &[Position]) -> Option<ChoiceLogprobs> {
        self.top_logprobs.map(|top| ChoiceLogprobs { content: chat_logprobs(positions, top, self.tokens_as_ids) })
    }

    /// Counts an answer that was searched for tool calls.
    fn count_parsed(&self, counted: &Counted, is_streamed: bool, has_calls: bool) {
        if let Some(request_type) = self.parsed_for {
            counted.app().engines.observe_tool_parser(ToolParsing { request_type, is_streamed, has_calls });
        }
    }

    pub(in crate::api) fn whole(self, answers: &[Piece], parsers: Vec<Parser>, counted: &Counted) -> Completion {
        let mut reasoning_tokens = 0;
        let choices = answers.iter().zip(parsers).enumerate().map(|(index, (answer, parser))| {
            let mut reply = Reply::read(&self.role, parser, &answer.text, &answer.spans);
            self.count_parsed(counted, false, reply.has_calls());
            if self.has_image(reply.has_calls(), answer.tokens.len()) {
                reply.message.add_image();
            }
            reasoning_tokens += reply.reasoning_tokens;
            self.choice(index, answer, reply)
        });
        let choices = choices.collect();
        let output_tokens = answers.iter().map(|answer| answer.tokens.len()).sum();
        let cached = answers.first().map_or(0, |answer| answer.cached_tokens.unwrap_or(0) as usize);
        let of_prompt = answers.first().and_then(|answer| answer.prompt_logprobs.as_ref());
        Completion {
            id: self.id,
            object: "chat.completion",
            created: self.created,
            model: self.model,
            choices,
            service_tier: None,
            usage: Usage::new(self.prompt_tokens, output_tokens, self.prompt_details.then_some(cached))
                .with_reasoning(reasoning_tokens),
            metrics: None,
            system_fingerprint: None,
            prompt_logprobs: of_prompt
                .and_then(|positions| serde_json::to_value(prompt_logprobs(positions, false)).ok()),
            prompt_token_ids: self.prompt_ids,
            prompt_text: None,
            kv_transfer_params: answers.first().and_then(Piece::kv_transfer_params),
            ec_transfer_params: self.ec_transfer_params,
        }
    }

    /// Whether an answer ends with an image. Answers with tool calls and empty answers do not.
    fn has_image(&self, has_calls: bool, num_tokens: usize) -> bool {
        self.image.is_some() && !has_calls && num_tokens > 0
    }

    fn choice(&self, index: usize, answer: &Piece, mut reply: Reply) -> Choice {
        let shows_tokens = reply.shows_tokens(self.include_reasoning);
        reply.message.reasoning = reply.message.reasoning.filter(|_| self.include_reasoning);
        let finish_reason = answer.finish.as_ref().map(|finish| self.finish_reason(finish, reply.has_calls()));
        Choice {
            index,
            message: reply.message,
            logprobs: self.logprobs(&answer.logprobs).filter(|_| shows_tokens),
            finish_reason,
            stop_reason: answer.stop_reason(),
            token_ids: (self.prompt_ids.is_some() && shows_tokens).then(|| answer.tokens.clone()),
            routed_experts: None,
            weight_versions: None,
        }
    }

    /// Formats a chunk of a chat completion. The first chunk of an answer contains the prompt's tokens.
    fn chunk<'a>(&'a self, chunk: &'a ChatChunk) -> Chunk<'a> {
        let is_first = chunk.choice.as_ref().is_some_and(|choice| choice.delta.role.is_some());
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices: chunk.choice.as_slice(),
            usage: chunk.usage,
            prompt_token_ids: self.prompt_ids.as_deref().filter(|_| is_first),
            modality: chunk.modality,
        }
    }

    fn finish_reason(&self, finish: &Finish, has_calls: bool) -> &'static str {
        let is_call = has_calls && !self.is_call_named && finish.reason == FinishReason::Stop;
        if is_call { "tool_calls" } else { finish.name() }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    modality: Option<&'static str>,
}

pub(in crate::api) struct Stream {
    form: Form,
    merged: Merged,
    include_usage: bool,
    continuous_usage: bool,
    progress: Vec<Progress>,
    /// Number of output tokens of each answer.
    output_tokens: Vec<usize>,
    cached_tokens: usize,
    has_begun: bool,
    image: ImageWait,
    /// Answers that have ended, but wait for their images.
    held: Vec<(usize, Finish)>,
    counted: Counted,
}

/// The time until images are generated. It must survive a cancelled poll of the stream.
enum ImageWait {
    None,
    Ahead(Duration),
    Waiting(Pin<Box<Sleep>>),
}

impl ImageWait {
    /// Waits until images are generated, if there are any.
    async fn wait(&mut self) {
        if let Self::Ahead(time) = self {
            *self = Self::Waiting(Box::pin(sleep(*time)));
        }
        if let Self::Waiting(sleep) = self {
            sleep.as_mut().await;
            *self = Self::None;
        }
    }
}

impl Stream {
    pub(in crate::api) fn new(
        form: Form,
        merged: Merged,
        parsers: Vec<Parser>,
        (include_usage, continuous_usage): (bool, bool),
        counted: Counted,
    ) -> Self {
        let output_tokens = vec![0; form.n];
        let is_combined = form.top_logprobs.is_some() || form.prompt_ids.is_some() || continuous_usage;
        let progress = |parser| Progress::new(parser, form.include_reasoning, is_combined);
        let progress = parsers.into_iter().map(progress).collect();
        let image = form.image.map_or(ImageWait::None, ImageWait::Ahead);
        Self {
            form,
            merged,
            progress,
            include_usage,
            continuous_usage,
            output_tokens,
            cached_tokens: 0,
            has_begun: false,
            image,
            held: Vec::new(),
            counted,
        }
    }

    fn push(&self, out: &mut impl FnMut(&Form, ChatChunk), choice: ChunkChoice) {
        self.push_of(out, choice, None);
    }

    fn push_of(&self, out: &mut impl FnMut(&Form, ChatChunk), choice: ChunkChoice, modality: Option<&'static str>) {
        let output_tokens = self.output_tokens[choice.index];
        let reasoning_tokens = self.progress[choice.index].reasoning_tokens();
        let usage = self
            .continuous_usage
            .then(|| Usage::new(self.form.prompt_tokens, output_tokens, None).with_reasoning(reasoning_tokens));
        out(&self.form, ChatChunk { choice: Some(choice), usage, modality });
    }

    /// Sends the image of an answer, if it has one, and its last chunk.
    fn push_end(&self, out: &mut impl FnMut(&Form, ChatChunk), index: usize, finish: &Finish) {
        let has_calls = self.progress[index].has_calls();
        if self.form.has_image(has_calls, self.output_tokens[index]) {
            let choice = ChunkChoice { index, delta: Delta::of_image(), ..ChunkChoice::default() };
            self.push_of(out, choice, Some("image"));
        }
        let finish_reason = Some(self.form.finish_reason(finish, has_calls));
        let stop_reason = finish.stop.clone();
        self.push(out, ChunkChoice { index, finish_reason, stop_reason, ..ChunkChoice::default() });
    }

    fn take(&mut self, out: &mut impl FnMut(&Form, ChatChunk), index: usize, piece: Piece) -> Result<(), ApiError> {
        if let Some(error) = piece.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        self.output_tokens[index] += piece.tokens.len();
        self.cached_tokens = piece.cached_tokens.map_or(self.cached_tokens, |cached| cached as usize);
        let Update { mut deltas, shows_tokens } = self.progress[index].push(&piece.text, &piece.spans);
        if !self.progress[index].is_in_reasoning() {
            self.form.count_parsed(&self.counted, true, deltas.iter().any(|delta| !delta.tool_calls.is_empty()));
        }
        let has_tokens = shows_tokens && !piece.tokens.is_empty();
        let mut logprobs = has_tokens.then(|| self.form.logprobs(&piece.logprobs)).flatten();
        let mut token_ids = (has_tokens && self.form.prompt_ids.is_some()).then_some(piece.tokens);
        if deltas.is_empty() && (logprobs.is_some() || token_ids.is_some()) {
            deltas.push(Delta::default());
        }
        for delta in deltas {
            let (logprobs, token_ids) = (logprobs.take(), token_ids.take());
            self.push(out, ChunkChoice { index, delta, logprobs, token_ids, ..ChunkChoice::default() });
        }
        if let Some(finish) = piece.finish {
            for delta in self.progress[index].finish() {
                self.push(out, ChunkChoice { index, delta, ..ChunkChoice::default() });
            }
            match self.form.image {
                Some(_) => self.held.push((index, finish)),
                None => self.push_end(out, index, &finish),
            }
        }
        Ok(())
    }
    /// Passes the next chunks to `out`. Returns whether more will follow. Cancel-safe.
    pub(in crate::api) async fn advance(&mut self, out: &mut impl FnMut(&Form, ChatChunk)) -> Result<bool, ApiError> {
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
        self.image.wait().await;
        for (index, finish) in std::mem::take(&mut self.held) {
            self.push_end(out, index, &finish);
        }
        if self.include_usage {
            let output_tokens = self.output_tokens.iter().sum();
            let cached = self.form.prompt_details.then_some(self.cached_tokens);
            let reasoning_tokens = self.progress.iter().map(Progress::reasoning_tokens).sum();
            let usage = Usage::new(self.form.prompt_tokens, output_tokens, cached).with_reasoning(reasoning_tokens);
            out(&self.form, ChatChunk { usage: Some(usage), ..ChatChunk::default() });
        }
        Ok(false)
    }
}

impl Source for Stream {
    async fn next(&mut self, out: &mut Events) -> Result<bool, ApiError> {
        self.advance(&mut |form: &Form, chunk: ChatChunk| out.push(&form.chunk(&chunk))).await
    }
}
