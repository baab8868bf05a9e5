//! Reads request logs of servers: vLLM's with `--enable-log-outputs`, SGLang's with `--log-requests`.
//!
//! The reader uses vLLM's lines `Generated response ID: output: '...'` and SGLang's lines
//! `Finish: obj=..., out={...}`, or its `request.finished` events with `--log-requests-format json`. It skips other
//! lines. vLLM logs whole seconds, which is too coarse for latencies, so its observations have no times.

use std::collections::btree_map::{BTreeMap, Entry};
use std::io::BufRead;
use std::ops::ControlFlow;

use serde_json::{Map, Value};

use super::responses::token_ids;
use super::{Out, each_line, literal, responses};
use crate::error::{GateError, Place, Problem};
use crate::observation::Observation;

const VLLM_ANSWER: &str = "Generated response ";
const VLLM_OUTPUT: &str = ": output: ";
const VLLM_DELTA: &str = " (streaming delta)";
const VLLM_COMPLETE: &str = " (streaming complete)";
const SGLANG_FINISH: &str = "Finish: obj=";
const SGLANG_OUT: &str = ", out=";
const SGLANG_FINISHED: &str = "request.finished";
/// The text that SGLang puts in place of the middle of a long output.
const SHORTENED: &str = "...";
/// Number of characters that SGLang keeps at the beginning and at the end of a long output.
const KEPT_CHARACTERS: usize = 1024;

/// Reads a log. Returns counts of what was skipped.
pub(super) fn read(reader: impl BufRead, out: &mut Out<'_, '_>) -> Result<Vec<(String, u64)>, GateError> {
    let name = out.name.clone();
    let mut vllm = Vllm::default();
    let mut others = 0;
    each_line(reader, &name, |line, bytes| {
        let place = Place::Line(line);
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end();
        if let Some(answer) = after(text, VLLM_ANSWER) {
            return vllm.answer(answer, place, out);
        }
        let answers = if let Some(finish) = after(text, SGLANG_FINISH) {
            printed(finish)
        } else if let Ok(row) = serde_json::from_str::<Map<String, Value>>(text) {
            finished(row)
        } else {
            Ok(Vec::new())
        };
        let answers = answers.map_err(|problem| out.problem(problem, place))?;
        others += u64::from(answers.is_empty());
        for row in answers {
            let observed = check_whole(&row).and_then(|()| responses::observation(&row));
            let (observation, tokens) = observed.map_err(|problem| out.problem(problem, place))?;
            if out.add(observation, tokens, place)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let open = vllm.open();
    let notes = [("lines of other events".to_owned(), others), ("answers without an end".to_owned(), open)];
    Ok(notes.into_iter().filter(|(_, count)| *count > 0).collect())
}

fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark).map(|(_, after)| after)
}

/// The token ids of each vLLM request that is still streaming. None if the request's answer is complete.
#[derive(Default)]
struct Vllm {
    by_id: BTreeMap<String, Option<Vec<u32>>>,
}

impl Vllm {
    /// Reads the text after [`VLLM_ANSWER`]. Only the first complete answer of a request counts; later ones are its
    /// other choices.
    fn answer(&mut self, text: &str, place: Place, out: &mut Out<'_, '_>) -> Result<ControlFlow<()>, GateError> {
        let parsed = VllmAnswer::parse(text).map_err(|problem| out.problem(problem, place))?;
        let mut entry = match self.by_id.entry(parsed.id) {
            Entry::Occupied(entry) if entry.get().is_none() => return Ok(ControlFlow::Continue(())),
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => entry.insert_entry(Some(Vec::new())),
        };
        if parsed.is_delta {
            if let Some(ids) = entry.get_mut() {
                ids.extend(parsed.token_ids.unwrap_or_default());
            }
            return Ok(ControlFlow::Continue(()));
        }
        let streamed = entry.insert(None).filter(|ids| !ids.is_empty());
        let failed = ["abort", "error"].contains(&parsed.finish_reason.as_str());
        let observation = Observation {
            request_id: entry.key().clone().into(),
            ok: !failed,
            error: failed.then(|| parsed.finish_reason.into()),
            text: Some(parsed.text.into()),
            token_ids: parsed.token_ids.or(streamed),
            backend: Some("vllm".into()),
            ..Observation::default()
        };
        out.add(observation, None, place)
    }

    fn open(&self) -> u64 {
        self.by_id.values().filter(|ids| ids.is_some()).count() as u64
    }
}

struct VllmAnswer {
    id: String,
    is_delta: bool,
    text: String,
    token_ids: Option<Vec<u32>>,
    finish_reason: String,
}

impl VllmAnswer {
    fn parse(text: &str) -> Result<Self, Problem> {
        let invalid = || Problem::new("output", "invalid line of vLLM's log: expected ID: output: '...'");
        let (id, text) = text.split_once(VLLM_OUTPUT).ok_or_else(invalid)?;
        let is_delta = id.ends_with(VLLM_DELTA);
        let id = id.trim_end_matches(VLLM_DELTA).trim_end_matches(VLLM_COMPLETE);
        let Some((Value::String(output), rest)) = literal::parse(text) else { return Err(invalid()) };
        let (ids, rest) = match rest.strip_prefix(", output_token_ids: ") {
            Some(rest) => literal::parse(rest).ok_or_else(invalid)?,
            None => (Value::Null, rest),
        };
        let finish_reason = rest.strip_prefix(", finish_reason: ").unwrap_or_default();
        Ok(Self {
            id: id.to_owned(),
            is_delta,
            text: output,
            token_ids: if ids.is_null() { None } else { Some(token_ids(&ids)?) },
            finish_reason: finish_reason.to_owned(),
        })
    }
}

/// Reads a `Finish` line of SGLang, which prints the answers as Python dicts.
fn printed(text: &str) -> Result<Vec<Map<String, Value>>, Problem> {
    // A prompt may also contain this mark. Only the literal after the last one reaches the end of the line.
    let parts = text.match_indices(SGLANG_OUT).map(|(at, mark)| &text[at + mark.len()..]);
    let whole = parts.filter_map(|part| literal::parse(part).filter(|(_, rest)| rest.is_empty()));
    let Some((out, _)) = whole.last() else {
        let text = "invalid line of SGLang's log: expected obj=..., out={...}; log whole outputs with \
                    --log-requests-level 3";
        return Err(Problem::new("out", text));
    };
    Ok(rows(None, out))
}

/// The answers of an SGLang event; empty if the event does not finish a request.
fn finished(mut row: Map<String, Value>) -> Result<Vec<Map<String, Value>>, Problem> {
    if row.get("event").is_none_or(|event| event != SGLANG_FINISHED) {
        return Ok(Vec::new());
    }
    let id = row.remove("rid").filter(Value::is_string);
    match row.remove("out") {
        Some(out) => Ok(rows(id, out)),
        None => Err(Problem::new("out", "the field is missing")),
    }
}

/// Converts an output to rows in the form that `responses` reads.
fn rows(id: Option<Value>, out: Value) -> Vec<Map<String, Value>> {
    let (answers, id) = match out {
        Value::Array(answers) => (answers, None),
        answer => (vec![answer], id),
    };
    let row = |answer: Value| {
        let id = id.clone().map(|id| ("request_id".to_owned(), id));
        id.into_iter().chain([("response".to_owned(), answer)]).collect()
    };
    answers.into_iter().map(row).collect()
}

/// Refuses an answer whose middle SGLang cut out.
fn check_whole(row: &Map<String, Value>) -> Result<(), Problem> {
    let is_short = |value: &Value| match value {
        Value::String(text) => {
            let mark: String = text.chars().skip(KEPT_CHARACTERS).take(SHORTENED.len()).collect();
            mark == SHORTENED && text.chars().count() == 2 * KEPT_CHARACTERS + SHORTENED.len()
        }
        Value::Array(items) => items.iter().any(|item| item == SHORTENED),
        _ => false,
    };
    let answer = row.get("response");
    for field in ["text", "output_ids"] {
        if answer.and_then(|answer| answer.get(field)).is_some_and(is_short) {
            return Err(Problem::new(field, "the log lacks its middle: log whole outputs with --log-requests-level 3"));
        }
    }
    Ok(())
}
