//! `POST /inference/v1/generate`: generates tokens from tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::features::Features;
use crate::api::answer::logprobs::{prompt_logprobs, token_logprobs};
use crate::api::answer::sse::{self, Events, Source};
use crate::api::answer::{failure, gather};
use crate::api::request::body::Call;
use crate::api::request::structured;
use crate::api::request::{
    MAX_N, StreamOptions, check_named, check_submission, check_threshold, id_header, least_cached_of, rank_of,
    submit_all,
};
use crate::generate::{Merged, Piece, Placement, Position, Repetition, Sampling, StopCause, StringOrArray, Usage};
use crate::server::error::ApiError;
use crate::server::frontend_kind::FrontendKind;
use crate::server::model::Model;
use crate::server::{App, Counted};

/// Sampling parameters with the field names of vLLM's class. Error messages contain the name of this type.
#[derive(Clone, Debug, Default, Deserialize)]
struct GenerateSamplingParams {
    n: Option<u32>,
    stop: Option<StringOrArray>,
    #[serde(flatten)]
    inner: SamplingParams,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct SamplingParams {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<i64>,
    max_tokens: Option<u32>,
    min_tokens: Option<u32>,
    stream_interval: Option<std::num::NonZeroU32>,
    stop_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    include_stop_str_in_output: bool,
    #[serde(default)]
    ignore_eos: bool,
    logprobs: Option<i32>,
    prompt_logprobs: Option<i32>,
    allowed_token_ids: Option<Vec<u32>>,
    repetition_detection: Option<Repetition>,
    structured_outputs: Option<vcr_text::Value>,
    vllm_xargs: Option<Map<String, Value>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(in crate::api) struct GenerateRequest {
    request_id: Option<String>,
    model: Option<String>,
    token_ids: Vec<u32>,
    sampling_params: GenerateSamplingParams,
    #[serde(default, deserialize_with = "crate::api::request::or_default")]
    stream: bool,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
    #[serde(default)]
    priority: i32,
    kv_transfer_params: Option<Map<String, Value>>,
    cache_hit_threshold: Option<f64>,
    features: Option<Features>,
    return_token_ids: Option<bool>,
    // Ignores unknown fields. Without `flatten`, serde would accept a list as a request.
    #[serde(flatten)]
    _other: BTreeMap<String, IgnoredAny>,
}

impl GenerateRequest {
    /// Checks the request, in vLLM's order.
    fn check(&self, model: &Model) -> Result<(), ApiError> {
        let of_params = |message| Err(ApiError::invalid_param("sampling_params", message));
        let params = &self.sampling_params.inner;
        if self.token_ids.is_empty() {
            return Err(ApiError::invalid_param("token_ids", "token_ids must contain at least one token ID."));
        }
        if params.max_tokens == Some(0) {
            return of_params("max_tokens must be greater than 0.");
        }
        if let Some(n) = self.sampling_params.n.filter(|n| !(1..=MAX_N).contains(n)) {
            return Err(ApiError::invalid_param("n", format!("n must be from 1 to {MAX_N}, got {n}.")));
        }
        if params.prompt_logprobs.is_some_and(|count| count < -1) {
            return of_params("`prompt_logprobs` must be a non-negative value or -1.");
        }
        if params.prompt_logprobs.is_some() && self.stream {
            return of_params("`prompt_logprobs` are not available when `stream=true`.");
        }
        // Stop strings need a detokenizer, which this API does not use.
        let is_rust = model.frontend == FrontendKind::Rust;
        if is_rust && self.sampling_params.stop.clone().is_some_and(|stop| !stop.into_vec().is_empty()) {
            return Err(ApiError::invalid_param("stop", "stop is not supported."));
        }
        check_threshold(self.cache_hit_threshold)?;
        if is_rust && params.include_stop_str_in_output {
            let name = "include_stop_str_in_output";
            return Err(ApiError::invalid_param(name, "include_stop_str_in_output is not supported."));
        }
        let is_salt = |salt: &String| {
            (1..=SALT_CHARS_MAX).contains(&salt.chars().count()) && !salt.contains(['@', '/', '\\', '\0'])
        };
        if self.cache_salt.as_ref().is_some_and(|salt| !is_salt(salt)) {
            return Err(ApiError::invalid(
                "Parameter 'cache_salt' must be a non-empty string of at most 128 characters and must not contain \
                 '@', '/', '\\', or NUL.",
            ));
        }
        Ok(())
    }

    fn take_sampling(&mut self) -> Result<Sampling, ApiError> {
        let GenerateSamplingParams { n, stop, inner: params } = std::mem::take(&mut self.sampling_params);
        let structured_outputs = structured::own(params.structured_outputs.as_ref())?.map(structured::wire);
        Ok(Sampling {
            n,
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k.map(i64::from),
            min_p: params.min_p,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            repetition_penalty: params.repetition_penalty,
            seed: params.seed,
            max_tokens: params.max_tokens,
            min_tokens: params.min_tokens,
            stream_interval: params.stream_interval.map(std::num::NonZeroU32::get),
            stop,
            stop_token_ids: params.stop_token_ids,
            include_stop_str_in_output: params.include_stop_str_in_output,
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

/// The maximum length of a cache salt, in characters.
const SALT_CHARS_MAX: usize = 128;

#[derive(Serialize)]
struct Choice {
    index: usize,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopCause>,
    token_ids: Vec<u32>,
    routed_experts: Option<Value>,
    sampling_mask: Option<Value>,
    weight_versions: Option<Value>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<StopCause>,
    token_ids: Vec<u32>,
}

fn logprobs(positions: &[Position], are_wanted: bool) -> Option<Value> {
    are_wanted.then(|| json!({"content": token_logprobs(positions)}))
}

/// Checks the length of a prompt, with the Python server's error text.
fn check_decoder_prompt(model: &Model, tokens: usize) -> Result<(), ApiError> {
    let limit = model.max_model_len;
    if model.frontend == FrontendKind::Rust || tokens < limit as usize {
        return Ok(());
    }
    let start = format!("The decoder prompt (length {tokens})");
    let end = "Make sure that `max_model_len` is no smaller than the number of text tokens";
    Err(ApiError::invalid(if tokens > limit as usize {
        format!("{start} is longer than the maximum model length of {limit}. {end}.")
    } else {
        format!(
            "{start} plus the number of requested output tokens (at least 1) is longer than the maximum model length \
             of {limit}. {end} (prompt + requested output tokens)."
        )
    }))
}

pub(in crate::api) async fn generate(
    State(app): State<Arc<App>>,
    Call { headers, body: mut request, given }: Call<GenerateRequest>,
) -> Result<Response, ApiError> {
    let counted = app.count();
    check_named(request.model.as_deref(), &app.model)?;
    let (_, adapter) = app.model.resolve(request.model.as_deref())?;
    let id = id_header(&headers).map(str::to_owned).or(request.request_id.take()).unwrap_or_else(|| app.ids.next());
    request.check(&app.model).map_err(|error| given.refusal(error))?;
    let place = Placement {
        priority: request.priority.into(),
        cache_salt: request.cache_salt.take(),
        session_id: None,
        rank: rank_of(&headers),
        adapter,
        least_cached: least_cached_of(&headers).or(request.cache_hit_threshold),
    };
    let sampling = request.take_sampling().map_err(|error| given.refusal(error))?;
    let (n, has_logprobs) = (sampling.n.unwrap_or(1).max(1) as usize, sampling.logprobs.is_some());
    let prompt = std::mem::take(&mut request.token_ids);
    check_decoder_prompt(&app.model, prompt.len())?;
    let prompt_tokens = prompt.len();
    let shown = request.return_token_ids.unwrap_or(false).then(|| prompt.clone());
    let asked = sampling.into_engine_request(&app.model, prompt, place);
    let mut asked = asked.map_err(|error| given.refusal(error))?;
    drop(given);
    asked.request.mm_features = request.features.take().map(|features| features.placed(prompt_tokens)).transpose()?;
    let media = asked.request.mm_features.as_deref();
    let ec_transfer_params = app.options.encoder.as_ref().and_then(|encoder| encoder.params(media));
    check_submission(&app, &mut asked).await?;
    let merged = Merged::new(submit_all(&app, &id, n, asked)?);
    if request.stream {
        let (include_usage, continuous_usage) = StreamOptions::usages(request.stream_options.as_ref(), &app);
        return Ok(sse::response(Stream {
            id,
            merged,
            has_logprobs,
            prompt: shown,
            prompt_tokens,
            output_tokens: vec![0; n],
            include_usage,
            continuous_usage,
            _counted: counted,
        }));
    }
    let answers = gather(merged, n).await?;
    let choice = |(index, answer): (usize, &Piece)| Choice {
        index,
        logprobs: logprobs(&answer.logprobs, has_logprobs),
        finish_reason: answer.reason(),
        stop_reason: answer.stop_reason(),
        token_ids: answer.tokens.clone(),
        routed_experts: None,
        sampling_mask: None,
        weight_versions: None,
    };
    let of_prompt = answers.first().and_then(|answer| answer.prompt_logprobs.as_ref());
    Ok(Json(json!({
        "request_id": id,
        "choices": answers.iter().enumerate().map(choice).collect::<Vec<_>>(),
        "prompt_logprobs": of_prompt.map(|positions| prompt_logprobs(positions, true)),
        "prompt_token_id_logprobs": null,
        "prompt_token_ids": shown,
        "mm_placeholders": null,
        "kv_transfer_params": answers.first().and_then(Piece::kv_transfer_params),
        "ec_transfer_params": ec_transfer_params,
        "metrics": null,
    }))
    .into_response())
}

struct Stream {
    id: String,
    merged: Merged,
    has_logprobs: bool,
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
    choices: Vec<ChunkChoice>,
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
        let choice = ChunkChoice {
            index,
            logprobs: logprobs(&piece.logprobs, self.has_logprobs),
            finish_reason: piece.reason(),
            stop_reason: piece.stop_reason(),
            token_ids: piece.tokens,
        };
        let prompt_token_ids = self.prompt.take();
        out.push(&Chunk { request_id: &self.id, choices: vec![choice], usage, prompt_token_ids });
        Ok(true)
    }
}
