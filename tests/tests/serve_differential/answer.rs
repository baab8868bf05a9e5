//! Answers in a form that is equal for two servers that agree.
//!
//! Invented IDs and times are masked. Pieces of a stream are joined: the number of tokens per piece depends on
//! thread scheduling.

use serde_json::{Map, Value, json};
use vcr_tests::HttpAnswer;

/// Headers that are compared.
const HEADERS: &[&str] = &["content-type", "allow"];
/// Fields with an ID that the server makes up, or with a time.
const MADE_UP: &[&str] =
    &["id", "request_id", "created", "created_at", "completed_at", "item_id", "server_load", "prompt_cache_key"];
/// Fields of a stream's piece that continue the same fields of the previous piece.
const GROWING: &[&str] = &[
    "content",
    "text",
    "token_ids",
    "tokens",
    "token_logprobs",
    "top_logprobs",
    "text_offset",
    "delta",
    "thinking",
    "partial_json",
    "logprobs",
];

/// The whole answer as JSON: the status, the headers, and the body or the events of a stream.
pub(crate) fn comparable(answer: &HttpAnswer, is_own_id: bool) -> Value {
    let headers: Map<String, Value> =
        HEADERS.iter().map(|name| ((*name).to_owned(), json!(answer.header(name)))).collect();
    let text = answer.text();
    let body = if answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
        json!({"events": joined(events(&text))})
    } else {
        serde_json::from_str(&text).unwrap_or_else(|_| json!(text))
    };
    let mut whole = json!({"status": answer.status, "headers": headers, "body": body});
    mask(&mut whole, is_own_id);
    whole
}

/// Events of a stream: the event's name, if any, and its data.
fn events(text: &str) -> Vec<Value> {
    let mut events = Vec::new();
    for block in text.split("\n\n").filter(|block| !block.is_empty()) {
        let mut event = Map::new();
        for line in block.lines() {
            let (field, value) = line.split_once(": ").unwrap_or((line, ""));
            let value =
                if field == "data" { serde_json::from_str(value).unwrap_or(json!(value)) } else { json!(value) };
            event.insert(field.to_owned(), value);
        }
        events.push(event.into());
    }
    events
}

/// Joins consecutive pieces of the same text.
fn joined(events: Vec<Value>) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    for (number, mut event) in events.into_iter().enumerate() {
        // The server numbers the events consecutively.
        if let Some(sequence) = event["data"].get_mut("sequence_number") {
            *sequence = json!(if *sequence == number { "in order" } else { "out of order" });
        }
        match out.last_mut() {
            Some(last) if is_piece(last) && is_piece(&event) && place(last) == place(&event) => {
                join(last, &event, false);
            }
            _ => out.push(event),
        }
    }
    out
}

/// Returns `true` if an event only continues a text.
fn is_piece(event: &Value) -> bool {
    let data = &event["data"];
    if let Some(kind) = data["type"].as_str() {
        return kind == "content_block_delta" || kind == "response.output_text.delta";
    }
    let choice = &data["choices"][0];
    // Tokens come with the end of a choice, texts before it.
    let has_text = choice["text"].is_string() || choice["delta"].is_object();
    let is_end = has_text && !choice["finish_reason"].is_null();
    choice.is_object() && !is_end && choice["delta"]["role"].is_null() && choice["prompt_token_ids"].is_null()
}

/// Index of the event's text.
fn place(event: &Value) -> [Value; 4] {
    let data = &event["data"];
    [data["type"].clone(), data["index"].clone(), data["output_index"].clone(), data["choices"][0]["index"].clone()]
}

/// Appends growing fields. Of other fields, keeps the last value.
fn join(to: &mut Value, more: &Value, grows: bool) {
    match (to, more) {
        (Value::Object(to), Value::Object(more)) => {
            for (name, value) in more {
                match to.get_mut(name) {
                    Some(known) => join(known, value, GROWING.contains(&name.as_str())),
                    None => _ = to.insert(name.clone(), value.clone()),
                }
            }
        }
        (Value::Array(to), Value::Array(more)) if grows => to.extend(more.iter().cloned()),
        // A piece has one choice.
        (Value::Array(to), Value::Array(more)) if to.len() == more.len() => {
            for (to, more) in to.iter_mut().zip(more) {
                join(to, more, false);
            }
        }
        (Value::String(to), Value::String(more)) if grows => to.push_str(more),
        (to, more) => *to = more.clone(),
    }
}

/// Hides invented values. An ID given in the request is part of the answer.
fn mask(value: &mut Value, is_own_id: bool) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if MADE_UP.contains(&name.as_str()) && !value.is_null() {
                    match value.as_str() {
                        Some(_) if is_own_id => {}
                        Some(text) => *value = json!(without_hex(text)),
                        None => *value = json!("a number"),
                    }
                } else if name == "message" && value.is_string() && !is_own_id {
                    *value = json!(sorted_range(&without_hex(value.as_str().unwrap_or_default())));
                } else {
                    mask(value, is_own_id);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| mask(value, is_own_id)),
        _ => {}
    }
}

/// Replaces long hexadecimal numbers by `#`.
fn without_hex(text: &str) -> String {
    let mut out = String::new();
    let mut run = String::new();
    for letter in text.chars().chain(['\0']) {
        if letter.is_ascii_hexdigit() || (letter == '-' && run.len() >= 8) {
            run.push(letter);
            continue;
        }
        out.push_str(if run.len() >= 8 { "#" } else { &run });
        run.clear();
        out.push(letter);
    }
    out.trim_end_matches('\0').to_owned()
}

/// Sorts the lines of a message, and the parts of a range and of the quoted value: vLLM writes them in any order.
fn sorted_range(message: &str) -> String {
    let lines = message.lines().map(|line| {
        let Some((start, parts)) = line.strip_suffix("}]").and_then(|line| line.split_once("[{")) else {
            return line.to_owned();
        };
        let mut parts: Vec<&str> = parts.split([',', ' ', '{', '}']).filter(|part| !part.is_empty()).collect();
        parts.sort_unstable();
        format!("{start}[{{{}}}]", parts.join(" "))
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// A place where two answers differ.
#[derive(Clone, Debug)]
pub(crate) struct Mismatch {
    /// Path to the place.
    pub(crate) at: String,
    pub(crate) theirs: Value,
    pub(crate) ours: Value,
}

pub(crate) fn mismatches(theirs: &Value, ours: &Value) -> Vec<Mismatch> {
    let mut found = Vec::new();
    compare("", theirs, ours, &mut found);
    found
}

fn compare(at: &str, theirs: &Value, ours: &Value, found: &mut Vec<Mismatch>) {
    match (theirs, ours) {
        (Value::Object(left), Value::Object(right)) => {
            for (name, value) in left {
                let other = right.get(name).cloned().unwrap_or(json!("(missing)"));
                compare(&format!("{at}/{name}"), value, &other, found);
            }
            for (name, value) in right.iter().filter(|(name, _)| !left.contains_key(*name)) {
                compare(&format!("{at}/{name}"), &json!("(missing)"), value, found);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{at}/{index}"), left, right, found);
            }
        }
        (theirs, ours) if theirs == ours => {}
        (theirs, ours) => {
            found.push(Mismatch { at: at.to_owned(), theirs: theirs.clone(), ours: ours.clone() });
        }
    }
}
