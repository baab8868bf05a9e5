//! Reads a stream of OpenAI's APIs, event by event.

use std::ops::ControlFlow;

use serde_json::{Map, Value};

use super::Out;
use super::fields::{error_class, known, optional_text, set_labels, time};
use super::responses::Piece;
use crate::error::{GateError, Place, Problem};
use crate::observation::Observation;

pub(super) const DONE: &str = "[DONE]";
/// The error class of a stream that ends without [`DONE`].
const CUT: &str = "cut_stream";

pub(super) struct Stream {
    line: u64,
    labels: Map<String, Value>,
    model: Option<String>,
    answer: Piece,
    event_ns: Vec<u64>,
    event_tokens: Vec<u32>,
    /// The time of the latest chunk; None before the first chunk, or if chunks have no times.
    last_ns: Option<u64>,
    chunks: u64,
    error: Option<String>,
    /// Whether an event said that the answer is complete. [`DONE`] may still follow.
    is_complete: bool,
    is_done: bool,
}

impl Stream {
    pub(super) fn new(line: u64) -> Self {
        Self {
            line,
            labels: Map::new(),
            model: None,
            answer: Piece::default(),
            event_ns: Vec::new(),
            event_tokens: Vec::new(),
            last_ns: None,
            chunks: 0,
            error: None,
            is_complete: false,
            is_done: false,
        }
    }

    /// Adds a row: a chunk, or a whole request.
    ///
    /// # Errors
    /// If the row is invalid, or does not fit the events before it.
    pub(super) fn add_row(&mut self, mut row: Map<String, Value>) -> Result<(), Problem> {
        if let Some(Value::Array(chunks)) = row.remove("chunks") {
            for chunk in chunks {
                let Value::Object(chunk) = chunk else {
                    return Err(Problem::new("chunks", "invalid chunk: expected an object"));
                };
                self.add_chunk(&chunk)?;
            }
        } else {
            self.add_chunk(&row)?;
        }
        if let Some(error) = known(&row, "error") {
            self.error.get_or_insert_with(|| error_class(error));
        }
        self.labels.extend(row.into_iter().filter(|(key, _)| key != "data"));
        Ok(())
    }

    fn add_chunk(&mut self, chunk: &Map<String, Value>) -> Result<(), Problem> {
        let at_ns = time(chunk, "at")?;
        match known(chunk, "data") {
            None if at_ns.is_none() && known(chunk, "error").is_none() => {
                Err(Problem::new("data", "the field is missing: expected `data` or `chunks`"))
            }
            None => self.pass(at_ns),
            Some(Value::String(text)) => self.add_text(at_ns, text),
            Some(data) => self.add_event(at_ns, data),
        }
    }

    fn add_text(&mut self, at_ns: Option<u64>, text: &str) -> Result<(), Problem> {
        if text.trim() == DONE {
            return self.end(at_ns);
        }
        let event = serde_json::from_str(text)
            .map_err(|error| Problem::new("data", format!("invalid event: expected JSON or {DONE}: {error}")))?;
        self.add_event(at_ns, &event)
    }

    pub(super) fn end(&mut self, at_ns: Option<u64>) -> Result<(), Problem> {
        self.pass(at_ns)?;
        self.is_done = true;
        Ok(())
    }

    fn pass(&mut self, at_ns: Option<u64>) -> Result<(), Problem> {
        if self.is_done {
            return Err(Problem::new("data", "the stream has ended before"));
        }
        if self.chunks > 0 && self.last_ns.is_some() != at_ns.is_some() {
            let text = "some chunks of the request have a time and others have none; give all of them one, or none";
            return Err(Problem::new("at_ms", text));
        }
        if let Some((last_ns, at_ns)) = self.last_ns.zip(at_ns).filter(|(last_ns, at_ns)| at_ns < last_ns) {
            return Err(Problem::new("at_ms", format!("the chunk goes back: from {last_ns} ns to {at_ns} ns")));
        }
        self.last_ns = at_ns;
        self.chunks += 1;
        Ok(())
    }

    /// Adds an event: a chunk of completions or chats, or an event of the Responses or the Messages API.
    pub(super) fn add_event(&mut self, at_ns: Option<u64>, data: &Value) -> Result<(), Problem> {
        self.pass(at_ns)?;
        let response = data.get("response").unwrap_or(data);
        if let Some(error) = response.get("error").filter(|error| !error.is_null()) {
            self.error = Some(error_class(error));
        }
        if self.model.is_none() {
            self.model = response.get("model").and_then(Value::as_str).map(str::to_owned);
        }
        // Other choices are other answers to the same request.
        let is_first = |choice: &&Value| choice.get("index").is_none_or(|index| index == 0);
        let choices = data.get("choices").and_then(Value::as_array).into_iter().flatten();
        let piece = match (choices.into_iter().find(is_first), data.get("type").and_then(Value::as_str)) {
            (Some(choice), _) => Piece::of_choice(choice)?,
            (None, Some("response.output_text.delta")) => Piece::of_text(data.get("delta")),
            (None, Some("content_block_delta")) => Piece::of_text(data.pointer("/delta/text")),
            (None, Some("response.completed" | "response.incomplete")) => {
                self.is_complete = true;
                return Ok(());
            }
            _ => return Ok(()),
        };
        if let Some(at_ns) = at_ns.filter(|_| piece.tokens() > 0) {
            self.event_ns.push(at_ns);
            self.event_tokens.push(piece.tokens());
        }
        self.answer.extend(piece);
        Ok(())
    }

    /// The text of the answer so far.
    pub(super) fn into_text(self) -> Option<String> {
        self.answer.text
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// Marks the request as failed, unless an event already reported an error.
    pub(super) fn fail(&mut self, error: String) {
        self.error.get_or_insert(error);
    }

    pub(super) fn finish(self, id: String, out: &mut Out<'_, '_>) -> Result<ControlFlow<()>, GateError> {
        let place = Place::Line(self.line);
        let is_cut = !self.is_done && !self.is_complete;
        let error = self.error.or_else(|| is_cut.then(|| CUT.to_owned()));
        let mut observation = Observation {
            request_id: id.into(),
            ok: error.is_none(),
            error: error.map(Into::into),
            latency_ns: self.last_ns,
            event_tokens: self.event_tokens.iter().any(|tokens| *tokens != 1).then_some(self.event_tokens),
            event_ns: self.last_ns.map(|_| self.event_ns),
            token_ids: self.answer.token_ids,
            text: self.answer.text.map(Into::into),
            vector: self.answer.logprobs,
            ..Observation::default()
        };
        let labelled = set_labels(&mut observation, &self.labels);
        let content = labelled.and_then(|()| optional_text(&self.labels, "content"));
        content.map_err(|problem| out.problem(problem, place))?;
        if observation.model.is_none() {
            observation.model = self.model.map(Into::into);
        }
        out.add(observation, None, place)
    }
}
