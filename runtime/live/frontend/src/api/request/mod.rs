//! Shared parts of requests.

pub(super) mod body;
pub(super) mod prompt;
mod python;
pub(super) mod structured;

use std::sync::Arc;

use axum::http::HeaderMap;
use serde::{Deserialize, Deserializer, Serialize};

use crate::http::SESSION_ID;
use crate::server::App;
use crate::server::error::ApiError;
use crate::server::frontend_kind::FrontendKind;
use crate::server::ids::RequestIds;
use crate::server::model::Model;

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
    pub(super) continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    /// Refuses stream options without a stream. An empty object is allowed.
    pub(super) fn check(options: Option<&Self>, stream: bool) -> Result<(), ApiError> {
        let is_empty =
            options.is_none_or(|options| options.include_usage.is_none() && options.continuous_usage_stats.is_none());
        if is_empty || stream {
            return Ok(());
        }
        Err(ApiError::invalid_param("stream_options", "stream_options are only supported when stream=true."))
    }

    /// Whether a stream ends with usage, and whether each chunk has usage. The server's options can force the
    /// first.
    pub(super) fn usages(options: Option<&Self>, app: &App) -> (bool, bool) {
        let options = options.copied().unwrap_or_default();
        let include = app.options.forces_usage || options.include_usage.unwrap_or(false);
        (include, include && options.continuous_usage_stats.unwrap_or(false))
    }
}

/// Fields of a rendered request other than its prompt and sampling parameters.
#[derive(Clone, Debug)]
pub(super) struct Carried {
    pub(super) stream: bool,
    pub(super) stream_options: Option<StreamOptions>,
    pub(super) cache_salt: Option<String>,
    pub(super) priority: i32,
    pub(super) return_token_ids: Option<bool>,
}

/// Reads null as the default value.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads `top_k`. -1 and 0 mean all tokens.
pub(super) fn top_k<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let given: Option<i64> = Option::deserialize(deserializer)?;
    match given {
        Some(given) if given < -1 => {
            Err(serde::de::Error::custom(format!("top_k must be -1, 0, or a positive integer, got {given}")))
        }
        given => Ok(given),
    }
}

pub(super) fn yes() -> bool {
    true
}

/// Declares a request for text, from its own fields and the common ones.
macro_rules! text_request {
    (
        $(#[$meta:meta])*
        $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }
    ) => {
        #[derive(Clone, Debug, serde::Deserialize)]
        $(#[$meta])*
        pub(super) struct $name {
            $($(#[$field_meta])* $field: $type,)*
            model: Option<String>,
            frequency_penalty: Option<f32>,
            presence_penalty: Option<f32>,
            repetition_penalty: Option<f32>,
            temperature: Option<f32>,
            top_p: Option<f32>,
            #[serde(default, deserialize_with = "super::request::top_k")]
            top_k: Option<i64>,
            min_p: Option<f32>,
            seed: Option<i64>,
            n: Option<u32>,
            min_tokens: Option<u32>,
            stream_interval: Option<std::num::NonZeroU32>,
            stop: Option<$crate::generate::StringOrArray>,
            stop_token_ids: Option<Vec<u32>>,
            #[serde(default)]
            include_stop_str_in_output: bool,
            #[serde(default)]
            ignore_eos: bool,
            #[serde(default = "super::request::yes")]
            skip_special_tokens: bool,
            #[serde(default = "super::request::yes")]
            spaces_between_special_tokens: bool,
            logit_bias: Option<std::collections::BTreeMap<String, f32>>,
            allowed_token_ids: Option<Vec<u32>>,
            bad_words: Option<Vec<String>>,
            prompt_logprobs: Option<i32>,
            repetition_detection: Option<$crate::generate::Repetition>,
            structured_outputs: Option<vcr_text::Value>,
            thinking_token_budget: Option<i64>,
            vllm_xargs: Option<serde_json::Map<String, serde_json::Value>>,
            kv_transfer_params: Option<serde_json::Map<String, serde_json::Value>>,
            bootstrap_host: Option<serde_json::Value>,
            bootstrap_port: Option<serde_json::Value>,
            bootstrap_room: Option<serde_json::Value>,
            #[serde(default, deserialize_with = "super::request::or_default")]
            stream: bool,
            stream_options: Option<super::request::StreamOptions>,
            #[serde(default)]
            use_beam_search: bool,
            best_of: Option<u32>,
            length_penalty: Option<f32>,
            truncate_prompt_tokens: Option<i64>,
            priority: Option<i32>,
            request_id: Option<String>,
            session_id: Option<String>,
            return_token_ids: Option<bool>,
            return_tokens_as_token_ids: Option<bool>,
            cache_salt: Option<String>,
            cache_hit_threshold: Option<f64>,
        }

        impl $name {
            /// Checks that all requests for text must pass, in vLLM's order.
            fn check_shared(
                &self,
                model: &$crate::server::model::Model,
            ) -> Result<(), $crate::server::error::ApiError> {
                super::request::check_shared(&super::request::Shared {
                    frontend: model.frontend,
                    cache_salt: self.cache_salt.as_deref(),
                    cache_hit_threshold: self.cache_hit_threshold,
                    stream: self.stream,
                    stream_options: self.stream_options.as_ref(),
                    n: self.n,
                    best_of: self.best_of,
                    prompt_logprobs: self.prompt_logprobs,
                    use_beam_search: self.use_beam_search,
                    length_penalty: self.length_penalty,
                    spaces_between_special_tokens: self.spaces_between_special_tokens,
                })
            }

            /// The sampling parameters, except the number of tokens and logprobs.
            fn take_sampling(&mut self) -> $crate::generate::Sampling {
                $crate::generate::Sampling {
                    frequency_penalty: self.frequency_penalty,
                    presence_penalty: self.presence_penalty,
                    repetition_penalty: self.repetition_penalty,
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    seed: self.seed,
                    n: self.n,
                    max_tokens: None,
                    min_tokens: self.min_tokens,
                    stream_interval: self.stream_interval.map(std::num::NonZeroU32::get),
                    stop: self.stop.take(),
                    stop_token_ids: self.stop_token_ids.take(),
                    include_stop_str_in_output: self.include_stop_str_in_output,
                    ignore_eos: self.ignore_eos,
                    skip_special_tokens: self.skip_special_tokens,
                    logit_bias: self.logit_bias.take(),
                    allowed_token_ids: self.allowed_token_ids.take(),
                    bad_words: self.bad_words.take(),
                    logprobs: None,
                    prompt_logprobs: self.prompt_logprobs,
                    repetition_detection: self.repetition_detection,
                    structured_outputs: None,
                    thinking_token_budget: self.thinking_token_budget,
                    vllm_xargs: self.vllm_xargs.take(),
                    kv_transfer_params: super::request::with_bootstrap(
                        self.kv_transfer_params.take(),
                        [
                            ("bootstrap_host", self.bootstrap_host.take()),
                            ("bootstrap_port", self.bootstrap_port.take()),
                            ("bootstrap_room", self.bootstrap_room.take()),
                        ],
                    ),
                }
            }

            /// Fields of the rendered request other than its prompt and sampling parameters.
            fn carried(&self, headers: &axum::http::HeaderMap) -> super::request::Carried {
                super::request::Carried {
                    stream: self.stream,
                    stream_options: self.stream_options.filter(|_| self.stream),
                    cache_salt: self.cache_salt.clone(),
                    priority: super::request::priority_of(headers).or(self.priority).unwrap_or(0),
                    return_token_ids: self.return_token_ids,
                }
            }

            /// The properties of the request that affect its routing and scheduling.
            fn placement(
                &self,
                headers: &axum::http::HeaderMap,
                adapter: Option<vcr_wire::LoraRequest>,
            ) -> $crate::generate::Placement {
                let priority = super::request::priority_of(headers).or(self.priority);
                $crate::generate::Placement {
                    priority: priority.unwrap_or(0).into(),
                    cache_salt: self.cache_salt.clone(),
                    session_id: super::request::session_of(headers).or_else(|| self.session_id.clone()),
                    rank: super::request::rank_of(headers),
                    adapter,
                    least_cached: super::request::least_cached_of(headers).or(self.cache_hit_threshold),
                }
            }
        }
    };
}
pub(super) use text_request;

/// Inputs of [`check_shared`].
pub(super) struct Shared<'a> {
    pub(super) frontend: FrontendKind,
    pub(super) cache_salt: Option<&'a str>,
    pub(super) cache_hit_threshold: Option<f64>,
    pub(super) stream: bool,
    pub(super) stream_options: Option<&'a StreamOptions>,
    pub(super) n: Option<u32>,
    pub(super) best_of: Option<u32>,
    pub(super) prompt_logprobs: Option<i32>,
    pub(super) use_beam_search: bool,
    pub(super) length_penalty: Option<f32>,
    pub(super) spaces_between_special_tokens: bool,
}

/// The maximum number of completions of a request. Each completion is a separate engine request.
pub(super) const MAX_N: u32 = 128;

pub(super) fn check_shared(asked: &Shared<'_>) -> Result<(), ApiError> {
    if asked.cache_salt.is_some_and(str::is_empty) {
        return Err(ApiError::invalid(
            "cache_salt: Validation error: length [{\"value\": String(\"\"), \"min\": Number(1)}]",
        ));
    }
    check_threshold(asked.cache_hit_threshold)?;
    StreamOptions::check(asked.stream_options, asked.stream)?;
    let n = asked.n.unwrap_or(1);
    if n > MAX_N {
        return Err(ApiError::invalid_param("n", format!("n must be from 1 to {MAX_N}, got {n}.")));
    }
    // The Python server has no field `best_of`, and accepts any length.
    let is_rust = asked.frontend == FrontendKind::Rust;
    if is_rust && asked.best_of.is_some_and(|best_of| best_of != n.max(1)) {
        return Err(ApiError::invalid_param("best_of", "best_of is not supported."));
    }
    if let Some(count) = asked.prompt_logprobs {
        if asked.stream && (count > 0 || count == -1) {
            let message = "`prompt_logprobs` are not available when `stream=true`.";
            return Err(ApiError::invalid_param("prompt_logprobs", message));
        }
        if count < -1 {
            let message = "`prompt_logprobs` must be a non-negative value or -1.";
            return Err(ApiError::invalid_param("prompt_logprobs", message));
        }
    }
    if asked.use_beam_search {
        return Err(ApiError::invalid_param("use_beam_search", "use_beam_search is not supported."));
    }
    if is_rust && asked.length_penalty.is_some_and(|penalty| penalty != 1.0) {
        return Err(ApiError::invalid_param("length_penalty", "length_penalty is not supported."));
    }
    if is_rust && !asked.spaces_between_special_tokens {
        return Err(ApiError::invalid_param(
            "spaces_between_special_tokens",
            "spaces_between_special_tokens is not supported.",
        ));
    }
    Ok(())
}

/// Returns the value of a header, unless it is empty or not text.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim).filter(|text| !text.is_empty())
}

/// The data-parallel rank in the header. As in vLLM, a value that is not a number is ignored.
pub(super) fn rank_of(headers: &HeaderMap) -> Option<u32> {
    header(headers, "x-data-parallel-rank").and_then(|text| text.parse().ok())
}

pub(super) fn priority_of(headers: &HeaderMap) -> Option<i32> {
    header(headers, "x-vllm-priority").and_then(|text| text.parse().ok())
}

/// Refuses a `cache_hit_threshold` outside 0 to 1.
pub(super) fn check_threshold(threshold: Option<f64>) -> Result<(), ApiError> {
    match threshold.filter(|threshold| !(0.0..=1.0).contains(threshold)) {
        None => Ok(()),
        Some(given) => {
            let message = format!("`cache_hit_threshold` must be in [0, 1], got {given}.");
            Err(ApiError::invalid_param("cache_hit_threshold", message))
        }
    }
}

/// The `cache_hit_threshold` of a request with llm-d-inference-sim's header. It is infinite, so no prompt reaches
/// it.
pub(super) fn least_cached_of(headers: &HeaderMap) -> Option<f64> {
    let is_asked = header(headers, "x-cache-threshold-finish-reason")?.eq_ignore_ascii_case("true");
    is_asked.then_some(f64::INFINITY)
}

pub(super) fn session_of(headers: &HeaderMap) -> Option<String> {
    header(headers, SESSION_ID.as_str()).map(str::to_owned)
}

/// An empty model name is an error, except in the Python server.
pub(super) fn check_named(name: Option<&str>, model: &Model) -> Result<(), ApiError> {
    match name {
        Some("") if model.frontend == FrontendKind::Rust => Err(ApiError::unknown_model("")),
        _ => Ok(()),
    }
}

/// The Python server refuses outputs longer than the maximum model length.
pub(super) fn check_length(model: &Model, name: &'static str, tokens: Option<u32>) -> Result<(), ApiError> {
    match (model.frontend, tokens) {
        (FrontendKind::Python, Some(tokens)) if tokens > model.max_model_len => {
            let limit = model.max_model_len;
            let message = format!(
                "{name}={tokens} cannot be greater than max_model_len={limit}. Please request fewer output tokens. \
                 (parameter={name}, value={tokens})"
            );
            Err(ApiError::invalid_param(name, message))
        }
        _ => Ok(()),
    }
}

/// The request id in the header, which may be empty.
pub(super) fn id_header(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-request-id").and_then(|value| value.to_str().ok())
}

/// The request id: from the header, from the body, or a new one.
pub(super) fn request_id(ids: &RequestIds, headers: &HeaderMap, prefix: &str, own: Option<&str>) -> String {
    match id_header(headers).or(own) {
        Some(id) => format!("{prefix}-{id}"),
        None => ids.behind(prefix),
    }
}

/// Checks a submission against the server's state, once per call and before the engines get it: the bootstrap room
/// for a disaggregated SGLang engine, and the structures that answers must or may have.
pub(super) async fn check_submission(app: &App, asked: &mut crate::generate::EngineSubmission) -> Result<(), ApiError> {
    let mode = app.options.sglang.as_ref().and_then(|info| info.get("disaggregation_mode"));
    if mode.is_some_and(|mode| mode != "null") {
        let params = asked.request.sampling_params.as_ref().and_then(|params| params.kv_transfer_params());
        if params.is_none_or(|params| params.get("bootstrap_room").is_none_or(|room| *room == vcr_wire::Value::Nil)) {
            let message = "Invalid request: Disaggregated request received without bootstrap room id.";
            return Err(ApiError::invalid(message));
        }
    }
    let certain = asked.request.sampling_params.as_ref().and_then(|params| params.structured_outputs.as_ref());
    if let Some(structure) = certain {
        if let vcr_wire::Value::Map(pairs) = &**structure
            && let Some((_, schema)) = pairs.iter().find(|(key, _)| key.as_str() == Some("json"))
            && let Ok(schema) = serde_json::to_value(schema)
            && let Some(reason) = app.options.schema_backend.refusal(&schema, app.options.frontend)
        {
            return Err(ApiError::invalid(reason));
        }
        return app.structures.check(std::sync::Arc::clone(structure)).await.map_err(ApiError::invalid);
    }
    if let Some(chance) = &mut asked.chance {
        // If the structure is invalid, only the requests that draw it are refused.
        chance.refusal = app.structures.check(std::sync::Arc::clone(&chance.structured_outputs)).await.err();
    }
    Ok(())
}

/// Sends one of the `count` requests of a call to an engine.
pub(super) fn submit(
    app: &Arc<App>,
    id: &str,
    index: usize,
    count: usize,
    asked: crate::generate::EngineSubmission,
) -> Result<crate::generate::TextStream, ApiError> {
    if index == 0 {
        app.engines.check_fits(count)?;
        app.engines.check_admission(count)?;
    }
    let crate::generate::EngineSubmission { mut request, mut text, chance } = asked;
    text.least_cached = text.least_cached.or(app.options.least_cached);
    // Engines read the index among several completions from this id.
    request.request_id = if count > 1 { app.ids.behind(&format!("{index}_{id}")) } else { app.ids.behind(id) };
    request.external_req_id = Some(id.to_owned());
    request.arrival_time = crate::server::unix_s();
    if let Some(params) = request.sampling_params.as_mut().filter(|_| app.options.is_varied)
        && params.seed.is_none()
        && params.temperature != 0.0
    {
        params.seed = Some(app.ids.seed().into());
    }
    let prompt = request.prompt_token_ids.as_deref().unwrap_or_default();
    if let (Some(chance), Some(params)) = (chance, request.sampling_params.as_mut()) {
        chance.take(params, prompt, index)?;
    }
    let detokenizer = vcr_text::Detokenizer::after(&app.model.tokenizer, text.skip_special, prompt);
    let outputs = app.engines.submit(request)?;
    Ok(crate::generate::TextStream::new(outputs, &app.model.tokenizer, text, detokenizer))
}

/// Sends the `count` equal requests of a call to the engines.
pub(super) fn submit_all(
    app: &Arc<App>,
    id: &str,
    count: usize,
    asked: crate::generate::EngineSubmission,
) -> Result<Vec<crate::generate::TextStream>, ApiError> {
    let requests = std::iter::repeat_n(asked, count).enumerate();
    requests.map(|(index, asked)| submit(app, id, index, count, asked)).collect()
}

/// Adds the fields of SGLang's routers to the parameters of a KV transfer.
pub(super) fn with_bootstrap(
    params: Option<serde_json::Map<String, serde_json::Value>>,
    bootstrap: [(&str, Option<serde_json::Value>); 3],
) -> Option<serde_json::Map<String, serde_json::Value>> {
    if bootstrap.iter().all(|(_, value)| value.is_none()) {
        return params;
    }
    let mut params = params.unwrap_or_default();
    params.extend(bootstrap.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    Some(params)
}

/// The parameters of one prompt's KV transfer. Lists have one value per prompt. A single bootstrap room is
/// incremented per prompt, as in SGLang. An SGLang server refuses invalid values; a vLLM server treats them as a
/// cache miss.
pub(super) fn transfer_of(
    params: Option<&serde_json::Map<String, serde_json::Value>>,
    index: usize,
    num_prompts: usize,
    is_sglang: bool,
) -> Result<Option<serde_json::Map<String, serde_json::Value>>, ApiError> {
    use serde_json::Value;
    let own = |(key, value): (&String, &Value)| {
        let expected = match key.as_str() {
            "bootstrap_host" => "a text",
            "bootstrap_port" => "0 to 65535",
            "bootstrap_room" => "a whole number of at least 0",
            _ => return Ok((key.clone(), value.clone())),
        };
        let value = match value.as_array() {
            Some(values) if values.len() != num_prompts => {
                return Err(ApiError::invalid(format!("The length of {key} should be equal to the batch size.")));
            }
            Some(values) => values[index].clone(),
            None if key == "bootstrap_room" && index > 0 => {
                value.as_u64().map_or(value.clone(), |room| room.saturating_add(index as u64).into())
            }
            None => value.clone(),
        };
        let is_valid = match key.as_str() {
            _ if value.is_null() || !is_sglang => true,
            "bootstrap_host" => value.is_string(),
            "bootstrap_port" => value.as_u64().is_some_and(|port| u16::try_from(port).is_ok()),
            _ => value.is_u64(),
        };
        if !is_valid {
            return Err(ApiError::invalid(format!("invalid {key} {value}: expected {expected}")));
        }
        Ok((key.clone(), value))
    };
    params.map(|params| params.iter().map(own).collect()).transpose()
}
