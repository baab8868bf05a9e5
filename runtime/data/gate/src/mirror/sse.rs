//! Reads OpenAI's streams, chunk by chunk.
//!
//! A line is one chunk, `{"request_id", "at_ms", "data"}`, or a whole request with `chunks` of `{"at_ms", "data"}`.
//! Times count from the sending of the request, in the unit that the field's name ends in. A request may have no
//! times. `data` is the JSON of an event, as an object or as the text after `data:`, or `[DONE]`. Labels may be on
//! any line of a request. A stream without `[DONE]` was cut off. Files of other forms are raw streams, which `dump`
//! reads.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::ops::ControlFlow;

use serde_json::{Map, Value};

use super::fields::{needed_text, ns, object};
use super::stream::{DONE, Stream};
use super::{Out, each_line, peek_first, responses};
use crate::error::{GateError, Place, Problem};
use crate::observation::Observation;

/// Reads a file. Returns a doubt about its times, if there is one.
pub(super) fn read(reader: impl BufRead, out: &mut Out<'_, '_>) -> Result<Option<String>, GateError> {
    let (first, reader) = peek_first(reader, &out.name)?;
    if first.is_some_and(|byte| byte != b'{') {
        return read_dump(reader, out);
    }
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
        if stream.is_done() || is_whole {
            wants_more = stream.finish(id, out)?;
        } else {
            open.insert(id, stream);
        }
        Ok(wants_more)
    })?;
    let mut cut: Vec<(String, Stream)> = open.into_iter().collect();
    cut.sort_by_key(|(_, stream)| stream.line());
    for (id, stream) in cut {
        if wants_more.is_break() {
            break;
        }
        wants_more = stream.finish(id, out)?;
    }
    Ok(None)
}

const DATA: &str = "data:";
/// Starts of lines that contain no part of an answer.
const OTHERS: [&str; 4] = ["event:", "id:", "retry:", ":"];
/// Start of the status line before response headers.
const STATUS_LINE: &str = "HTTP/";
const REQUEST_ID: &str = "x-request-id";

/// Splits a line into its time in seconds, if it starts with one, and the rest.
fn timed(line: &str) -> (Option<f64>, &str) {
    let line = line.trim();
    let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    match word.parse::<f64>() {
        Ok(seconds) => (Some(seconds), rest.trim_start()),
        Err(_) => (None, line),
    }
}

fn read_dump(reader: impl BufRead, out: &mut Out<'_, '_>) -> Result<Option<String>, GateError> {
    let name = out.name.clone();
    let mut dump = Dump::default();
    each_line(reader, &name, |number, bytes| {
        let place = Place::Line(number);
        let refused = |problem: Problem| GateError::from(problem.at(&name, place));
        let Ok(text) = std::str::from_utf8(bytes) else {
            return dump.spoil(Problem::new("", "invalid UTF-8")).map_err(refused);
        };
        let (seconds, text) = timed(text);
        let at_ns = seconds.map(|seconds| ns("time", seconds, 1e9)).transpose().map_err(refused)?;
        if text.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        if text.starts_with(STATUS_LINE) {
            let flow = dump.finish(out)?;
            dump.answer = Some(Answer::of_status(text, number).map_err(refused)?);
            return Ok(flow);
        }
        match dump.part(text, at_ns, number) {
            Ok(Part::None) => Ok(ControlFlow::Continue(())),
            Ok(Part::Stream(id, stream)) => stream.finish(id, out),
            Ok(Part::Whole(observation, tokens)) => out.add(*observation, tokens, place),
            Err(problem) => dump.spoil(problem).map_err(refused),
        }
    })?;
    let _ = dump.finish(out)?;
    Ok(dump.doubt())
}

#[derive(Default)]
struct Answer {
    line: u64,
    status: u32,
    request_id: Option<String>,
    has_body: bool,
    /// Whether its observation was made.
    is_complete: bool,
    is_unreadable: bool,
}

/// The error class of an answer that is not of the form that its API has.
const UNREADABLE: &str = "unreadable";
/// The field of problems with the times of chunks.
const TIME_FIELD: &str = "at_ms";

/// The end of an answer, if a line has one.
enum Part {
    None,
    Stream(String, Box<Stream>),
    Whole(Box<Observation<'static>>, Option<u64>),
}

impl Answer {
    fn of_status(text: &str, line: u64) -> Result<Self, Problem> {
        let status = text.split_whitespace().nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| Problem::new("", "invalid status line: expected HTTP/1.1 STATUS"))?;
        Ok(Self { line, status, ..Self::default() })
    }

    fn add_header(&mut self, line: &str) {
        if let Some((_, value)) = line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case(REQUEST_ID)) {
            self.request_id = Some(value.trim().to_owned()).filter(|id| !id.is_empty());
        }
    }

    fn error(&self) -> Option<String> {
        if self.is_unreadable {
            return Some(UNREADABLE.to_owned());
        }
        responses::error_of_status(f64::from(self.status))
    }
}

/// Whether the times of the answers go back, as they do where each counts from its own request.
#[derive(Default)]
struct Times {
    answers: u64,
    last_ns: u64,
    go_back: bool,
}

impl Times {
    fn note(&mut self, at_ns: Option<u64>, is_first: bool) {
        let Some(at_ns) = at_ns else { return };
        self.answers += u64::from(is_first);
        self.go_back |= at_ns < self.last_ns;
        self.last_ns = at_ns;
    }

    fn doubt(&self) -> Option<String> {
        (self.answers > 1 && !self.go_back).then(|| {
            format!(
                "the times of {} answers never go back: if one clock timed them all, their latencies are wrong; start \
                 `ts -s %.s` anew for each request",
                self.answers
            )
        })
    }
}

#[derive(Default)]
struct Dump {
    times: Times,
    answer: Option<Answer>,
    /// Unfinished streams, by the id in their chunks.
    open: BTreeMap<String, Stream>,
    latest: Option<String>,
    answers: u64,
    unreadable: u64,
}

impl Dump {
    /// Reads a line that is not a status line.
    fn part(&mut self, text: &str, at_ns: Option<u64>, line: u64) -> Result<Part, Problem> {
        if self.answer.as_ref().is_some_and(|answer| answer.is_unreadable) {
            return Ok(Part::None);
        }
        if let Some(data) = text.strip_prefix(DATA) {
            let ended = self.data(data.trim(), at_ns, line)?;
            return Ok(ended.map_or(Part::None, |(id, stream)| Part::Stream(id, Box::new(stream))));
        }
        if text.starts_with('{') {
            let (observation, tokens) = self.body(text, at_ns)?;
            return Ok(Part::Whole(Box::new(observation), tokens));
        }
        let is_other = OTHERS.iter().any(|other| text.starts_with(other));
        match self.answer.as_mut().filter(|answer| !answer.has_body && !is_other) {
            Some(answer) => answer.add_header(text),
            None if is_other => {}
            None => return Err(Problem::new("", "invalid line: expected `data: ...` of a stream")),
        }
        Ok(Part::None)
    }

    /// Marks the current answer as failed, if headers show where answers begin.
    ///
    /// # Errors
    /// The problem, if there are no headers or if it concerns times.
    fn spoil(&mut self, problem: Problem) -> Result<ControlFlow<()>, Problem> {
        let answer = self.answer.as_mut().filter(|answer| !answer.is_complete && problem.field != TIME_FIELD);
        let Some(answer) = answer else { return Err(problem) };
        answer.is_unreadable = true;
        self.unreadable += 1;
        Ok(ControlFlow::Continue(()))
    }

    fn complete(&mut self) {
        if let Some(answer) = &mut self.answer {
            answer.is_complete = true;
        }
    }

    fn doubt(&self) -> Option<String> {
        let verb =
            if self.unreadable == 1 { "answer cannot be read and counts" } else { "answers cannot be read and count" };
        let unreadable = (self.unreadable > 0).then(|| format!("{} {verb} as failed", self.unreadable));
        let doubts: Vec<String> = unreadable.into_iter().chain(self.times.doubt()).collect();
        (!doubts.is_empty()).then(|| doubts.join("; "))
    }

    /// The id of a request: from its headers, from its chunks, or its number in the file.
    fn name(&mut self, of_chunks: &str) -> String {
        self.answers += 1;
        let of_headers = self.answer.as_ref().and_then(|answer| answer.request_id.clone());
        let of_chunks = Some(of_chunks.to_owned()).filter(|id| !id.is_empty());
        of_headers.or(of_chunks).unwrap_or_else(|| format!("answer {}", self.answers))
    }

    /// Adds the text after `data:`. Returns the stream if this text ends it.
    fn data(&mut self, data: &str, at_ns: Option<u64>, line: u64) -> Result<Option<(String, Stream)>, Problem> {
        if let Some(answer) = &mut self.answer {
            answer.has_body = true;
        }
        if data == DONE {
            self.times.note(at_ns, false);
            let latest = self.latest.take().and_then(|id| self.open.remove_entry(&id));
            let Some((id, mut stream)) = latest else {
                return Err(Problem::new("data", format!("{DONE} ends no stream: there is no chunk before it")));
            };
            stream.end(at_ns)?;
            self.complete();
            return Ok(Some((self.name(&id), stream)));
        }
        let event: Value = serde_json::from_str(data)
            .map_err(|error| Problem::new("data", format!("invalid event: expected JSON or {DONE}: {error}")))?;
        let id = event.get("id").or_else(|| event.get("response")?.get("id")).and_then(Value::as_str);
        let id = id.map(str::to_owned).or_else(|| self.latest.clone()).unwrap_or_default();
        self.times.note(at_ns, !self.open.contains_key(&id));
        self.open.entry(id.clone()).or_insert_with(|| Stream::new(line)).add_event(at_ns, &event)?;
        self.latest = Some(id);
        Ok(None)
    }

    /// Reads a body that is not a stream: an error, or a whole answer.
    fn body(&mut self, text: &str, at_ns: Option<u64>) -> Result<(Observation<'static>, Option<u64>), Problem> {
        let body: Value = serde_json::from_str(text).map_err(|error| Problem::new("", error.to_string()))?;
        let id = self.name(body.get("id").and_then(Value::as_str).unwrap_or_default());
        self.times.note(at_ns, true);
        let mut row = Map::from_iter([("request_id".to_owned(), id.into())]);
        if let Some(answer) = &mut self.answer {
            answer.has_body = true;
            row.insert("status".to_owned(), answer.status.into());
        }
        row.extend(at_ns.map(|at_ns| ("latency_ns".to_owned(), at_ns.into())));
        row.insert("response".to_owned(), body);
        let read = responses::observation(&row)?;
        self.complete();
        Ok(read)
    }

    /// Ends all streams, because the next lines belong to another answer.
    fn finish(&mut self, out: &mut Out<'_, '_>) -> Result<ControlFlow<()>, GateError> {
        self.latest = None;
        let error = self.answer.as_ref().and_then(Answer::error);
        let is_streamed = !self.open.is_empty();
        for (id, mut stream) in std::mem::take(&mut self.open) {
            if let Some(error) = error.clone() {
                stream.fail(error);
            }
            let id = self.name(&id);
            if stream.finish(id, out)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let Some(Answer { line, has_body, is_unreadable, is_complete, .. }) = self.answer else {
            return Ok(ControlFlow::Continue(()));
        };
        if is_complete || is_streamed || (has_body && !is_unreadable) {
            return Ok(ControlFlow::Continue(()));
        }
        let request_id = self.name("").into();
        let error = Some(error.unwrap_or_else(|| "empty answer".to_owned()).into());
        out.add(Observation { request_id, error, ..Observation::default() }, None, Place::Line(line))
    }
}
