//! Answers of chats: whole, and as chunks of a stream.

use serde::Serialize;
use serde_json::Value;
use vcr_finish_reason::FinishReason;

use super::reply::{Delta, Message, Progress, Reply, Update};
use crate::api::answer::logprobs::{chat_logprobs, prompt_logprobs};
use crate::api::answer::sse::{Events, Source};
use crate::api::answer::usage::Usage;
use crate::api::answer::{Answer, failure, stop_reason};
use crate::generate::{Finish, Merged, Piece};
use crate::parse::Parser;
use crate::server::Counted;
use crate::server::error::ApiError;

/// Form of the answers.
pub(in crate::api) struct Form {
    pub(in crate::api) id: String,
    pub(in crate::api) created: u64,
    pub(in crate::api) model: String,
    pub(in crate::api) role: String,
    pub(in crate::api) prompt: Vec<u32>,
    pub(in crate::api) n: usize,
    /// Likeliest tokens to show, if logprobs are.
    pub(in crate::api) top_logprobs: Option<usize>,
    pub(in crate::api) returns_token_ids: bool,
    pub(in crate::api) tokens_as_ids: bool,
    pub(in crate::api) prompt_details: bool,
    pub(in crate::api) include_reasoning: bool,
    /// An answer that the client made a call ends as text does.
    pub(in crate::api) is_call_named: bool,
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

    /// The whole of answers.
    pub(in crate::api) fn whole(&self, answers: &[Answer], parsers: Vec<Parser>) -> Completion {
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

/// The events of answers that are streamed.
pub(in crate::api) struct Stream {
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
    pub(in crate::api) fn new(
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
