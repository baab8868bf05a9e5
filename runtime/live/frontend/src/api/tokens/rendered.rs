//! Tokenized requests, the responses of render endpoints.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};
use vcr_text::Value as Templated;

use super::features::Features;
use crate::api::request::{Carried, StreamOptions};
use crate::generate::{Sampling, json_of, wide};
use crate::media::MediaPrompt;
use crate::server::App;
use crate::server::chats::ChatOptions;
use crate::server::ids::RequestIds;
use crate::server::model::Model;

/// The inputs of rendering: a server without engines.
#[derive(Clone, Copy)]
pub(in crate::api) struct Rendering<'a> {
    pub(in crate::api) model: &'a Model,
    pub(in crate::api) chats: &'a ChatOptions,
    pub(in crate::api) ids: &'a RequestIds,
}

impl<'a> Rendering<'a> {
    pub(in crate::api) fn of(app: &'a App) -> Self {
        Self { model: &app.model, chats: &app.options.chat, ids: &app.ids }
    }
}

#[derive(Debug, Serialize)]
pub(in crate::api) struct Rendered {
    request_id: String,
    model: String,
    token_ids: Vec<u32>,
    sampling_params: Map<String, Value>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<String>,
    priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    return_token_ids: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_parser_kwargs: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    features: Option<Features>,
}

impl Rendered {
    pub(in crate::api) fn new(
        request_id: String,
        model: String,
        (token_ids, media): MediaPrompt,
        mut sampling: Sampling,
        carried: Carried,
    ) -> Self {
        let Carried { stream, stream_options, cache_salt, priority, return_token_ids } = carried;
        let kv_transfer_params = sampling.kv_transfer_params.take();
        Self {
            request_id,
            model,
            token_ids,
            sampling_params: sampling_params(sampling),
            stream,
            stream_options,
            cache_salt,
            priority,
            kv_transfer_params,
            return_token_ids,
            reasoning_parser_kwargs: None,
            features: media.map(|media| Features::of(&media)),
        }
    }

    /// Sets the variables that the chat template got.
    pub(in crate::api) fn set_template_kwargs(&mut self, kwargs: Option<&BTreeMap<String, Templated>>) {
        let kwargs = kwargs.filter(|kwargs| !kwargs.is_empty());
        self.reasoning_parser_kwargs = kwargs.map(|kwargs| json!({ "chat_template_kwargs": kwargs }));
    }
}

/// A structure without the fields that only engines need.
fn given_structure(structure: &vcr_wire::Value) -> Value {
    let mut structure = json_of(structure);
    if let Some(fields) = structure.as_object_mut() {
        fields.remove("_backend");
    }
    structure
}

/// The sampling parameters of a request by vLLM's names, without the model's defaults.
fn sampling_params(sampling: Sampling) -> Map<String, Value> {
    let number = |value: Option<f32>| value.map(wide);
    let repetition = sampling.repetition_detection.map(|repetition| {
        json!({
            "max_pattern_size": repetition.max_pattern_size,
            "min_pattern_size": repetition.min_pattern_size,
            "min_count": repetition.min_count,
        })
    });
    let biases = sampling.logit_bias.map(|biases| -> Map<String, Value> {
        biases.into_iter().map(|(token, bias)| (token, json!(wide(bias)))).collect()
    });
    let stop = sampling.stop.map(|stop| stop.into_vec());
    let params = json!({
        "n": sampling.n.filter(|n| *n > 1),
        "temperature": number(sampling.temperature),
        "top_p": number(sampling.top_p),
        "top_k": sampling.top_k,
        "min_p": number(sampling.min_p),
        "frequency_penalty": number(sampling.frequency_penalty),
        "presence_penalty": number(sampling.presence_penalty),
        "repetition_penalty": number(sampling.repetition_penalty),
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "stream_interval": sampling.stream_interval,
        "logprobs": sampling.logprobs,
        "prompt_logprobs": sampling.prompt_logprobs,
        "stop": stop,
        "include_stop_str_in_output": sampling.include_stop_str_in_output.then_some(true),
        "stop_token_ids": sampling.stop_token_ids,
        "ignore_eos": sampling.ignore_eos,
        "logit_bias": biases,
        "allowed_token_ids": sampling.allowed_token_ids,
        "bad_words": sampling.bad_words,
        "repetition_detection": repetition,
        "structured_outputs": sampling.structured_outputs.as_deref().map(given_structure),
        "thinking_token_budget": sampling.thinking_token_budget,
        "vllm_xargs": sampling.vllm_xargs,
    });
    let Value::Object(mut params) = params else { return Map::new() };
    params.retain(|_, value| !value.is_null());
    params
}
