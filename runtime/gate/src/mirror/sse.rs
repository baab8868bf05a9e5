//! OpenAI's streams, chunk by chunk, with the time of each.
//!
//! A line is one chunk, `{"request_id", "at_ms", "data"}`, or a whole request with `chunks` of
//! `{"at_ms", "data"}`. Times count from when the request was sent, in any unit that the name
//! says; `data` is the JSON of an event, as an object or as the text after `data:`, or `[DONE]`.
//! Labels may stand on any line of a request. A stream without `[DONE]` was cut off.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::ops::ControlFlow;

use serde_json::{Map, Value};

use super::fields::{error_class, known, needed_text, needed_time, object, optional_text, set_labels};
use super::logprobs::Piece;
use super::{Out, each_line};
use crate::error::{GateError, Place, Problem};
use crate::observation::Observation;

const DONE: &str = "[DONE]";
/// The error class of a stream that ends before `[DONE]`.
const CUT: &str = "cut_stream";

pub(super) fn read(reader: impl BufRead, out: &mut Out<'_, '_>) -> Result<(), GateError> {
    let mut open: BTreeMap<String, Stream> = BTreeMap::new();
    let mut wants_more = ControlFlow::Continue(());
    let name = out.name.clone();
    each_line(reader, &name, |line, bytes| {
        let place = Place::Line(line);
        let parsed = object(bytes).and_then(|row| Ok((needed_text(&row, "request_id")?, row)));
        let (id, row) = parsed.map_err(|problem| out.problem(problem, place))?;
        let is_whole = row.contains_key("chunks");
        if is_whole && open.contains_key(&id) {
            let text = "the request has single chunks before, too; keep one of the two";
            return Err(out.problem(Problem::new("request_id", text), place));
        }
        let mut stream = open.remove(&id).unwrap_or_else(|| Stream::new(line));
        stream.add_row(row).map_err(|problem| out.problem(problem, place))?;
        if stream.is_done || is_whole {
            wants_more = stream.finish(id, out)?;
        } else {
            open.insert(id, stream);
        }
        Ok(wants_more)
    })?;
    let mut cut: Vec<(String, Stream)> = open.into_iter().collect();
    cut.sort_by_key(|(_, stream)| stream.line);
    for (id, stream) in cut {
        if wants_more.is_break() {
            break;
        }
        wants_more = stream.finish(id, out)?;
    }
    Ok(())
}

/// A stream as far as it was read.
struct Stream {
    /// Its first line.
    line: u64,
    labels: Map<String, Value>,
    model: Option<String>,
    answer: Piece,
    event_ns: Vec<u64>,
    event_tokens: Vec<u32>,
    last_ns: u64,
    error: Option<String>,
    is_done: bool,
}

impl Stream {
    fn new(line: u64) -> Self {
        Self {
            line,
            labels: Map::new(),
            model: None,
            answer: Piece::default(),
            event_ns: Vec::new(),
            event_tokens: Vec::new(),
            last_ns: 0,
            error: None,
            is_done: false,
        }
    }

    fn add_row(&mut self, mut row: Map<String, Value>) -> Result<(), Problem> {
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
        let at_ns = needed_time(chunk, "at")?;
        if at_ns < self.last_ns {
            return Err(Problem::new("at_ms", format!("the chunk goes back: from {} ns to {at_ns} ns", self.last_ns)));
        }
        if self.is_done {
            return Err(Problem::new("data", "the stream has ended before"));
        }
        self.last_ns = at_ns;
        let data = match known(chunk, "data") {
            None => return Ok(()),
            Some(Value::String(text)) if text.trim() == DONE => {
                self.is_done = true;
                return Ok(());
            }
            Some(Value::String(text)) => serde_json::from_str(text)
                .map_err(|error| Problem::new("data", format!("invalid event: expected JSON or {DONE}: {error}")))?,
            Some(data) => data.clone(),
        };
        if let Some(error) = data.get("error").filter(|error| !error.is_null()) {
            self.error = Some(error_class(error));
        }
        if self.model.is_none() {
            self.model = data.get("model").and_then(Value::as_str).map(str::to_owned);
        }
        // Other choices are other answers to the same request.
        let choices = data.get("choices").and_then(Value::as_array).into_iter().flatten();
        let is_first = |choice: &&Value| choice.get("index").is_none_or(|index| index == 0);
        if let Some(choice) = choices.into_iter().find(is_first) {
            let piece = Piece::of_choice(choice)?;
            if piece.tokens() > 0 {
                self.event_ns.push(at_ns);
                self.event_tokens.push(piece.tokens());
            }
            self.answer.extend(piece);
        }
        Ok(())
    }

    fn finish(self, id: String, out: &mut Out<'_, '_>) -> Result<ControlFlow<()>, GateError> {
        let place = Place::Line(self.line);
        let error = self.error.or_else(|| (!self.is_done).then(|| CUT.to_owned()));
        let mut observation = Observation {
            request_id: id.into(),
            ok: error.is_none(),
            error: error.map(Into::into),
            latency_ns: self.last_ns,
            event_tokens: self.event_tokens.iter().any(|tokens| *tokens != 1).then_some(self.event_tokens),
            event_ns: Some(self.event_ns),
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
