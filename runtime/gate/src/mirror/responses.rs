//! Responses of servers, one a line.
//!
//! A line is `{"request_id", "latency_ms", "response"}` with labels, times, `status` and `error`
//! as a client has them, or the response alone where it says its own latency, as SGLang's
//! `meta_info` does. Responses are those of SGLang's `/generate`, of vLLM's
//! `/inference/v1/generate`, and of OpenAI's completions, chats and embeddings.

use std::io::BufRead;

use serde_json::{Map, Value};

use super::fields::{error_class, known, ns, number, object, of_number, optional_text, set_labels, time};
use super::logprobs::{Piece, token_ids};
use super::{Out, each_line};
use crate::error::{GateError, Place, Problem};
use crate::observation::Observation;

/// Status codes below this one are those of successes.
const FIRST_ERROR_STATUS: f64 = 400.0;

pub(super) fn read(reader: impl BufRead, out: &mut Out<'_, '_>) -> Result<(), GateError> {
    let name = out.name.clone();
    each_line(reader, &name, |line, bytes| {
        let place = Place::Line(line);
        let observed = object(bytes).and_then(|row| observation(&row));
        let (observation, tokens) = observed.map_err(|problem| out.problem(problem, place))?;
        out.add(observation, tokens, place)
    })
}

/// The observation of a line, and the length of its answer.
pub(super) fn observation(row: &Map<String, Value>) -> Result<(Observation<'static>, Option<u64>), Problem> {
    let empty = Map::new();
    let response = match row.get("response") {
        None => row,
        Some(Value::Object(response)) => response,
        Some(Value::Null) => &empty,
        Some(_) => return Err(Problem::new("response", "invalid response: expected an object")),
    };
    let meta = response.get("meta_info").and_then(Value::as_object);
    let mut observation = Observation::default();
    set_labels(&mut observation, row)?;
    observation.ttft_ns = time(row, "ttft")?;
    let tokens = match meta {
        Some(meta) => of_sglang(&mut observation, response, meta)?,
        None => of_openai(&mut observation, response)?,
    };
    let ids =
        [optional_text(row, "request_id")?, optional_text(response, "request_id")?, optional_text(response, "id")?];
    let of_meta = meta.map(|meta| optional_text(meta, "id")).transpose()?.flatten();
    let id = ids.into_iter().flatten().next().or(of_meta);
    observation.request_id = id.ok_or_else(|| Problem::new("request_id", "the field is missing"))?.into();
    let own_ns = match meta {
        Some(meta) => number(meta, "e2e_latency")?.map(|seconds| ns("e2e_latency", seconds, 1e9)).transpose()?,
        None => None,
    };
    observation.latency_ns = time(row, "latency")?.or(own_ns);
    let status = number(row, "status")?.and_then(error_of_status);
    let error = known(row, "error").or_else(|| known(response, "error")).map(error_class);
    let error = error.or(status).or_else(|| aborted(meta));
    observation.ok = error.is_none();
    observation.error = error.map(Into::into);
    Ok((observation, tokens))
}

/// The error class of a status code, if it is that of an error.
pub(super) fn error_of_status(status: f64) -> Option<String> {
    (status >= FIRST_ERROR_STATUS).then(|| format!("http {status}"))
}

/// SGLang ends requests that it gives up with a finish reason.
fn aborted(meta: Option<&Map<String, Value>>) -> Option<String> {
    let reason = meta?.get("finish_reason")?;
    (reason.get("type")?.as_str()? == "abort").then(|| "abort".to_owned())
}

fn of_sglang(
    observation: &mut Observation<'static>,
    response: &Map<String, Value>,
    meta: &Map<String, Value>,
) -> Result<Option<u64>, Problem> {
    observation.backend.get_or_insert_with(|| "sglang".into());
    observation.text = optional_text(response, "text")?.map(Into::into);
    if observation.text.is_none() && response.get("text").is_some_and(|text| text == "") {
        observation.text = Some("".into());
    }
    observation.token_ids = known(response, "output_ids").map(token_ids).transpose()?;
    observation.model_version =
        observation.model_version.take().or(optional_text(meta, "weight_version")?.map(Into::into));
    // Each is a log probability, a token id and perhaps a text.
    if let Some(logprobs) = meta.get("output_token_logprobs").and_then(Value::as_array) {
        let value = |entry: &Value| of_number("output_token_logprobs", entry.get(0).unwrap_or(&Value::Null));
        observation.vector = Some(logprobs.iter().map(value).collect::<Result<_, _>>()?);
        if observation.token_ids.is_none() {
            let ids: Value = logprobs.iter().map(|entry| entry.get(1).cloned().unwrap_or_default()).collect();
            observation.token_ids = Some(token_ids(&ids)?);
        }
    }
    if let Some(embedding) = known(response, "embedding") {
        observation.vector = Some(vector(embedding)?);
    }
    Ok(meta.get("completion_tokens").and_then(Value::as_u64))
}

fn of_openai(observation: &mut Observation<'static>, response: &Map<String, Value>) -> Result<Option<u64>, Problem> {
    if observation.model.is_none() {
        observation.model = optional_text(response, "model")?.map(Into::into);
    }
    if let Some(choice) = response.get("choices").and_then(|choices| choices.get(0)) {
        let piece = Piece::of_choice(choice)?;
        observation.text = piece.text.map(Into::into);
        observation.token_ids = piece.token_ids;
        observation.vector = piece.logprobs;
    } else if let Some(embedding) = response.get("data").and_then(|data| data.get(0)?.get("embedding")) {
        observation.vector = Some(vector(embedding)?);
    }
    let usage = response.get("usage").and_then(|usage| usage.get("completion_tokens"));
    Ok(usage.and_then(Value::as_u64))
}

fn vector(value: &Value) -> Result<Vec<f64>, Problem> {
    let all =
        value.as_array().ok_or_else(|| Problem::new("embedding", "invalid embedding: expected an array of numbers"))?;
    all.iter().map(|value| of_number("embedding", value)).collect()
}
