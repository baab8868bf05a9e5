//! Converts sampling parameters for engines.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value as Json};
use vcr_base::random::Stream;
use vcr_core::seed::mix;
use vcr_wire::{EngineCoreRequest, LoraRequest, OutputKind, RepetitionDetection, SamplingParams, Value};

use super::ids::{check_allowed, check_bad_words, check_ids, check_prompt_ids, logit_bias, wide};
use super::text::TextSettings;
use super::value::wire_of;
use crate::server::error::ApiError;
use crate::server::frontend_kind::FrontendKind;
use crate::server::model::Model;

/// vLLM's default limit of logprobs per position.
const MAX_LOGPROBS: i32 = 20;
/// Below this temperature, vLLM always takes the most likely token.
const GREEDY_BELOW: f64 = 1e-5;
/// The maximum number of stop strings in a request.
const MAX_STOP_STRINGS: usize = 4;

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum StringOrArray {
    String(String),
    Array(Vec<String>),
}

impl StringOrArray {
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            Self::String(text) => vec![text],
            Self::Array(texts) => texts,
        }
    }
}

/// When to stop an output that repeats itself.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(expecting = "struct RepetitionDetectionParams")]
pub(crate) struct Repetition {
    pub(crate) max_pattern_size: u32,
    #[serde(default)]
    pub(crate) min_pattern_size: u32,
    pub(crate) min_count: u32,
}

/// The parameters that all requests for text have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sampling {
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f32>,
    pub(crate) seed: Option<i64>,
    pub(crate) n: Option<u32>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) min_tokens: Option<u32>,
    /// Number of tokens in a chunk of a stream, if it is more than the server's.
    pub(crate) stream_interval: Option<u32>,
    pub(crate) stop: Option<StringOrArray>,
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    pub(crate) include_stop_str_in_output: bool,
    pub(crate) ignore_eos: bool,
    pub(crate) skip_special_tokens: bool,
    pub(crate) logit_bias: Option<BTreeMap<String, f32>>,
    pub(crate) allowed_token_ids: Option<Vec<u32>>,
    pub(crate) bad_words: Option<Vec<String>>,
    pub(crate) logprobs: Option<i32>,
    pub(crate) prompt_logprobs: Option<i32>,
    pub(crate) repetition_detection: Option<Repetition>,
    /// The structure of the output, in the engines' format.
    pub(crate) structured_outputs: Option<Arc<Value>>,
    pub(crate) thinking_token_budget: Option<i64>,
    pub(crate) vllm_xargs: Option<Map<String, Json>>,
    pub(crate) kv_transfer_params: Option<Map<String, Json>>,
}

/// A request for text that is ready for an engine.
#[derive(Clone, Debug)]
pub(crate) struct EngineSubmission {
    /// Boxed, because it has several hundred bytes.
    pub(crate) request: Box<EngineCoreRequest>,
    pub(crate) text: TextSettings,
    /// A reasoning block or tool call that the request leaves to chance.
    pub(crate) chance: Option<OptionalStructure>,
}

/// A structure that an output has with some probability.
#[derive(Clone, Debug)]
pub(crate) struct OptionalStructure {
    pub(crate) probability: f64,
    pub(crate) structured_outputs: Arc<Value>,
    /// The reason why the engines do not support the structure. None if they support it.
    pub(crate) refusal: Option<String>,
}

impl OptionalStructure {
    /// Decides whether a request gets the structure. Equal requests with equal seeds get the same result.
    pub(crate) fn take(self, params: &mut SamplingParams, prompt: &[u32], index: usize) -> Result<(), ApiError> {
        let own = params.seed.and_then(|seed| seed.as_u64().or(seed.as_i64().map(i64::cast_unsigned))).unwrap_or(0);
        let content = prompt.iter().fold(own, |seed, token| mix(seed ^ u64::from(*token)));
        if Stream::new(content ^ index as u64, "structure").unit() < self.probability {
            params.structured_outputs = Some(self.structured_outputs);
            return self.refusal.map_or(Ok(()), |reason| Err(ApiError::invalid(reason)));
        }
        Ok(())
    }
}

/// The properties of a request that affect its routing and scheduling.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    pub(crate) priority: i64,
    pub(crate) cache_salt: Option<String>,
    pub(crate) session_id: Option<String>,
    pub(crate) rank: Option<u32>,
    pub(crate) adapter: Option<LoraRequest>,
    /// The minimum share of the prompt that must be cached. Otherwise there is no answer.
    pub(crate) least_cached: Option<f64>,
}

impl Sampling {
    /// Builds the engine's request for an answer to `prompt`.
    ///
    /// # Errors
    /// When a parameter is out of range or the prompt is too long. Errors have vLLM's texts.
    pub(crate) fn into_engine_request(
        self,
        model: &Model,
        prompt: Vec<u32>,
        place: Placement,
    ) -> Result<EngineSubmission, ApiError> {
        check_logprobs("logprobs", self.logprobs, model)?;
        check_logprobs("prompt_logprobs", self.prompt_logprobs, model)?;
        let generation = &model.generation;
        let number = |own: Option<f32>, default: Option<f64>, other: f64| own.map_or(default.unwrap_or(other), wide);
        let temperature = number(self.temperature, generation.temperature, 1.0);
        let top_p = number(self.top_p, generation.top_p, 1.0);
        let min_p = number(self.min_p, generation.min_p, 0.0);
        let repetition_penalty = number(self.repetition_penalty, generation.repetition_penalty, 1.0);
        let frequency_penalty = number(self.frequency_penalty, None, 0.0);
        let presence_penalty = number(self.presence_penalty, None, 0.0);
        if model.frontend == FrontendKind::Python {
            check_count(self.n, temperature)?;
        }
        let max_tokens = model.max_tokens(self.max_tokens, prompt.len())?;
        let min_tokens = self.min_tokens.unwrap_or(0);
        if min_tokens > max_tokens {
            return Err(ApiError::invalid(format!(
                "`min_tokens` must be less than or equal to `max_tokens`, got min_tokens={min_tokens}, \
                 max_tokens={max_tokens}"
            )));
        }
        if self.thinking_token_budget.is_some_and(|budget| budget < -1) {
            let message = "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.";
            return Err(ApiError::invalid(message));
        }
        check_range("temperature", temperature, (0.0..=2.0).contains(&temperature), "[0, 2]")?;
        check_range("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "(0, 1]")?;
        check_range("min_p", min_p, (0.0..=1.0).contains(&min_p), "[0, 1]")?;
        let is_penalty = |value: f64| (-2.0..=2.0).contains(&value);
        check_range("frequency_penalty", frequency_penalty, is_penalty(frequency_penalty), "[-2, 2]")?;
        check_range("presence_penalty", presence_penalty, is_penalty(presence_penalty), "[-2, 2]")?;
        check_range("repetition_penalty", repetition_penalty, repetition_penalty > 0.0, "(0, inf)")?;
        let stop = check_stop(self.stop)?;
        check_prompt_ids(&prompt, model)?;
        check_ids("stop_token_ids", self.stop_token_ids.as_deref().unwrap_or_default(), model.vocab_size)?;
        check_allowed(self.allowed_token_ids.as_deref(), model)?;
        check_bad_words(self.bad_words.as_deref())?;
        let logit_bias = self.logit_bias.map(|biases| logit_bias(biases, model)).transpose()?;

        let mut stop_token_ids = self.stop_token_ids.unwrap_or_default();
        let (eos_token, further) = match model.eos_tokens.split_first() {
            Some((first, further)) => (Some(*first), further),
            None => (None, &[][..]),
        };
        if !self.ignore_eos {
            let further = further.iter().filter(|token| !stop_token_ids.contains(token));
            let further: Vec<u32> = further.copied().collect();
            stop_token_ids.extend(further);
        }
        let eos_token = eos_token.filter(|_| !self.ignore_eos);
        let text = TextSettings {
            stop,
            include_stop: self.include_stop_str_in_output,
            skip_special: self.skip_special_tokens,
            min_tokens,
            stream_interval: self.stream_interval.unwrap_or(1).max(model.stream_interval),
            eos_token,
            has_spans: false,
            least_cached: place.least_cached,
        };
        let mut extra = self.vllm_xargs.unwrap_or_default();
        if let Some(params) = self.kv_transfer_params {
            extra.insert("kv_transfer_params".to_owned(), Json::Object(params));
        }
        let params = SamplingParams {
            n: self.n.unwrap_or(1).max(1),
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            temperature,
            top_p,
            top_k: self.top_k.or(generation.top_k).unwrap_or(0),
            min_p,
            seed: self.seed.map(Into::into),
            stop_token_ids: (!stop_token_ids.is_empty()).then_some(stop_token_ids),
            ignore_eos: self.ignore_eos,
            max_tokens: Some(max_tokens),
            min_tokens,
            logprobs: self.logprobs.map(i64::from),
            prompt_logprobs: self.prompt_logprobs.map(i64::from),
            output_kind: OutputKind::Delta,
            eos_token_id: eos_token,
            structured_outputs: self.structured_outputs,
            logit_bias,
            allowed_token_ids: self.allowed_token_ids,
            bad_words: self.bad_words,
            thinking_token_budget: self.thinking_token_budget,
            stream_interval: self.stream_interval,
            repetition_detection: self.repetition_detection.map(|repetition| RepetitionDetection {
                max_pattern_size: repetition.max_pattern_size,
                min_pattern_size: repetition.min_pattern_size,
                min_count: repetition.min_count,
            }),
            extra_args: (!extra.is_empty()).then(|| wire_of(&Json::Object(extra))),
            ..SamplingParams::default()
        };
        let request = Box::new(EngineCoreRequest {
            prompt_token_ids: Some(prompt),
            sampling_params: Some(params),
            lora_request: place.adapter,
            cache_salt: place.cache_salt,
            data_parallel_rank: place.rank,
            priority: place.priority,
            session_id: place.session_id,
            ..EngineCoreRequest::default()
        });
        Ok(EngineSubmission { request, text, chance: None })
    }
}

/// Checks the number of answers, with the Python server's error texts.
fn check_count(n: Option<u32>, temperature: f64) -> Result<(), ApiError> {
    match n {
        Some(0) => Err(ApiError::invalid("n must be at least 1, got 0.")),
        Some(n) if n > 1 && temperature < GREEDY_BELOW => {
            Err(ApiError::invalid(format!("n must be 1 when using greedy sampling, got {n}.")))
        }
        _ => Ok(()),
    }
}

fn check_range(name: &'static str, value: f64, is_inside: bool, expected: &str) -> Result<(), ApiError> {
    if !value.is_finite() {
        return Err(ApiError::invalid(format!("{name} must be a finite number, got {value}")));
    }
    if is_inside { Ok(()) } else { Err(ApiError::invalid(format!("{name} must be in {expected}, got {value}"))) }
}

fn check_logprobs(name: &str, asked: Option<i32>, model: &Model) -> Result<(), ApiError> {
    if let Some(asked) = asked.filter(|asked| *asked < -1) {
        return Err(ApiError::invalid(format!("{name} must be non-negative or -1, got {asked}")));
    }
    let asked = asked.map_or(0, |asked| if asked == -1 { model.vocab_size.min(i32::MAX as u32) as i32 } else { asked });
    if asked <= MAX_LOGPROBS {
        return Ok(());
    }
    Err(ApiError::invalid(format!("requested {name} of {asked}, which is greater than max allowed: {MAX_LOGPROBS}")))
}

fn check_stop(stop: Option<StringOrArray>) -> Result<Vec<String>, ApiError> {
    let given = match &stop {
        Some(StringOrArray::String(text)) => Json::from(text.as_str()),
        Some(StringOrArray::Array(texts)) => Json::from(texts.as_slice()),
        None => return Ok(Vec::new()),
    };
    let stop = stop.map(StringOrArray::into_vec).unwrap_or_default();
    let refused = |code: &str| ApiError::invalid(format!("stop: Validation error: {code} [{{\"value\": {given:?}}}]"));
    if stop.len() > MAX_STOP_STRINGS {
        return Err(refused(&format!("stop strings must contain at most {MAX_STOP_STRINGS} items")));
    }
    if stop.iter().any(String::is_empty) {
        return Err(refused("stop strings cannot be empty"));
    }
    Ok(stop)
}
