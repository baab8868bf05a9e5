//! `/generate`, SGLang's own endpoint for text.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use vcr_base::finish_reason::FinishReason;

use crate::api::answer::sse::{self, Events, Source};
use crate::api::answer::{failure, gather};
use crate::api::request::body::{Call, read};
use crate::api::request::prompt::Prompt;
use crate::api::request::structured::{self, wire};
use crate::api::request::{MAX_N, check_submission, id_header, rank_of, submit_all, transfer_of, with_bootstrap};
use crate::generate::{
    EngineSubmission, Merged, Piece, Placement, Position, Sampling, StopCause, StringOrArray, TokenLogprob, wide,
};
use crate::server::error::ApiError;
use crate::server::model::Model;
use crate::server::{App, Counted};

const DEFAULT_MAX_TOKENS: u32 = 128;

/// One value for all prompts of a call, or one value per prompt.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a value of this field, or a list with one for each prompt")]
enum Each<T> {
    Own(Vec<T>),
    All(T),
}

impl<T: Clone> Each<T> {
    /// The length of the list. None for a single value.
    fn num_values(own: Option<&Self>) -> Option<usize> {
        match own? {
            Self::All(_) => None,
            Self::Own(values) => Some(values.len()),
        }
    }

    fn of(own: Option<&Self>, index: usize) -> Option<T> {
        match own? {
            Self::All(value) => Some(value.clone()),
            Self::Own(values) => values.get(index).cloned(),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SamplingParams {
    max_new_tokens: Option<u32>,
    min_new_tokens: Option<u32>,
    stop: Option<StringOrArray>,
    stop_token_ids: Option<Vec<u32>>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    n: Option<u32>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    no_stop_trim: Option<bool>,
    sampling_seed: Option<i64>,
    logit_bias: Option<BTreeMap<String, f32>>,
    json_schema: Option<String>,
    regex: Option<String>,
    ebnf: Option<String>,
    // Ignores unknown parameters. Without `flatten`, serde would accept a list of parameters.
    #[serde(flatten)]
    _other: BTreeMap<String, IgnoredAny>,
}

impl SamplingParams {
    /// Converts the parameters for engines, without logprobs.
    fn sampling(self) -> Result<Sampling, ApiError> {
        let grammars = [
            ("json", self.json_schema.map(|schema| serde_json::from_str(&schema).unwrap_or(Value::from(schema)))),
            ("regex", self.regex.map(Value::from)),
            ("grammar", self.ebnf.map(Value::from)),
        ];
        let given: Map<String, Value> =
            grammars.into_iter().filter_map(|(kind, value)| Some((kind.to_owned(), value?))).collect();
        if given.len() > 1 {
            return Err(ApiError::invalid("Only one of regex, json_schema, or ebnf can be set."));
        }
        let given = (!given.is_empty()).then(|| serde_json::from_value(Value::Object(given))).transpose();
        let given: Option<vcr_text::Value> = given.map_err(|error| ApiError::invalid(error.to_string()))?;
        Ok(Sampling {
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repetition_penalty,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            seed: self.sampling_seed,
            n: self.n,
            max_tokens: Some(self.max_new_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
            min_tokens: self.min_new_tokens,
            stop: self.stop,
            stop_token_ids: self.stop_token_ids,
            include_stop_str_in_output: self.no_stop_trim.unwrap_or(false),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            skip_special_tokens: self.skip_special_tokens.unwrap_or(true),
            logit_bias: self.logit_bias,
            structured_outputs: structured::own(given.as_ref())?.map(wire),
            ..Sampling::default()
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct GenerateRequest {
    rid: Option<Each<String>>,
    text: Option<Prompt>,
    input_ids: Option<Prompt>,
    sampling_params: Option<Each<SamplingParams>>,
    return_logprob: Option<Each<bool>>,
    logprob_start_len: Option<Each<i64>>,
    top_logprobs_num: Option<Each<i32>>,
    return_text_in_logprobs: Option<bool>,
    stream: Option<bool>,
    lora_path: Option<Each<Option<String>>>,
    session_id: Option<String>,
    priority: Option<i64>,
    extra_key: Option<Each<String>>,
    bootstrap_host: Option<Value>,
    bootstrap_port: Option<Value>,
    bootstrap_room: Option<Value>,
    routed_dp_rank: Option<u32>,
    data_parallel_rank: Option<u32>,
    // Fields that are not simulated. Requests with them are refused.
    input_embeds: Option<Value>,
    image_data: Option<Value>,
    video_data: Option<Value>,
    audio_data: Option<Value>,
    session_params: Option<Value>,
    // Ignores unknown fields. Without `flatten`, serde would accept a list as a request.
    #[serde(flatten)]
    _other: BTreeMap<String, IgnoredAny>,
}

/// The contents of an answer in addition to text and tokens.
#[derive(Clone, Debug)]
struct Shown {
    rid: String,
    prompt_tokens: usize,
    has_logprobs: bool,
    top_logprobs: usize,
    /// The prompt's tokens, if some of them are returned.
    prompt: Option<Vec<u32>>,
    first_shown: usize,
}

struct Form {
    shown: Vec<Shown>,
    /// Whether the response is a list.
    is_batch: bool,
    has_texts: bool,
    begun: Instant,
    eos: Option<u32>,
}

pub(super) async fn generate(
    State(app): State<Arc<App>>,
    Call { headers, body: request, given: _ }: Call<Box<GenerateRequest>>,
) -> Response {
    let counted = app.count();
    let is_stream = request.stream.unwrap_or(false);
    let header_id = id_header(&headers).map(str::to_owned);
    let started = start(&app, request, header_id, rank_of(&headers)).await;
    match started {
        Err(error) if is_stream => sse::response(Failed(error)),
        Err(error) => refused(&error),
        Ok((form, merged)) if is_stream => {
            let answers = vec![Piece::default(); form.shown.len()];
            sse::response(Stream { form, merged, answers, _counted: counted })
        }
        Ok((form, merged)) => match gather(merged, form.shown.len()).await {
            Err(error) => refused(&error),
            Ok(answers) => {
                let mut answers: Vec<Value> =
                    answers.iter().enumerate().map(|(index, answer)| form.output(index, answer)).collect();
                Json(if form.is_batch { Value::from(answers) } else { answers.remove(0) }).into_response()
            }
        },
    }
}

fn refused(error: &ApiError) -> Response {
    (error.status, Json(json!({"error": {"message": error.message}}))).into_response()
}

impl GenerateRequest {
    /// The tokenized prompts, and whether they are a batch.
    fn prompts(&mut self, model: &Model) -> Result<(Vec<Vec<u32>>, bool), ApiError> {
        let unusable = [
            ("input_embeds", &self.input_embeds),
            ("image_data", &self.image_data),
            ("video_data", &self.video_data),
            ("audio_data", &self.audio_data),
            ("session_params", &self.session_params),
        ];
        if let Some((name, _)) = unusable.iter().find(|(_, given)| given.as_ref().is_some_and(|it| !it.is_null())) {
            return Err(ApiError::not_simulated(name));
        }
        let encode = |text: &String| model.encode(text, true);
        let (prompts, is_batch) = match (self.text.take(), self.input_ids.take()) {
            (Some(Prompt::Text(text)), None) => (vec![encode(&text)?], false),
            (Some(Prompt::Texts(texts)), None) => (texts.iter().map(encode).collect::<Result<_, _>>()?, true),
            (None, Some(Prompt::Tokens(tokens))) => (vec![tokens], false),
            (None, Some(Prompt::TokenLists(lists))) => (lists, true),
            (Some(_), Some(_)) | (None, None) => {
                return Err(ApiError::invalid("Either text, input_ids or input_embeds should be provided."));
            }
            (Some(_), _) => return Err(ApiError::invalid("invalid text: expected a text, or a list of texts")),
            (_, Some(_)) => {
                return Err(ApiError::invalid("invalid input_ids: expected a list of tokens, or a list of such lists"));
            }
        };
        self.check_lists(prompts.len())?;
        let limit = model.max_model_len as usize;
        for prompt in &prompts {
            if prompt.is_empty() {
                return Err(ApiError::invalid("input_ids cannot be empty."));
            }
            if prompt.len() >= limit {
                return Err(ApiError::invalid(format!(
                    "The input ({} tokens) is longer than the model's context length ({limit} tokens).",
                    prompt.len()
                )));
            }
        }
        Ok((prompts, is_batch))
    }

    /// Checks that each list has one value per prompt, and that request ids are unique.
    fn check_lists(&self, num_prompts: usize) -> Result<(), ApiError> {
        let is_wrong = |length: Option<usize>| length.is_some_and(|length| length != num_prompts);
        if is_wrong(Each::num_values(self.rid.as_ref())) {
            let message = "The specified rids length mismatch with the batch_size for batch processing.";
            return Err(ApiError::invalid(message));
        }
        let lengths = [
            ("extra_key", Each::num_values(self.extra_key.as_ref())),
            ("sampling_params", Each::num_values(self.sampling_params.as_ref())),
            ("return_logprob", Each::num_values(self.return_logprob.as_ref())),
            ("logprob_start_len", Each::num_values(self.logprob_start_len.as_ref())),
            ("top_logprobs_num", Each::num_values(self.top_logprobs_num.as_ref())),
            ("lora_path", Each::num_values(self.lora_path.as_ref())),
        ];
        if let Some((name, _)) = lengths.into_iter().find(|(_, length)| is_wrong(*length)) {
            return Err(ApiError::invalid(format!("The length of {name} should be equal to the batch size.")));
        }
        if let Some(Each::Own(rids)) = &self.rid {
            let mut seen = BTreeSet::new();
            let repeated: BTreeSet<&String> = rids.iter().filter(|rid| !seen.insert(*rid)).collect();
            if !repeated.is_empty() {
                let message = format!("Duplicate request IDs detected within the request: {repeated:?}");
                return Err(ApiError::invalid(message));
            }
        }
        Ok(())
    }

    /// The properties of a prompt's request that affect its routing and scheduling.
    fn placement(&self, model: &Model, index: usize, rank: Option<u32>) -> Result<Placement, ApiError> {
        let adapter = Each::of(self.lora_path.as_ref(), index).flatten();
        Ok(Placement {
            priority: self.priority.unwrap_or(0),
            cache_salt: Each::of(self.extra_key.as_ref(), index),
            session_id: self.session_id.clone(),
            rank: self.routed_dp_rank.or(self.data_parallel_rank).or(rank),
            adapter: adapter.map(|name| model.resolve(Some(&name))).transpose()?.and_then(|(_, adapter)| adapter),
            least_cached: None,
        })
    }

    fn sampling(&self, index: usize, shown: &mut Shown, prompt: &[u32]) -> Result<Sampling, ApiError> {
        let mut sampling = Each::of(self.sampling_params.as_ref(), index).unwrap_or_default().sampling()?;
        if !Each::of(self.return_logprob.as_ref(), index).unwrap_or(false) {
            return Ok(sampling);
        }
        let top = Each::of(self.top_logprobs_num.as_ref(), index).unwrap_or(0).max(0);
        sampling.logprobs = Some(top);
        (shown.has_logprobs, shown.top_logprobs) = (true, top as usize);
        let first = Each::of(self.logprob_start_len.as_ref(), index).unwrap_or(-1);
        if let Ok(first) = usize::try_from(first) {
            if first > prompt.len() {
                return Err(ApiError::invalid(format!(
                    "invalid logprob_start_len {first}: expected at most the {} tokens of the prompt",
                    prompt.len()
                )));
            }
            sampling.prompt_logprobs = Some(top);
            (shown.prompt, shown.first_shown) = (Some(prompt.to_vec()), first);
        }
        Ok(sampling)
    }
}

/// The submission for one prompt, and the number of completions.
struct Asked {
    shown: Shown,
    n: u32,
    submission: EngineSubmission,
}

impl GenerateRequest {
    /// Converts the request to submissions. Also returns whether the response is a list. `base` is the request id
    /// if the request has none.
    fn asked(&mut self, model: &Model, base: &str, rank: Option<u32>) -> Result<(Vec<Asked>, bool), ApiError> {
        let (prompts, is_batch) = self.prompts(model)?;
        let (num_prompts, mut is_list) = (prompts.len(), is_batch);
        let transfer = with_bootstrap(
            None,
            [
                ("bootstrap_host", self.bootstrap_host.take()),
                ("bootstrap_port", self.bootstrap_port.take()),
                ("bootstrap_room", self.bootstrap_room.take()),
            ],
        );
        let mut asked = Vec::with_capacity(num_prompts);
        for (index, prompt) in prompts.into_iter().enumerate() {
            let rid = match &self.rid {
                Some(Each::All(rid)) if is_batch => format!("{rid}_{index}"),
                None if is_batch => format!("{base}_{index}"),
                rid => Each::of(rid.as_ref(), index).unwrap_or_else(|| base.to_owned()),
            };
            let mut shown = Shown {
                rid,
                prompt_tokens: prompt.len(),
                has_logprobs: false,
                top_logprobs: 0,
                prompt: None,
                first_shown: 0,
            };
            let mut sampling = self.sampling(index, &mut shown, &prompt)?;
            sampling.kv_transfer_params = transfer_of(transfer.as_ref(), index, num_prompts, true)?;
            let n = sampling.n.unwrap_or(1);
            if !(1..=MAX_N).contains(&n) {
                return Err(ApiError::invalid(format!("invalid n {n}: expected 1 to {MAX_N}")));
            }
            is_list |= n > 1;
            let place = self.placement(model, index, rank)?;
            asked.push(Asked { shown, n, submission: sampling.into_engine_request(model, prompt, place)? });
        }
        Ok((asked, is_list))
    }
}

/// Renders the prompts of a `/generate` body in the format of vLLM's render endpoints.
pub fn render_generate(body: &[u8], model: &Model) -> Result<Value, ApiError> {
    let (asked, _) = read::<GenerateRequest>(body)?.asked(model, "rendered", None)?;
    let rendered = |asked: &Asked| {
        let request = &asked.submission.request;
        json!({"model": model.names.first(), "request_id": asked.shown.rid, "token_ids": request.prompt_token_ids})
    };
    Ok(asked.iter().map(rendered).collect())
}

/// Checks a request and sends its prompts to the engines.
async fn start(
    app: &Arc<App>,
    mut request: Box<GenerateRequest>,
    header_id: Option<String>,
    rank: Option<u32>,
) -> Result<(Form, Merged), ApiError> {
    let base = header_id.unwrap_or_else(|| app.ids.long().to_string());
    let (asked, is_list) = request.asked(&app.model, &base, rank)?;
    let (mut shown, mut streams) = (Vec::new(), Vec::new());
    for Asked { shown: own, n, mut submission } in asked {
        check_submission(app, &mut submission).await?;
        streams.extend(submit_all(app, &own.rid, n as usize, submission)?);
        shown.extend(std::iter::repeat_n(own, n as usize));
    }
    let form = Form {
        shown,
        is_batch: is_list,
        has_texts: request.return_text_in_logprobs.unwrap_or(false),
        begun: Instant::now(),
        eos: app.model.eos_tokens.first().copied(),
    };
    Ok((form, Merged::new(streams)))
}

impl Form {
    /// The answer so far, as JSON.
    fn output(&self, index: usize, answer: &Piece) -> Value {
        let Shown { rid, prompt_tokens, .. } = &self.shown[index];
        let mut meta = json!({
            "id": rid,
            "finish_reason": self.finish(answer),
            "prompt_tokens": prompt_tokens,
            "weight_version": "default",
            "reasoning_tokens": 0,
            "completion_tokens": answer.tokens.len(),
            "cached_tokens": answer.cached_tokens.unwrap_or(0),
        });
        if answer.finish.is_some() {
            meta["e2e_latency"] = self.begun.elapsed().as_secs_f64().into();
        }
        self.add_logprobs(&self.shown[index], answer, &mut meta);
        let mut output = json!({"text": answer.text, "output_ids": answer.tokens, "meta_info": meta});
        if self.is_batch {
            output["index"] = index.into();
        }
        output
    }

    fn finish(&self, answer: &Piece) -> Value {
        let Some(finish) = &answer.finish else { return Value::Null };
        match (finish.reason, &finish.stop) {
            (FinishReason::Length, _) => json!({"type": "length", "length": answer.tokens.len()}),
            (FinishReason::Abort, _) => {
                json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null})
            }
            (_, Some(StopCause::Text(text))) => json!({"type": "stop", "matched": text}),
            (_, Some(StopCause::Token(token))) => json!({"type": "stop", "matched": token}),
            (_, None) => json!({"type": "stop", "matched": self.eos}),
        }
    }

    fn entry(&self, entry: &TokenLogprob) -> Value {
        json!([wide(entry.logprob), entry.token, self.has_texts.then_some(&entry.text)])
    }

    fn tops(&self, positions: &[Position], top: usize) -> Value {
        let likeliest = |Position(entries): &Position| {
            let mut entries: Vec<&TokenLogprob> = entries.iter().collect();
            entries.sort_by_key(|entry| entry.rank);
            entries.into_iter().take(top).map(|entry| self.entry(entry)).collect::<Value>()
        };
        positions.iter().map(likeliest).collect()
    }

    fn add_logprobs(&self, shown: &Shown, answer: &Piece, meta: &mut Value) {
        if !shown.has_logprobs {
            return;
        }
        let own = |positions: &[Position]| -> Vec<Value> {
            positions.iter().filter_map(|Position(entries)| entries.first()).map(|entry| self.entry(entry)).collect()
        };
        // As in SGLang, the first returned token has no logprob.
        let of_prompt = answer.prompt_logprobs.as_deref().zip(shown.prompt.as_deref());
        let (input, input_tops) = of_prompt.map_or_else(Default::default, |(positions, prompt)| {
            let later = &positions[shown.first_shown.min(positions.len())..];
            let first = prompt.get(shown.first_shown).map(|token| json!([null, token, null]));
            let tops = first.as_ref().map(|_| Value::Null).into_iter();
            let later_tops = self.tops(later, shown.top_logprobs);
            let tops: Vec<Value> = tops.chain(later_tops.as_array().into_iter().flatten().cloned()).collect();
            (first.into_iter().chain(own(later)).collect::<Vec<_>>(), tops)
        });
        meta["input_token_logprobs"] = input.into();
        meta["output_token_logprobs"] = own(&answer.logprobs).into();
        meta["output_token_logprobs_length"] = answer.logprobs.len().into();
        if shown.top_logprobs > 0 {
            meta["input_top_logprobs"] = input_tops.into();
            meta["output_top_logprobs"] = self.tops(&answer.logprobs, shown.top_logprobs);
        }
    }
}

struct Stream {
    form: Form,
    merged: Merged,
    /// The answers so far. As in SGLang, each event contains the whole answer.
    answers: Vec<Piece>,
    _counted: Counted,
}

impl Source for Stream {
    async fn next(&mut self, out: &mut Events) -> Result<bool, ApiError> {
        let Some((index, piece)) = self.merged.next().await? else { return Ok(false) };
        if let Some(error) = piece.finish.as_ref().and_then(failure) {
            return Err(error);
        }
        self.answers[index].append(piece);
        out.push(&self.form.output(index, &self.answers[index]));
        Ok(true)
    }

    fn fail(&self, error: &ApiError, out: &mut Events) {
        push_error(error, out);
    }
}

/// The stream of a refused request. As in SGLang, the stream starts before the error.
struct Failed(ApiError);

impl Source for Failed {
    async fn next(&mut self, _: &mut Events) -> Result<bool, ApiError> {
        Err(self.0.clone())
    }

    fn fail(&self, error: &ApiError, out: &mut Events) {
        push_error(error, out);
    }
}

fn push_error(error: &ApiError, out: &mut Events) {
    let code = error.status.as_u16();
    out.push(&json!({
        "error": {
            "message": error.message, "type": "invalid_request_error", "code": code, "retryable": code >= 500,
        },
    }));
}
