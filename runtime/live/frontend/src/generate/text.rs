//! The text of a request's outputs.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use serde::Serialize;
use vcr_base::finish_reason::FinishReason;
use vcr_text::{Detokenizer, StopStrings, Tokenizer};
use vcr_wire::{EngineCoreOutput, RequestError, StepOutput, StopReason, Value};

use super::logprobs::Position;
use super::value::json_of;
use crate::engine::{EngineError, RequestStream};

/// Cause of an answer's end other than the end of the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum StopCause {
    Token(u32),
    Text(String),
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finish {
    pub(crate) reason: FinishReason,
    pub(crate) stop: Option<StopCause>,
    /// Why it failed, if it did.
    pub(crate) error: Option<RequestError>,
    pub(crate) kv_transfer_params: Option<Value>,
    /// Whether too little of its prompt was cached, so that it has no answer.
    pub(crate) is_uncached: bool,
}

impl Finish {
    /// The name of its reason.
    pub(crate) fn name(&self) -> &'static str {
        if self.is_uncached { "cache_threshold" } else { self.reason.name() }
    }
}

/// The text of one token within a piece, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// None of text that is left at the end.
    pub(crate) token: Option<u32>,
    pub(crate) bytes: usize,
    /// Whether it is the first part of the token's text, and the last one.
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
}

/// A part of an answer, or all of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// The token behind each part of the text, where requested.
    pub(crate) spans: Vec<Span>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<Position>,
    pub(crate) prompt_logprobs: Option<Vec<Position>>,
    /// From the first piece on: prompt tokens that were found in a cache.
    pub(crate) cached_tokens: Option<u64>,
    pub(crate) finish: Option<Finish>,
}

impl Piece {
    /// Adds the next part of the same answer.
    pub(crate) fn append(&mut self, more: Self) {
        self.text.push_str(&more.text);
        self.spans.extend(more.spans);
        self.tokens.extend_from_slice(&more.tokens);
        self.logprobs.extend(more.logprobs);
        self.prompt_logprobs = more.prompt_logprobs.or(self.prompt_logprobs.take());
        self.cached_tokens = more.cached_tokens.or(self.cached_tokens);
        self.finish = more.finish.or(self.finish.take());
    }

    /// The name of its finish reason.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        self.finish.as_ref().map(Finish::name)
    }

    pub(crate) fn stop_reason(&self) -> Option<StopCause> {
        self.finish.as_ref()?.stop.clone()
    }

    pub(crate) fn kv_transfer_params(&self) -> Option<serde_json::Value> {
        self.finish.as_ref()?.kv_transfer_params.as_ref().map(json_of)
    }
}

/// Settings of the text of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextSettings {
    pub(crate) stop: Vec<String>,
    pub(crate) include_stop: bool,
    pub(crate) skip_special: bool,
    pub(crate) min_tokens: u32,
    /// The token that ends a text, which is not part of it.
    pub(crate) eos_token: Option<u32>,
    /// Return the token behind each part of the text.
    pub(crate) has_spans: bool,
    /// The share of the prompt that must be cached for an answer.
    pub(crate) least_cached: Option<f64>,
}

/// The answer to one request as text. Dropped before its end, it aborts the
/// request.
pub(crate) struct TextStream {
    outputs: RequestStream,
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
    stops: StopStrings,
    settings: TextSettings,
    /// Spans of text that is not released.
    spans: VecDeque<Span>,
    output_tokens: u32,
    is_done: bool,
}

impl TextStream {
    /// The answer of `outputs`, by a detokenizer that knows the prompt.
    pub(crate) fn new(
        outputs: RequestStream,
        tokenizer: &Tokenizer,
        settings: TextSettings,
        detokenizer: Detokenizer,
    ) -> Self {
        Self {
            outputs,
            tokenizer: tokenizer.clone(),
            detokenizer,
            stops: StopStrings::new(settings.stop.clone(), settings.include_stop),
            settings,
            spans: VecDeque::new(),
            output_tokens: 0,
            is_done: false,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Piece>, EngineError>> {
        if self.is_done {
            return Poll::Ready(Ok(None));
        }
        let (tokens, rest) = match ready!(self.outputs.poll(context)) {
            Ok(Some(StepOutput::Tokens(tokens))) => (tokens.to_vec(), None),
            Ok(Some(StepOutput::Whole(mut output))) => (std::mem::take(&mut output.new_token_ids), Some(output)),
            ended => {
                self.is_done = true;
                return Poll::Ready(ended.map(|_| None));
            }
        };
        let piece = self.take(tokens, rest);
        self.is_done = piece.finish.is_some();
        Poll::Ready(Ok(Some(piece)))
    }

    /// The text of an output: of its tokens, and of its other parts, if any.
    fn take(&mut self, tokens: Vec<u32>, rest: Option<Box<EngineCoreOutput>>) -> Piece {
        if let Some(piece) = self.refused(rest.as_deref()) {
            return piece;
        }
        let mut piece = Piece::default();
        self.output_tokens += tokens.len() as u32;
        // The token that stops a text belongs to it only if requested.
        let is_hidden = rest.as_deref().is_some_and(|output| self.hides_last(&tokens, output));
        let mut text = String::new();
        for token in &tokens[..tokens.len().saturating_sub(usize::from(is_hidden))] {
            let before = text.len();
            self.detokenizer.push(*token, &mut text);
            self.add_span(Some(*token), text.len() - before);
        }
        piece.tokens = tokens;
        if let Some(output) = rest.as_deref() {
            self.take_rest(output, &mut piece, &mut text);
        }
        let may_stop = self.output_tokens > self.settings.min_tokens;
        if let Some(found) = self.stops.push(&text, may_stop, &mut piece.text) {
            self.outputs.stop();
            let stop = Some(StopCause::Text(found.stop));
            let kv_transfer_params = rest.and_then(|output| output.kv_transfer_params);
            let (reason, is_uncached) = (FinishReason::Stop, false);
            piece.finish = Some(Finish { reason, stop, error: None, kv_transfer_params, is_uncached });
        } else if let Some((output, reason)) =
            rest.and_then(|output| output.finish_reason.map(|reason| (output, reason)))
        {
            self.stops.finish(&mut piece.text);
            let EngineCoreOutput { stop_reason, error, kv_transfer_params, .. } = *output;
            let stop = stop_reason.map(|stop| match stop {
                StopReason::Token(token) => StopCause::Token(token),
                StopReason::Text(text) => StopCause::Text(text),
            });
            piece.finish = Some(Finish { reason, stop, error, kv_transfer_params, is_uncached: false });
        }
        piece.spans = self.released_spans(piece.text.len());
        if piece.finish.is_some() {
            // Tokens whose text a stop string cut off are still tokens of the answer.
            let cut = self.spans.drain(..).filter(|span| span.is_first);
            piece.spans.extend(cut.map(|span| Span { bytes: 0, ..span }));
        }
        piece
    }

    /// The end of an answer whose first output reports too few cached tokens.
    fn refused(&mut self, first: Option<&EngineCoreOutput>) -> Option<Piece> {
        let stats = first?.prefill_stats.as_ref()?;
        let (prompt, cached) = (stats.num_prompt_tokens.max(1), stats.num_cached_tokens);
        self.settings.least_cached.filter(|least| (cached as f64 / prompt as f64) < *least)?;
        self.outputs.stop();
        let (reason, is_uncached) = (FinishReason::Stop, true);
        let finish = Finish { reason, stop: None, error: None, kv_transfer_params: None, is_uncached };
        Some(Piece { cached_tokens: Some(cached), finish: Some(finish), ..Piece::default() })
    }

    /// Takes the parts of an output other than tokens.
    fn take_rest(&mut self, output: &EngineCoreOutput, piece: &mut Piece, text: &mut String) {
        let read = |logprobs| Position::read(logprobs, &self.tokenizer);
        piece.logprobs = output.new_logprobs.as_ref().map(read).unwrap_or_default();
        piece.prompt_logprobs = output.new_prompt_logprobs_tensors.as_ref().map(read);
        piece.cached_tokens = output.prefill_stats.as_ref().map(|stats| stats.num_cached_tokens);
        if output.finish_reason.is_some() {
            let before = text.len();
            self.detokenizer.finish(text);
            self.add_span(None, text.len() - before);
        }
    }

    fn add_span(&mut self, token: Option<u32>, bytes: usize) {
        if self.settings.has_spans {
            self.spans.push_back(Span { token, bytes, is_first: true, is_last: true });
        }
    }

    /// The spans of the next bytes of the text; the last one may continue.
    fn released_spans(&mut self, mut bytes: usize) -> Vec<Span> {
        let mut released = Vec::new();
        while let Some(span) = self.spans.front_mut() {
            if span.bytes > bytes {
                if bytes > 0 {
                    released.push(Span { bytes, is_last: false, ..*span });
                    span.bytes -= bytes;
                    span.is_first = false;
                }
                break;
            }
            bytes -= span.bytes;
            released.extend(self.spans.pop_front());
        }
        released
    }

    /// Whether the last of its tokens ends a text without being a part of it.
    fn hides_last(&self, tokens: &[u32], output: &EngineCoreOutput) -> bool {
        if output.finish_reason != Some(FinishReason::Stop) || self.settings.include_stop {
            return false;
        }
        match (&output.stop_reason, tokens.last()) {
            (Some(StopReason::Token(_)), Some(_)) => true,
            (None, Some(last)) => self.settings.eos_token == Some(*last),
            _ => false,
        }
    }
}

/// The answers to several requests, as they come.
pub(crate) struct Merged {
    streams: Vec<TextStream>,
    /// The one to be asked first, so that none starves another.
    first: usize,
}

impl Merged {
    pub(crate) fn new(streams: Vec<TextStream>) -> Self {
        Self { streams, first: 0 }
    }

    /// The next piece and whose it is; none after all have ended.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Piece)>, EngineError> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<(usize, Piece)>, EngineError>> {
        let count = self.streams.len();
        let mut are_done = true;
        for offset in 0..count {
            let index = (self.first + offset) % count;
            match self.streams[index].poll(context) {
                Poll::Ready(Ok(Some(piece))) => {
                    self.first = (index + 1) % count;
                    return Poll::Ready(Ok(Some((index, piece))));
                }
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => are_done = false,
            }
        }
        if are_done { Poll::Ready(Ok(None)) } else { Poll::Pending }
    }
}
