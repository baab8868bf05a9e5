//! Converts the outputs of a request to text.

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

/// The stop token or stop string that ended an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum StopCause {
    Token(u32),
    Text(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finish {
    pub(crate) reason: FinishReason,
    pub(crate) stop: Option<StopCause>,
    /// The error, if the answer failed.
    pub(crate) error: Option<RequestError>,
    pub(crate) kv_transfer_params: Option<Value>,
    /// Whether the answer was cancelled because too little of its prompt was cached.
    pub(crate) is_uncached: bool,
}

impl Finish {
    pub(crate) fn name(&self) -> &'static str {
        if self.is_uncached { "cache_threshold" } else { self.reason.name() }
    }
}

/// A part of a piece that comes from one token: the whole text of the token, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// None for text that was held back until the end.
    pub(crate) token: Option<u32>,
    pub(crate) bytes: usize,
    /// Whether this is the first part of the token's text.
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
}

/// A part of an answer, or the whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// The token of each part of the text, if requested.
    pub(crate) spans: Vec<Span>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<Position>,
    pub(crate) prompt_logprobs: Option<Vec<Position>>,
    /// The number of cached prompt tokens. Set from the first piece on.
    pub(crate) cached_tokens: Option<u64>,
    pub(crate) finish: Option<Finish>,
}

impl Piece {
    /// Appends the next piece of the same answer.
    pub(crate) fn append(&mut self, more: Self) {
        self.text.push_str(&more.text);
        self.spans.extend(more.spans);
        self.tokens.extend_from_slice(&more.tokens);
        self.logprobs.extend(more.logprobs);
        self.prompt_logprobs = more.prompt_logprobs.or(self.prompt_logprobs.take());
        self.cached_tokens = more.cached_tokens.or(self.cached_tokens);
        self.finish = more.finish.or(self.finish.take());
    }

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

/// Settings for the text of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextSettings {
    pub(crate) stop: Vec<String>,
    pub(crate) include_stop: bool,
    pub(crate) skip_special: bool,
    pub(crate) min_tokens: u32,
    /// Number of tokens in a piece. The first token and the end do not wait for others.
    pub(crate) stream_interval: u32,
    /// The token that ends a text. It is not part of the text.
    pub(crate) eos_token: Option<u32>,
    /// Whether pieces contain spans.
    pub(crate) has_spans: bool,
    /// The minimum share of the prompt that must be cached. Otherwise there is no answer.
    pub(crate) least_cached: Option<f64>,
}

/// The answer to a request as text. If it is dropped early, the request is aborted.
pub(crate) struct TextStream {
    outputs: RequestStream,
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
    stops: StopStrings,
    settings: TextSettings,
    /// Spans of text that is held back.
    spans: VecDeque<Span>,
    output_tokens: u32,
    /// A piece with fewer tokens than the stream's interval, which waits for more.
    held: Option<Piece>,
    /// Number of output tokens in the pieces so far.
    sent_tokens: u32,
    is_done: bool,
}

impl TextStream {
    /// Creates the answer of `outputs`. The detokenizer already knows the prompt.
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
            held: None,
            sent_tokens: 0,
            is_done: false,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Piece>, EngineError>> {
        while !self.is_done {
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
            if let Some(piece) = self.due(piece) {
                return Poll::Ready(Ok(Some(piece)));
            }
        }
        Poll::Ready(Ok(None))
    }

    /// Joins a piece with the held one, and holds the result if it has fewer tokens than the stream's interval.
    fn due(&mut self, piece: Piece) -> Option<Piece> {
        let piece = match self.held.take() {
            Some(mut held) => {
                held.append(piece);
                held
            }
            None => piece,
        };
        let is_due = self.sent_tokens == 0 || self.output_tokens - self.sent_tokens >= self.settings.stream_interval;
        if is_due || self.is_done {
            self.sent_tokens = self.output_tokens;
            return Some(piece);
        }
        self.held = Some(piece);
        None
    }

    /// Converts an output: its tokens, and the rest if there is any.
    fn take(&mut self, tokens: Vec<u32>, rest: Option<Box<EngineCoreOutput>>) -> Piece {
        if let Some(piece) = self.refused(rest.as_deref()) {
            return piece;
        }
        let mut piece = Piece::default();
        self.output_tokens += tokens.len() as u32;
        // A stop token is part of the text only if requested.
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
            // Tokens whose text was cut by a stop string still belong to the answer.
            let cut = self.spans.drain(..).filter(|span| span.is_first);
            piece.spans.extend(cut.map(|span| Span { bytes: 0, ..span }));
        }
        piece
    }

    /// Ends an answer whose first output reports too few cached tokens.
    fn refused(&mut self, first: Option<&EngineCoreOutput>) -> Option<Piece> {
        let stats = first?.prefill_stats.as_ref()?;
        let (prompt, cached) = (stats.num_prompt_tokens.max(1), stats.num_cached_tokens);
        self.settings.least_cached.filter(|least| (cached as f64 / prompt as f64) < *least)?;
        self.outputs.stop();
        let (reason, is_uncached) = (FinishReason::Stop, true);
        let finish = Finish { reason, stop: None, error: None, kv_transfer_params: None, is_uncached };
        Some(Piece { cached_tokens: Some(cached), finish: Some(finish), ..Piece::default() })
    }

    /// Converts the parts of an output that are not tokens.
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

    /// Returns the spans of the next bytes. The last span may be split.
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

    /// Whether the last token ends the text without being part of it.
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

/// The answers to several requests, in order of arrival.
pub(crate) struct Merged {
    streams: Vec<TextStream>,
    /// The index of the stream that is polled first. It moves after each piece, so that no stream starves.
    first: usize,
}

impl Merged {
    pub(crate) fn new(streams: Vec<TextStream>) -> Self {
        Self { streams, first: 0 }
    }

    /// Returns the next piece and the index of its answer. None after all have ended.
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
