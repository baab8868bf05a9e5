//! Reads responses of servers, one per line.
//!
//! A line is `{"request_id", "latency_ms", "response"}` with labels, times, `status` and `error` as a client
//! records them. A line may also be only the response, if the response states its own latency, as SGLang's
//! `meta_info` does. Responses come from SGLang's `/generate`, vLLM's `/inference/v1/generate`, and OpenAI's
//! completions, chats and embeddings.

use std::io::BufRead;

use serde_json::{Map, Value};

use super::fields::{error_class, known, ns, number, object, of_number, optional_text, set_labels, time};
use super::{Out, each_line};
use crate::error::{GateError, Place, Problem};
use crate::observation::Observation;

/// Status codes below this value are successes.
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

pub(super) fn error_of_status(status: f64) -> Option<String> {
    (status >= FIRST_ERROR_STATUS).then(|| format!("http {status}"))
}

/// The error of a request that SGLang aborted. SGLang reports it as a finish reason.
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
    // Each item is a log probability, a token id and sometimes a text.
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

/// A part of an answer, from one choice of a response or a chunk.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Piece {
    pub(super) text: Option<String>,
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) logprobs: Option<Vec<f64>>,
}

impl Piece {
    /// Reads a choice of OpenAI's or vLLM's API: a message, a delta, a text or token ids.
    pub(super) fn of_choice(choice: &Value) -> Result<Self, Problem> {
        let message = choice.get("delta").or_else(|| choice.get("message"));
        let text = message.and_then(|message| message.get("content")).or_else(|| choice.get("text"));
        let token_ids = choice.get("token_ids").filter(|ids| !ids.is_null()).map(token_ids).transpose()?;
        let logprobs = choice.get("logprobs").and_then(Value::as_object).map(logprobs).transpose()?.flatten();
        Ok(Self { text: text.and_then(Value::as_str).map(str::to_owned), token_ids, logprobs })
    }

    pub(super) fn of_text(text: Option<&Value>) -> Self {
        Self { text: text.and_then(Value::as_str).map(str::to_owned), ..Self::default() }
    }

    /// Number of the piece's tokens: of its token ids or log probabilities, or 1 for a piece that has only text.
    pub(super) fn tokens(&self) -> u32 {
        let ids = self.token_ids.as_ref().map(Vec::len);
        let known = ids.or_else(|| self.logprobs.as_ref().map(Vec::len));
        let has_text = self.text.as_ref().is_some_and(|text| !text.is_empty());
        known.map_or(u32::from(has_text), |len| len as u32)
    }

    pub(super) fn extend(&mut self, later: Self) {
        append(&mut self.text, later.text, |text, more| text.push_str(&more));
        append(&mut self.token_ids, later.token_ids, |ids, more| ids.extend(more));
        append(&mut self.logprobs, later.logprobs, |logprobs, more| logprobs.extend(more));
    }
}

fn append<T>(whole: &mut Option<T>, later: Option<T>, extend: impl Fn(&mut T, T)) {
    match (whole.as_mut(), later) {
        (Some(whole), Some(later)) => extend(whole, later),
        (None, later) => *whole = later,
        (Some(_), None) => {}
    }
}

pub(super) fn token_ids(ids: &Value) -> Result<Vec<u32>, Problem> {
    let invalid = || Problem::new("token_ids", "invalid token ids: expected an array of whole numbers");
    let of_one = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(invalid);
    ids.as_array().ok_or_else(invalid)?.iter().map(of_one).collect()
}

/// Reads the log probabilities of the chosen tokens: `content` in chats, `token_logprobs` in completions.
fn logprobs(of: &Map<String, Value>) -> Result<Option<Vec<f64>>, Problem> {
    let invalid = || Problem::new("logprobs", "invalid log probability: expected a finite number");
    let finite = |value: &Value| value.as_f64().filter(|value| value.is_finite()).ok_or_else(invalid);
    if let Some(content) = of.get("content").and_then(Value::as_array) {
        return content.iter().map(|token| finite(&token["logprob"])).collect::<Result<_, _>>().map(Some);
    }
    match of.get("token_logprobs").and_then(Value::as_array) {
        // The first token of an echoed prompt has no log probability.
        Some(all) => all.iter().filter(|value| !value.is_null()).map(finite).collect::<Result<_, _>>().map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn choices_of_every_api_have_pieces() {
        let piece = |choice: Value| Piece::of_choice(&choice).expect("it is one");
        let chat =
            piece(json!({"delta": {"content": "ab"}, "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1}]}}));
        assert_eq!(
            (chat.text.as_deref(), chat.logprobs.as_deref(), chat.tokens()),
            (Some("ab"), Some(&[-0.5, -1.0][..]), 2)
        );
        let completion = piece(json!({"text": "x", "logprobs": {"token_logprobs": [null, -2.0]}}));
        assert_eq!((completion.logprobs.as_deref(), completion.tokens()), (Some(&[-2.0][..]), 1));
        let mut ids = piece(json!({"token_ids": [1, 2]}));
        ids.extend(piece(json!({"token_ids": [3], "text": "t"})));
        assert_eq!((ids.token_ids, ids.text), (Some(vec![1, 2, 3]), Some("t".to_owned())));
        assert_eq!(piece(json!({"delta": {"role": "assistant"}})).tokens(), 0);
        assert!(Piece::of_choice(&json!({"token_ids": [-1]})).is_err());
        assert!(Piece::of_choice(&json!({"logprobs": {"content": [{}]}})).is_err());
    }
}
