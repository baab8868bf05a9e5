//! `POST /inference/v1/generate`: tokens in, tokens out.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::logprobs::{chat_logprobs, prompt_logprobs};
use super::request::{Body, StreamOptions, rank_of, submit};
use super::run::{Answer, failure, gather, stop_reason};
use super::sse::{self, Events, Source};
use super::structured;
use super::usage::Usage;
use crate::generate::{Merged, Placement, Position, Repetition, Sampling, StringOrArray};
use crate::server::error::ApiError;
use crate::server::{App, Counted};

/// Sampling parameters in the names of vLLM's own class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SamplingParams {
    n: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<i64>,
    max_tokens: Option<u32>,
    min_tokens: Option<u32>,
    stop: Option<StringOrArray>,
    stop_token_ids: Option<Vec<u32>>,
    include_stop_str_in_output: Option<bool>,
    ignore_eos: bool,
    logprobs: Option<i32>,
    prompt_logprobs: Option<i32>,
    allowed_token_ids: Option<Vec<u32>>,
    repetition_detection: Option<Repetition>,
    structured_outputs: Option<vcr_text::Value>,
    vllm_xargs: Option<Map<String, Value>>,
}

/// The body of a request.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct GenerateRequest {
    request_id: Option<String>,
    model: Option<String>,
    token_ids: Vec<u32>,
    #[serde(default)]
    sampling_params: SamplingParams,
    #[serde(default, deserialize_with = "super::request::or_default")]
    stream: bool,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
    #[serde(default)]
    priority: i32,
    kv_transfer_params: Option<Map<String, Value>>,
    return_token_ids: Option<bool>,
}

impl GenerateRequest {
    fn take_sampling(&mut self) -> Result<Sampling, ApiError> {
        let params = std::mem::take(&mut self.sampling_params);
        let structured_outputs = structured::checked_wire(structured::own(params.structured_outputs.as_ref())?)?;
        Ok(Sampling {
            n: params.n,
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            min_p: params.min_p,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            repetition_penalty: params.repetition_penalty,
            seed: params.seed,
            max_tokens: params.max_tokens,
            min_tokens: params.min_tokens,
            stop: params.stop,
            stop_token_ids: params.stop_token_ids,
            include_stop_str_in_output: params.include_stop_str_in_output.unwrap_or(false),
            ignore_eos: params.ignore_eos,
            skip_special_tokens: true,
            logprobs: params.logprobs,
            prompt_logprobs: params.prompt_logprobs,
            allowed_token_ids: params.allowed_token_ids,
            repetition_detection: params.repetition_detection,
            structured_outputs,
            vllm_xargs: params.vllm_xargs,
            kv_transfer_params: self.kv_transfer_params.take(),
            ..Sampling::default()
        })
    }
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<Value>,
    token_ids: Vec<u32>,
}

fn logprobs(positions: &[Position], top: Option<i32>) -> Option<Value> {
    let top = usize::try_from(top?).unwrap_or(usize::MAX);
    Some(json!({"content": chat_logprobs(positions, top, true)}))
}

/// Answers in tokens.
pub(super) async fn generate(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body<GenerateRequest>,
) -> Result<Response, ApiError> {
    let Json(mut request) = body?;
    let counted = app.count();
    let (_, adapter) = app.model.resolve(request.model.as_deref())?;
    StreamOptions::check(request.stream_options.as_ref(), request.stream)?;
    let id = request.request_id.take().filter(|id| !id.is_empty()).unwrap_or_else(|| app.ids.next());
    if request.token_ids.is_empty() {
        return Err(ApiError::invalid_param("token_ids", "token_ids must not be empty"));
    }
    let place = Placement {
        priority: request.priority.into(),
        cache_salt: request.cache_salt.take(),
        session_id: None,
        rank: rank_of(&headers),
        adapter,
    };
    let sampling = request.take_sampling()?;
    let (n, top) = (sampling.n.unwrap_or(1).max(1) as usize, sampling.logprobs);
    let prompt = std::mem::take(&mut request.token_ids);
    let asked = sampling.ask(&app.model, prompt.clone(), place)?;
    let streams: Result<Vec<_>, _> = (0..n).map(|index| submit(&app, &id, index, n, asked.clone())).collect();
    let merged = Merged::new(streams?);
    let returns_prompt = request.return_token_ids.unwrap_or(false);
    if request.stream {
        let (include_usage, continuous_usage) = StreamOptions::usages(request.stream_options.as_ref());
        let prompt_tokens = prompt.len();
        return Ok(sse::response(Stream {
            id,
            merged,
            top,
            prompt: returns_prompt.then_some(prompt),
            prompt_tokens,
            output_tokens: vec![0; n],
            include_usage,
            continuous_usage,
            _counted: counted,
        }));
    }
    let answers = gather(merged, n).await?;
    let choice = |(index, answer): (usize, &Answer)| Choice {
        index,
        logprobs: logprobs(&answer.logprobs, top),
        finish_reason: answer.reason(),
        stop_reason: answer.stop_reason(),
        token_ids: answer.tokens.clone(),
    };
    let of_prompt = answers.first().and_then(|answer| answer.prompt_logprobs.as_ref());
    Ok(Json(json!({
        "request_id": id,
        "choices": answers.iter().enumerate().map(choice).collect::<Vec<_>>(),
        "prompt_logprobs": of_prompt.map(|positions| prompt_logprobs(positions)),
        "prompt_token_ids": returns_prompt.then_some(prompt),
        "kv_transfer_params": answers.first().and_then(Answer::kv_transfer_params),
        "ec_transfer_params": null,
    }))
    .into_response())
}

struct Stream {
    id: String,
    merged: Merged,
    top: Option<i32>,
    prompt: Option<Vec<u32>>,
    prompt_tokens: usize,
    output_tokens: Vec<usize>,
    include_usage: bool,
    continuous_usage: bool,
    _counted: Counted,
}

#[derive(Serialize)]
struct Chunk<'a> {
    request_id: &'a str,
    choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

impl Source for Stream {
    async fn next(&mut self, out: &mut Events) -> Result<bool, ApiError> {
        let Some((index, piece)) = self.merged.next().await? else {
            if self.include_usage {
                let usage = Some(Usage::new(self.prompt_tokens, self.output_tokens.iter().sum(), None));
                out.push(&Chunk { request_id: &self.id, choices: Vec::new(), usage, prompt_token_ids: None });
            }
            return Ok(false);
        };
        if let Some(error) = piece.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        self.output_tokens[index] += piece.tokens.len();
        let usage = self.continuous_usage.then(|| Usage::new(self.prompt_tokens, self.output_tokens[index], None));
        let choice = Choice {
            index,
            logprobs: logprobs(&piece.logprobs, self.top),
            finish_reason: piece.finish.as_ref().map(|finish| finish.reason.name()),
            stop_reason: piece.finish.as_ref().and_then(stop_reason),
            token_ids: piece.tokens,
        };
        let prompt_token_ids = self.prompt.take();
        out.push(&Chunk { request_id: &self.id, choices: vec![choice], usage, prompt_token_ids });
        Ok(true)
    }
}
