//! `Generate`: generates tokens from tokens or text. Answers are streamed, or sent as one message per completion.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::stream::unfold;
use serde_json::{Map, Value, json};
use vcr_text::Value as Templated;

use super::aborts::Registration;
use super::calls::{Answers, status};
use super::messages::{
    Answer, Constraint, GenerateComplete, GenerateRequest, GenerateResponse, GenerateStreamChunk, Input, InputLogProbs,
    InputTokenLogProb, MatchedStop, OutputLogProbs, SamplingParams, TopLogProbs,
};
use crate::api::answer::failure;
use crate::api::request::structured;
use crate::api::request::{check_submission, submit_all};
use crate::generate::{Finish, Merged, Piece, Placement, Position, Sampling, StopCause, StringOrArray, json_of};
use crate::server::error::ApiError;
use crate::server::{App, Counted};

pub(super) async fn generate(
    app: &Arc<App>,
    request: GenerateRequest,
    id: String,
    registration: Registration,
) -> Result<Answers<GenerateResponse>, ApiError> {
    let counted = app.count();
    let params = request.sampling_params.unwrap_or_default();
    let mut prompt = match request.input {
        Some(Input::Tokenized(input)) => input.input_ids,
        Some(Input::Text(text)) if params.truncate_prompt_tokens.is_some() => app.model.encode(&text, true)?,
        Some(Input::Text(text)) => app.model.encode_whole(&text, true)?,
        None => return Err(ApiError::invalid("invalid input: expected `tokenized` or `text`")),
    };
    truncate(&mut prompt, params.truncate_prompt_tokens, app.model.max_model_len)?;
    if prompt.is_empty() {
        return Err(ApiError::invalid("invalid input: expected at least one token"));
    }
    let (top, top_of_prompt) = (params.logprobs, params.prompt_logprobs);
    let kv_transfer_params = request.kv_transfer_params_json.as_deref().map(object).transpose()?;
    let place = Placement {
        rank: request
            .data_parallel_rank
            .map(u32::try_from)
            .transpose()
            .map_err(|_| ApiError::invalid("invalid data_parallel_rank: expected a rank from 0 on".to_owned()))?,
        ..Placement::default()
    };
    let sampling = Sampling { kv_transfer_params, ..sampling(params)? };
    let n = sampling.n.unwrap_or(1) as usize;
    let (prompt_tokens, shown) = (prompt.len() as u32, top_of_prompt.map(|_| prompt.clone()));
    let mut asked = sampling.into_engine_request(&app.model, prompt, place)?;
    check_submission(app, &mut asked).await?;
    let streams = submit_all(app, &id, n, asked)?;
    let generation = Generation {
        merged: Some(Merged::new(streams)),
        outputs: vec![Piece::default(); n],
        streams: request.stream,
        top,
        top_of_prompt,
        prompt_tokens,
        prompt: shown.unwrap_or_default(),
        ready: VecDeque::new(),
        registration,
        _counted: counted,
    };
    Ok(Box::pin(unfold(generation, |mut generation| async move {
        let answer = generation.next().await?;
        Some((answer, generation))
    })))
}

fn object(text: &str) -> Result<Map<String, Value>, ApiError> {
    serde_json::from_str(text).map_err(|_| ApiError::invalid("invalid kv_transfer_params_json: expected a JSON object"))
}

/// Keeps the last tokens of a prompt. -1 keeps as many as the model supports.
fn truncate(prompt: &mut Vec<u32>, to: Option<i32>, max_model_len: u32) -> Result<(), ApiError> {
    let keep = match to {
        None => return Ok(()),
        Some(-1) => max_model_len as usize,
        Some(keep) => usize::try_from(keep)
            .map_err(|_| ApiError::invalid("invalid truncate_prompt_tokens: expected -1 or a number of tokens"))?,
    };
    prompt.drain(..prompt.len().saturating_sub(keep));
    Ok(())
}

/// Converts sampling parameters. Protocol buffers read a missing number as 0; where 0 is invalid, it means the
/// default.
fn sampling(params: SamplingParams) -> Result<Sampling, ApiError> {
    let unless_zero = |value: f32| if value == 0.0 { 1.0 } else { value };
    let structured = match params.constraint {
        None => None,
        Some(Constraint::JsonSchema(schema)) => Some(json!({"json": schema})),
        Some(Constraint::Regex(regex)) => Some(json!({"regex": regex})),
        Some(Constraint::Grammar(grammar)) => Some(json!({"grammar": grammar})),
        Some(Constraint::StructuralTag(tag)) => Some(json!({"structural_tag": tag})),
        Some(Constraint::JsonObject(is_object)) => is_object.then(|| json!({"json_object": true})),
        Some(Constraint::Choice(choice)) => Some(json!({"choice": choice.choices})),
    };
    let structured = structured.map(serde_json::from_value::<Templated>).transpose();
    let structured = structured.map_err(|error| ApiError::invalid(error.to_string()))?;
    let n = params.n.max(1);
    if n > crate::api::request::MAX_N {
        return Err(ApiError::invalid(format!("invalid n: expected 1 to {}, got {n}", crate::api::request::MAX_N)));
    }
    let biases = params.logit_bias.iter().map(|(token, bias)| (token.to_string(), *bias));
    Ok(Sampling {
        n: Some(n),
        temperature: Some(params.temperature.unwrap_or(1.0)),
        top_p: Some(unless_zero(params.top_p)),
        top_k: Some(params.top_k.into()),
        min_p: Some(params.min_p),
        frequency_penalty: Some(params.frequency_penalty),
        presence_penalty: Some(params.presence_penalty),
        repetition_penalty: Some(unless_zero(params.repetition_penalty)),
        seed: params.seed.map(Into::into),
        max_tokens: params.max_tokens,
        min_tokens: Some(params.min_tokens),
        stop: (!params.stop.is_empty()).then_some(StringOrArray::Array(params.stop)),
        stop_token_ids: (!params.stop_token_ids.is_empty()).then_some(params.stop_token_ids),
        include_stop_str_in_output: params.include_stop_str_in_output,
        ignore_eos: params.ignore_eos,
        skip_special_tokens: params.skip_special_tokens,
        logit_bias: (!params.logit_bias.is_empty()).then(|| biases.collect()),
        logprobs: params.logprobs,
        prompt_logprobs: params.prompt_logprobs,
        structured_outputs: structured::own(structured.as_ref())?.map(structured::wire),
        ..Sampling::default()
    })
}

struct Generation {
    /// None after an abort.
    merged: Option<Merged>,
    /// The output of each completion: since the last message of a stream, or in total.
    outputs: Vec<Piece>,
    streams: bool,
    top: Option<i32>,
    top_of_prompt: Option<i32>,
    prompt_tokens: u32,
    /// The prompt's tokens if its logprobs are returned, otherwise empty.
    prompt: Vec<u32>,
    ready: VecDeque<GenerateResponse>,
    registration: Registration,
    _counted: Counted,
}

impl Generation {
    /// Returns the next message, or none after the last.
    async fn next(&mut self) -> Option<Result<GenerateResponse, tonic::Status>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(Ok(ready));
            }
            let merged = self.merged.as_mut()?;
            let piece = tokio::select! {
                piece = merged.next() => piece,
                () = self.registration.aborted() => {
                    self.abort();
                    continue;
                }
            };
            let taken = match piece {
                Ok(Some((index, piece))) => self.take(index, piece),
                Ok(None) => return None,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = taken {
                self.merged = None;
                return Some(Err(status(&error)));
            }
        }
    }

    fn take(&mut self, index: usize, piece: Piece) -> Result<(), ApiError> {
        if let Some(error) = piece.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        let output = &mut self.outputs[index];
        if self.streams {
            *output = Piece { cached_tokens: output.cached_tokens, ..Piece::default() };
        }
        output.append(piece);
        if self.streams {
            let chunk = self.chunk(index);
            self.ready.push_back(GenerateResponse { response: Some(Answer::Chunk(chunk)) });
        }
        if let Some(finish) = self.outputs[index].finish.take() {
            self.complete(index, finish.name(), Some(&finish));
            self.outputs[index].finish = Some(finish);
        }
        Ok(())
    }

    /// Aborts the unfinished requests, in the engines, too.
    fn abort(&mut self) {
        self.merged = None;
        for index in 0..self.outputs.len() {
            if self.outputs[index].finish.is_none() {
                if self.streams {
                    self.outputs[index] =
                        Piece { cached_tokens: self.outputs[index].cached_tokens, ..Piece::default() };
                }
                self.complete(index, "abort", None);
            }
        }
    }

    fn chunk(&self, index: usize) -> GenerateStreamChunk {
        let output = &self.outputs[index];
        GenerateStreamChunk {
            token_ids: output.tokens.clone(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: output.tokens.len() as u32,
            cached_tokens: output.cached_tokens.unwrap_or(0) as u32,
            output_logprobs: output_logprobs(&output.logprobs, self.top),
            input_logprobs: self.input_logprobs(output),
            index: index as u32,
        }
    }

    fn complete(&mut self, index: usize, reason: &str, finish: Option<&Finish>) {
        let output = &self.outputs[index];
        let matched_stop = finish.and_then(|finish| finish.stop.as_ref()).map(|stop| match stop {
            StopCause::Token(token) => MatchedStop::Token(*token),
            StopCause::Text(text) => MatchedStop::Text(text.clone()),
        });
        let params = finish.and_then(|finish| finish.kv_transfer_params.as_ref());
        let complete = GenerateComplete {
            output_ids: output.tokens.clone(),
            finish_reason: reason.to_owned(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: output.tokens.len() as u32,
            cached_tokens: output.cached_tokens.unwrap_or(0) as u32,
            output_logprobs: output_logprobs(&output.logprobs, self.top),
            input_logprobs: self.input_logprobs(output),
            index: index as u32,
            matched_stop,
            kv_transfer_params_json: params.map(|params| json_of(params).to_string()),
        };
        self.ready.push_back(GenerateResponse { response: Some(Answer::Complete(complete)) });
    }

    fn input_logprobs(&self, output: &Piece) -> Option<InputLogProbs> {
        let positions = output.prompt_logprobs.as_ref()?;
        // The first token has no logprob.
        let own =
            std::iter::once(None).chain(positions.iter().map(|position| first_of(position).map(|(_, value)| value)));
        let top = std::iter::once(TopLogProbs::default())
            .chain(positions.iter().map(|position| top_logprobs(position, self.top_of_prompt)));
        Some(InputLogProbs {
            token_logprobs: own.map(|value| InputTokenLogProb { value }).collect(),
            token_ids: self.prompt.clone(),
            top_logprobs: top.collect(),
        })
    }
}

fn first_of(position: &Position) -> Option<(u32, f32)> {
    position.0.first().map(|own| (own.token, own.logprob))
}

fn top_logprobs(position: &Position, top: Option<i32>) -> TopLogProbs {
    let count = top.map_or(0, |top| usize::try_from(top).unwrap_or(usize::MAX));
    let likeliest = || position.0.iter().take(count);
    TopLogProbs {
        values: likeliest().map(|other| other.logprob).collect(),
        token_ids: likeliest().map(|other| other.token).collect(),
    }
}

fn output_logprobs(positions: &[Position], top: Option<i32>) -> Option<OutputLogProbs> {
    let (token_ids, token_logprobs): (Vec<_>, Vec<_>) = positions.iter().filter_map(first_of).unzip();
    let has_top = top.is_some_and(|top| top != 0);
    let top_logprobs = positions.iter().filter(|_| has_top).map(|position| top_logprobs(position, top)).collect();
    (!token_ids.is_empty()).then_some(OutputLogProbs { token_logprobs, token_ids, top_logprobs })
}
