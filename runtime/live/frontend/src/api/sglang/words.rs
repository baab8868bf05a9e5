//! Converts vLLM's responses to SGLang's format.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};

use crate::server::App;

/// The fields of a choice that SGLang returns. Token ids are returned only on request.
const CHOICE: [&str; 7] = ["index", "text", "message", "delta", "logprobs", "finish_reason", "matched_stop"];
const IDS: [&str; 2] = ["token_ids", "prompt_token_ids"];

/// Converts a response, or each event of a stream.
pub(super) async fn speak(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = next.run(request).await.into_parts();
    let eos = app.model.eos_tokens.first().copied();
    let kind = parts.headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec()).unwrap_or_default();
    let body = if kind.starts_with(b"text/event-stream") {
        Body::from_stream(body.into_data_stream().map(move |frame| frame.map(|events| of_events(&events, eos))))
    } else if kind.starts_with(b"application/json") {
        parts.headers.remove(header::CONTENT_LENGTH);
        // The response is in memory already.
        let whole = to_bytes(body, usize::MAX).await.unwrap_or_default();
        Body::from(of_json(&whole, eos).unwrap_or(whole))
    } else {
        body
    };
    Response::from_parts(parts, body)
}

fn of_json(bytes: &[u8], eos: Option<u32>) -> Option<Bytes> {
    let mut value = serde_json::from_slice(bytes).ok()?;
    rewrite(&mut value, eos);
    serde_json::to_vec(&value).ok().map(Bytes::from)
}

/// Converts events. A frame contains only complete events.
fn of_events(events: &[u8], eos: Option<u32>) -> Bytes {
    let mut out = Vec::with_capacity(events.len());
    for line in events.split_inclusive(|byte| *byte == b'\n') {
        let json = line.strip_prefix(b"data: ").and_then(|json| of_json(json, eos));
        match json {
            Some(json) => {
                out.extend_from_slice(b"data: ");
                out.extend_from_slice(&json);
                out.push(b'\n');
            }
            None => out.extend_from_slice(line),
        }
    }
    out.into()
}

fn rewrite(value: &mut Value, eos: Option<u32>) {
    let Some(fields) = value.as_object_mut() else { return };
    if let Some(mut error) = fields.remove("error") {
        // For errors of Anthropic's API, which have a `type`, SGLang uses the same format.
        if fields.contains_key("type") {
            fields.insert("error".to_owned(), error);
            return;
        }
        error["object"] = "error".into();
        *value = error;
        return;
    }
    if fields.get("object").is_some_and(|object| object == "list") {
        let cards = fields.get_mut("data").and_then(Value::as_array_mut);
        cards.into_iter().flatten().for_each(|card| card["owned_by"] = "sglang".into());
        return;
    }
    let Some(choices) = fields.get_mut("choices").and_then(Value::as_array_mut) else { return };
    let is_chunk = choices.iter().any(|choice| choice.get("delta").is_some());
    for choice in choices.iter_mut().filter_map(Value::as_object_mut) {
        of_choice(choice, eos);
    }
    fields.retain(|name, _| ["id", "object", "created", "model", "choices", "usage"].contains(&name.as_str()));
    match fields.get_mut("usage") {
        Some(Value::Object(usage)) => _ = usage.entry("reasoning_tokens").or_insert(0.into()),
        _ => _ = fields.insert("usage".to_owned(), Value::Null),
    }
    let is_whole = !is_chunk && fields.get("usage").is_some_and(Value::is_object);
    if is_whole {
        fields.insert("metadata".to_owned(), json!({"weight_version": "default"}));
    }
}

fn of_choice(choice: &mut Map<String, Value>, eos: Option<u32>) {
    let has_ended_itself =
        choice.get("finish_reason").is_some_and(|reason| ["stop", "tool_calls"].iter().any(|own| reason == own));
    let matched = choice.remove("stop_reason").filter(|stop| !stop.is_null());
    let matched = matched.or(eos.filter(|_| has_ended_itself).map(Value::from));
    choice.insert("matched_stop".to_owned(), matched.unwrap_or_default());
    choice.entry("logprobs").or_insert(Value::Null);
    choice.entry("finish_reason").or_insert(Value::Null);
    let is_asked = |name: &str, value: &Value| IDS.contains(&name) && !value.is_null();
    choice.retain(|name, value| CHOICE.contains(&name.as_str()) || is_asked(name, value));
    for part in ["message", "delta"] {
        let Some(text) = choice.get_mut(part).and_then(Value::as_object_mut) else { continue };
        let reasoning = text.remove("reasoning").unwrap_or_default();
        text.insert("reasoning_content".to_owned(), reasoning);
        text.entry("role").or_insert(Value::Null);
        // The first delta contains the role and an empty text.
        let none = if text["role"].is_string() && part == "delta" { "".into() } else { Value::Null };
        text.entry("content").or_insert(none);
        let has_calls = text.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
        text.retain(|name, _| match name.as_str() {
            "tool_calls" => has_calls,
            name => ["role", "content", "reasoning_content"].contains(&name),
        });
    }
}
