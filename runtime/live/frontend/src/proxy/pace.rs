//! Paces recorded responses with engines: each part waits for its tokens.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use vcr_record::http::{AnswerTokens, prompt_tokens};
use vcr_text::Tokenizer;
use vcr_trace::capture::HttpRecord;
use vcr_wire::{EngineCoreRequest, FinishReason, OutputKind, SamplingParams};

use crate::engine::{EngineClient, EngineError, RequestStream};
use crate::faults::error_response;
use crate::proxy::head::head_of;

/// Lets engines generate as many tokens as recorded responses have. The generated text is not used.
pub struct Pace {
    engines: OnceLock<EngineClient>,
    tokenizer: Tokenizer,
    count: AtomicU64,
}

/// The outputs of an engine so far.
struct Progress {
    stream: RequestStream,
    tokens: u32,
    is_done: bool,
}

/// The reason why pacing failed.
enum Stopped {
    Engine(EngineError),
    Refused(String),
}

impl Pace {
    /// Creates a pace whose engines have not started. The tokenizer counts tokens that responses do not state.
    #[must_use]
    pub fn new(tokenizer: Tokenizer) -> Self {
        Self { engines: OnceLock::new(), tokenizer, count: AtomicU64::new(0) }
    }

    /// Sets the engines, which have started.
    pub fn begin(&self, engines: EngineClient) {
        _ = self.engines.set(engines);
    }

    /// The tokens of a recording. None if it is not a generation.
    pub(crate) fn tokens(&self, record: &HttpRecord) -> Option<AnswerTokens> {
        AnswerTokens::of(record, &|text| self.encode(text).len() as u64)
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, false).unwrap_or_default()
    }

    /// Answers a request from a recording, paced by the engines.
    pub(crate) async fn play(&self, record: HttpRecord, body: &[u8], tokens: AnswerTokens) -> Response {
        let path = record.path.clone();
        match self.begun(&record, body, &tokens).await {
            Ok(progress) => answer(record, tokens, progress),
            Err(Stopped::Engine(error)) => error_response(&path, 503, Some(&error.to_string()), None, None),
            Err(Stopped::Refused(message)) => error_response(&path, 400, Some(&message), None, None),
        }
    }

    /// Starts the engine request, and waits for the tokens that precede the response's head.
    async fn begun(&self, record: &HttpRecord, body: &[u8], tokens: &AnswerTokens) -> Result<Progress, Stopped> {
        let engines = self.engines.get().ok_or(Stopped::Engine(EngineError::Dead))?;
        let prompt = prompt_tokens(body, tokens.prompt_tokens, &|text| self.encode(text));
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let request = EngineCoreRequest {
            request_id: format!("{}-{number:08x}", record.id),
            external_req_id: Some(record.id.clone()),
            prompt_token_ids: Some(prompt),
            sampling_params: Some(SamplingParams {
                max_tokens: Some(tokens.output_tokens),
                ignore_eos: true,
                output_kind: OutputKind::Delta,
                ..SamplingParams::default()
            }),
            arrival_time: crate::server::unix_s(),
            ..EngineCoreRequest::default()
        };
        let stream = engines.submit(request).map_err(Stopped::Engine)?;
        let mut progress = Progress { stream, tokens: 0, is_done: false };
        progress.until(tokens.due(record.head_ns.unwrap_or(0))).await?;
        Ok(progress)
    }
}

impl Progress {
    /// Waits until the engine has generated this many tokens.
    async fn until(&mut self, tokens: u32) -> Result<(), Stopped> {
        while self.tokens < tokens && !self.is_done {
            let Some(output) = self.stream.next().await.map_err(Stopped::Engine)? else {
                self.is_done = true;
                break;
            };
            if output.finish_reason == Some(FinishReason::Error) {
                let reason = output.error.map_or_else(|| "it failed".to_owned(), |error| error.message);
                return Err(Stopped::Refused(format!(
                    "the simulated engine does not take the recorded request: {reason}"
                )));
            }
            self.tokens += output.new_token_ids.len() as u32;
        }
        Ok(())
    }
}

fn answer(record: HttpRecord, tokens: AnswerTokens, progress: Progress) -> Response {
    let head = head_of(&record);
    let chunks = record.chunks.into_iter();
    let parts = stream::unfold(Some((chunks, progress, tokens)), |state| async move {
        let (mut chunks, mut progress, tokens) = state?;
        let part = chunks.next();
        // The response must not end before the engine's last token.
        let due = part.as_ref().map_or(tokens.output_tokens, |(at_ns, _)| tokens.due(*at_ns));
        if progress.until(due).await.is_err() {
            let lost = io::Error::new(io::ErrorKind::ConnectionReset, "the engine was lost");
            return Some((Err(lost), None));
        }
        let (_, bytes) = part?;
        Some((Ok(Bytes::from(bytes.0)), Some((chunks, progress, tokens))))
    });
    head.map(|()| Body::from_stream(parts))
}
