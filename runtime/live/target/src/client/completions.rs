//! Sends requests as streamed text completions.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};
use vcr_cluster::IssuedRequest;

use super::error::ClientError;
use super::pool::{Busy, Outgoing, Pool};
use super::server::{PromptForm, Server, message_of, next_data, whole_body};
use super::sessions::{Sessions, session_of};
use super::sse::{Event, EventReader, Usage};
use crate::drive::{AnswerReporter, Answered, Service};
use crate::engines::book::{Book, CountedOutputs};

/// Limit of an error body.
pub(super) const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Limit of a prefill server's response.
const MAX_PREFILL_BYTES: usize = 16 << 20;
/// A stream with more than this many extra tokens is treated as endless.
const TOKENS_TOO_MANY: u32 = 64;

pub(crate) struct Completions {
    pub(crate) pool: Rc<Pool>,
    pub(crate) server: Server,
    /// Whether the model in recorded requests is replaced by the server's model.
    pub(crate) replaces_model: bool,
    /// Timeout for the next tokens.
    pub(crate) idle_timeout: Duration,
    /// Whether any answer reported its cached prompt tokens.
    pub(crate) tells_cached: Rc<Cell<bool>>,
    /// The engines' reports, if they run in this process.
    pub(crate) book: Option<Book>,
    pub(crate) counted: CountedOutputs,
    /// The way in which requests identify their session.
    pub(crate) sessions: Rc<Sessions>,
}

impl Service for Completions {
    async fn answer(&self, request: &IssuedRequest, reporter: &AnswerReporter) -> Answered {
        let exchanged = match &request.call {
            Some(call) => self.repeat(request, call, reporter).await.map(|()| Vec::new()),
            None => self.exchange(request, Part::Whole, reporter).await,
        };
        match exchanged {
            Ok(answer) => Answered::Whole(answer),
            Err(error) => failed(&error, reporter),
        }
    }
}

/// The ending of a request that failed with this error.
pub(crate) fn failed(error: &ClientError, reporter: &AnswerReporter) -> Answered {
    if let ClientError::Status { status: 429 | 503, .. } = error {
        return Answered::Shed;
    }
    reporter.note(&error.reason().to_string(), format!("a request failed: {error}"));
    match error.is_passing() {
        true => Answered::Lost(error.reason()),
        false => Answered::Failed(error.reason()),
    }
}

/// The part of a request that a server computes.
#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    /// The prompt and the output.
    Whole,
    /// The prompt, whose KV another server will fetch.
    Prompt,
    /// The output. These `kv_transfer_params` say where the KV of the prompt is.
    Output(&'a RawValue),
}

/// The parameters that vLLM's P/D proxies send to a prefill server.
const DECODE_ELSEWHERE: &str = "{\"do_remote_decode\":true,\"do_remote_prefill\":false}";

#[derive(Deserialize)]
struct Prefilled {
    error: Option<Box<RawValue>>,
    kv_transfer_params: Option<Box<RawValue>>,
}

impl Completions {
    /// Sends a request and reads the streamed output. Returns the output tokens if the request needs them.
    pub(crate) async fn exchange(
        &self,
        request: &IssuedRequest,
        part: Part<'_>,
        reporter: &AnswerReporter,
    ) -> Result<Vec<u32>, ClientError> {
        let (mut body, busy) = self.send(request, part, reporter).await?;
        let answer = self.stream(request, reporter, &mut body).await?;
        busy.done();
        Ok(answer)
    }

    /// Computes a prompt and returns its `kv_transfer_params`. If this future is dropped, the computation continues
    /// unless `is_cancelled` is true.
    pub(crate) async fn prefill(
        &self,
        request: &IssuedRequest,
        reporter: &AnswerReporter,
        is_cancelled: bool,
    ) -> Result<Box<RawValue>, ClientError> {
        let answer = async {
            if is_cancelled {
                let (body, busy) = self.send(request, Part::Prompt, reporter).await?;
                return prefilled(body, busy).await;
            }
            let (pool, sessions) = (Rc::clone(&self.pool), Rc::clone(&self.sessions));
            let (headers, session) = (self.sessions.headers(request), session_of(request));
            let body = Bytes::from(self.body(request, Part::Prompt));
            reporter.sent().await;
            let exchange = tokio::task::spawn_local(async move {
                let outgoing = Outgoing::json(Method::POST, "/v1/completions", Some(body), headers);
                let sent = pool.send(&outgoing, async || {}).await?;
                sessions.answered(session, sent.0.headers());
                let (body, busy) = accepted(sent).await?;
                prefilled(body, busy).await
            });
            exchange.await.unwrap_or_else(|error| Err(ClientError::Lost(error.to_string())))
        };
        let answered = tokio::time::timeout(self.idle_timeout, answer).await;
        let bytes = answered.unwrap_or_else(|_| Err(self.silent()))?;
        self.note_engine(request, reporter);
        reporter.prefilled();
        let prefilled: Result<Prefilled, _> = serde_json::from_slice(&bytes);
        let prefilled = prefilled.map_err(|error| ClientError::Garbage(error.to_string()))?;
        if let Some(error) = prefilled.error {
            return Err(ClientError::Server(message_of(error.get().as_bytes())));
        }
        prefilled
            .kv_transfer_params
            .ok_or_else(|| ClientError::Garbage("a prefill server's answer without kv_transfer_params".to_owned()))
    }

    pub(super) fn silent(&self) -> ClientError {
        ClientError::Silent(self.idle_timeout.as_secs())
    }

    /// Sends a request. Returns the response body and its connection.
    async fn send(
        &self,
        request: &IssuedRequest,
        part: Part<'_>,
        reporter: &AnswerReporter,
    ) -> Result<(Incoming, Busy), ClientError> {
        let body = Bytes::from(self.body(request, part));
        let headers = self.sessions.headers(request);
        let sent = async || match part {
            Part::Whole | Part::Prompt => reporter.sent().await,
            Part::Output(_) => {}
        };
        let outgoing = Outgoing::json(Method::POST, "/v1/completions", Some(body), headers);
        let sending = self.pool.send(&outgoing, sent);
        let sent = tokio::time::timeout(self.idle_timeout, sending).await;
        let sent = sent.map_err(|_| self.silent())??;
        self.sessions.answered(session_of(request), sent.0.headers());
        accepted(sent).await
    }

    /// Reports the engine's data about a request, if the engine runs in this process.
    pub(super) fn note_engine(&self, request: &IssuedRequest, reporter: &AnswerReporter) {
        let Some(book) = &self.book else { return };
        book.report_engine(request.tag, reporter, self.counted);
        let Some(noted) = book.take(request.tag) else { return };
        if let Some(at_s) = noted.scheduled_s.filter(|_| self.counted != CountedOutputs::Output) {
            reporter.admitted(at_s, noted.cached_tokens);
        }
        (0..noted.preemptions).for_each(|_| reporter.preempted());
    }

    /// Reads an answer to its end.
    async fn stream(
        &self,
        request: &IssuedRequest,
        reporter: &AnswerReporter,
        body: &mut Incoming,
    ) -> Result<Vec<u32>, ClientError> {
        let mut reader = EventReader::default();
        let mut answer =
            Answer { wants_ids: request.needs_answer, max_tokens: request.max_tokens, ..Answer::default() };
        let mut deadline = std::pin::pin!(sleep_until(Instant::now() + self.idle_timeout));
        loop {
            let data = tokio::select! {
                biased;
                data = next_data(body) => data?,
                () = &mut deadline => {
                    // The deadline is moved only after it has passed. Most streams end before.
                    let next = answer.last_tokens.map_or(Instant::now(), |at| at + self.idle_timeout);
                    if answer.last_tokens.is_none() || next <= Instant::now() {
                        return Err(ClientError::Silent(self.idle_timeout.as_secs()));
                    }
                    deadline.as_mut().reset(next);
                    continue;
                }
            };
            let Some(data) = data else { break };
            let mut arrived = 0;
            let taken = reader.read(&data, |event| answer.take(event).map(|tokens| arrived += tokens));
            if arrived > 0 {
                if answer.last_tokens.is_none()
                    && let Some(book) = &self.book
                {
                    book.report_engine(request.tag, reporter, self.counted);
                }
                answer.last_tokens = Some(Instant::now());
                reporter.tokens(arrived);
            }
            taken.map_err(|error| ClientError::Garbage(error.0))??;
        }
        self.finish(request, reporter, answer)
    }

    fn finish(
        &self,
        request: &IssuedRequest,
        reporter: &AnswerReporter,
        answer: Answer,
    ) -> Result<Vec<u32>, ClientError> {
        if !answer.is_done && !answer.is_finished {
            return Err(ClientError::Lost("the answer ended before its end".to_owned()));
        }
        self.note_engine(request, reporter);
        if let Some(usage) = answer.usage {
            // The server held this text back because it might start a stop string.
            if let Some(missing) = usage.completion_tokens.checked_sub(answer.counted).filter(|missing| *missing > 0) {
                reporter.tokens(missing);
            }
            if self.book.is_none()
                && let Some(cached) = usage.prompt_tokens_details.and_then(|details| details.cached_tokens)
            {
                self.tells_cached.set(true);
                reporter.cached(cached);
            }
            let sent = request.prompt.len() as u32;
            if usage.prompt_tokens != sent {
                reporter.note(
                    "prompt tokens",
                    format!(
                        "the server counts other prompt tokens than were sent, such as {} instead of {sent}",
                        usage.prompt_tokens
                    ),
                );
            }
        }
        let tokens = answer.usage.map_or(answer.counted, |usage| usage.completion_tokens);
        if tokens == 0 && request.max_tokens > 0 {
            return Err(ClientError::Garbage("an answer without any token".to_owned()));
        }
        if tokens < request.max_tokens && self.server.is_vllm && !request.may_end_early {
            return Err(ClientError::Short { got: tokens, wanted: request.max_tokens });
        }
        if tokens != request.max_tokens {
            reporter.note(
                "output tokens",
                format!(
                    "some answers do not have the requested number of tokens, such as {tokens} instead of {}",
                    request.max_tokens
                ),
            );
        }
        if request.needs_answer && answer.ids.len() != tokens as usize {
            reporter
                .note("answers", "the server does not report the tokens of answers, so later turns repeat drawn ones");
        }
        Ok(answer.ids)
    }

    fn body(&self, request: &IssuedRequest, part: Part<'_>) -> String {
        let Server { model, is_vllm, prompts, adapters, .. } = &self.server;
        let adapter = request.adapter.and_then(|number| adapters.name(number));
        let model = adapter.as_ref().unwrap_or(model);
        let mut body = String::with_capacity(128 + request.prompt.len() * 6);
        // Writing to a string cannot fail.
        _ = write!(body, "{{\"model\":{},\"prompt\":", serde_json::Value::from(model.as_str()));
        match prompts {
            PromptForm::TokenIds(vocabulary) => {
                let mut prompt = request.prompt.clone();
                vocabulary.place(&mut prompt);
                body.push('[');
                for (index, token) in prompt.iter().enumerate() {
                    _ = write!(body, "{}{token}", if index == 0 { "" } else { "," });
                }
                body.push(']');
            }
            PromptForm::Text(words) => _ = write!(body, "{}", serde_json::Value::from(words.text(&request.prompt))),
        }
        let max_tokens = match part {
            Part::Prompt => request.max_tokens.min(1),
            Part::Whole | Part::Output(_) => request.max_tokens,
        };
        _ = write!(body, ",\"max_tokens\":{max_tokens}");
        if !matches!(part, Part::Prompt) {
            let each = if *is_vllm { ",\"continuous_usage_stats\":true" } else { "" };
            _ = write!(body, ",\"stream\":true,\"stream_options\":{{\"include_usage\":true{each}}}");
        }
        match part {
            Part::Whole => {}
            Part::Prompt => _ = write!(body, ",\"kv_transfer_params\":{DECODE_ELSEWHERE}"),
            Part::Output(params) => _ = write!(body, ",\"kv_transfer_params\":{params}"),
        }
        if *is_vllm {
            _ = write!(body, ",\"ignore_eos\":true,\"min_tokens\":{max_tokens}");
            if request.needs_answer {
                body.push_str(",\"return_token_ids\":true");
            }
            if request.tenant != 0 {
                _ = write!(body, ",\"cache_salt\":\"{}\"", request.tenant);
            }
            if request.priority != 0 {
                _ = write!(body, ",\"priority\":{}", request.priority);
            }
        }
        body.push('}');
        body
    }
}

/// Returns the body of a successful response.
async fn accepted((response, busy): (Response<Incoming>, Busy)) -> Result<(Incoming, Busy), ClientError> {
    let status = response.status();
    if status != StatusCode::OK {
        let bytes = whole_body(response.into_body(), MAX_ERROR_BYTES).await?;
        busy.done();
        return Err(ClientError::Status { status: status.as_u16(), body: message_of(&bytes) });
    }
    Ok((response.into_body(), busy))
}

async fn prefilled(body: Incoming, busy: Busy) -> Result<Vec<u8>, ClientError> {
    let bytes = whole_body(body, MAX_PREFILL_BYTES).await?;
    busy.done();
    Ok(bytes)
}

/// The part of an answer that has been received.
#[derive(Default)]
struct Answer {
    wants_ids: bool,
    max_tokens: u32,
    ids: Vec<u32>,
    counted: u32,
    usage: Option<Usage>,
    is_finished: bool,
    is_done: bool,
    last_tokens: Option<Instant>,
}

impl Answer {
    /// Reads an event. Returns the number of its tokens.
    fn take(&mut self, data: &[u8]) -> Result<u32, ClientError> {
        if data == b"[DONE]" {
            self.is_done = true;
            return Ok(0);
        }
        let event: Event<'_> = serde_json::from_slice(data).map_err(|error| {
            let shown = String::from_utf8_lossy(&data[..data.len().min(80)]).into_owned();
            ClientError::Garbage(format!("invalid event: expected a completion, got `{shown}` ({error})"))
        })?;
        if let Some(error) = event.error {
            return Err(ClientError::Server(message_of(error.get().as_bytes())));
        }
        if event.object.as_deref() == Some("error") {
            return Err(ClientError::Server(message_of(data)));
        }
        self.usage = event.usage.or(self.usage);
        let mut tokens = 0;
        for choice in event.choices {
            if let Some(reason @ ("error" | "abort")) = choice.finish_reason.as_deref() {
                return Err(ClientError::Server(format!("finish_reason `{reason}`")));
            }
            self.is_finished |= choice.finish_reason.is_some();
            let has_text = choice.text.is_some_and(|text| !text.is_empty());
            tokens += match &choice.token_ids {
                Some(ids) => ids.len() as u32,
                None => u32::from(has_text),
            };
            if self.wants_ids {
                self.ids.extend(choice.token_ids.unwrap_or_default());
            }
        }
        // If every event has usage, that count is exact.
        if let Some(usage) = event.usage {
            tokens = usage.completion_tokens.saturating_sub(self.counted);
        }
        self.counted += tokens;
        if self.counted > self.max_tokens.saturating_add(TOKENS_TOO_MANY) {
            return Err(ClientError::Garbage(format!(
                "{} tokens where {} were requested, and no end",
                self.counted, self.max_tokens
            )));
        }
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(events: &[&str]) -> Result<(Vec<u32>, Answer), ClientError> {
        let mut answer = Answer { wants_ids: true, max_tokens: 4, ..Answer::default() };
        let tokens = events.iter().map(|event| answer.take(event.as_bytes())).collect::<Result<_, _>>()?;
        Ok((tokens, answer))
    }

    #[test]
    fn tokens_are_counted_by_ids_by_usage_or_by_events() {
        let ids = [r#"{"choices":[{"text":"","token_ids":[1,2]}]}"#, r#"{"choices":[{"text":"a","token_ids":[3]}]}"#];
        let (tokens, answer) = taken(&ids).unwrap();
        assert_eq!((tokens, answer.ids), (vec![2, 1], vec![1, 2, 3]));
        let usage = [
            r#"{"choices":[{"text":""}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#,
            r#"{"choices":[{"text":"ab","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":4}}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":4}}"#,
            "[DONE]",
        ];
        let (tokens, answer) = taken(&usage).unwrap();
        assert_eq!((tokens, answer.is_done, answer.is_finished), (vec![1, 3, 0, 0], true, true));
        let (tokens, _) = taken(&[r#"{"choices":[{"text":"a"}]}"#, r#"{"choices":[{"text":""}]}"#]).unwrap();
        assert_eq!(tokens, [1, 0]);
    }

    #[test]
    fn errors_and_garbage_end_an_answer() {
        let error = |events: &[&str]| taken(events).map(|_| ()).unwrap_err().to_string();
        assert!(error(&[r#"{"error":{"message":"the engine is gone"}}"#]).ends_with("the engine is gone"));
        assert!(error(&[r#"{"object":"error","message":"too old"}"#]).ends_with("too old"));
        let failed = r#"{"choices":[{"text":"","finish_reason":"error"}]}"#;
        assert!(error(&[r#"{"choices":[{"text":"a"}]}"#, failed]).ends_with("finish_reason `error`"));
        assert!(error(&["<html>"]).contains("invalid event: expected a completion, got `<html>`"));
        let many = vec![r#"{"choices":[{"text":"a"}]}"#; 4 + TOKENS_TOO_MANY as usize + 1];
        assert!(error(&many).contains("69 tokens where 4 were requested"));
    }
}
