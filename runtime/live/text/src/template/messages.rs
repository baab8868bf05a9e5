//! Converts messages to the form that templates expect.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::{ContentFormat, refused};
use crate::TemplateError;

/// Copies a map in order, with some entries replaced or added.
fn with(map: &Value, changes: Vec<(&str, Value)>) -> Value {
    let keys: Vec<Value> = map.try_iter().into_iter().flatten().collect();
    let is_changed = |key: &Value| changes.iter().any(|(name, _)| key.as_str() == Some(*name));
    let kept = keys.iter().map(|key| {
        let changed = changes.iter().find(|(name, _)| key.as_str() == Some(*name));
        let value = changed.map_or_else(|| map.get_item(key).unwrap_or_default(), |(_, value)| value.clone());
        (key.clone(), value)
    });
    let is_new = |name: &str| !keys.iter().any(|key| key.as_str() == Some(name));
    let added =
        changes.iter().filter(|(name, _)| is_new(name)).map(|(name, value)| (Value::from(*name), value.clone()));
    debug_assert!(keys.iter().filter(|key| is_changed(key)).count() <= changes.len());
    Value::from_pairs(kept.chain(added))
}

fn list(value: &Value) -> Vec<Value> {
    if value.kind() == ValueKind::Seq { value.try_iter().into_iter().flatten().collect() } else { Vec::new() }
}

fn field(map: &Value, name: &str) -> Option<Value> {
    map.get_attr(name).ok().filter(|value| !value.is_undefined() && !value.is_none())
}

/// Prepares messages as vLLM does: contents in the template's format, arguments of tool calls parsed.
pub(super) fn prepared(messages: &Value, format: ContentFormat) -> Result<Value, TemplateError> {
    if messages.kind() != ValueKind::Seq {
        return Err(refused("invalid messages: expected a list"));
    }
    list(messages)
        .iter()
        .map(|message| prepared_message(message, format))
        .collect::<Result<Vec<_>, _>>()
        .map(Value::from)
}

fn prepared_message(message: &Value, format: ContentFormat) -> Result<Value, TemplateError> {
    if message.kind() != ValueKind::Map {
        return Err(refused("invalid message: expected a map with `role` and `content`"));
    }
    let mut changes = Vec::new();
    if let Some(converted) = field(message, "content").and_then(|content| converted(&content, format)) {
        changes.push(("content", converted));
    }
    if let Some(calls) = field(message, "tool_calls") {
        let calls = list(&calls).iter().map(with_parsed_arguments).collect::<Result<Vec<_>, _>>()?;
        changes.push(("tool_calls", Value::from(calls)));
    }
    // Most messages need no change and are shared.
    Ok(if changes.is_empty() { message.clone() } else { with(message, changes) })
}

/// Converts content to the template's format. Returns none if it already has that format.
fn converted(content: &Value, format: ContentFormat) -> Option<Value> {
    Some(match (format, content.kind()) {
        (ContentFormat::String, ValueKind::Seq) => Value::from(joined(&list(content))),
        (ContentFormat::Parts, ValueKind::String) => {
            let part = Value::from_pairs([("type", Value::from("text")), ("text", content.clone())]);
            Value::from(vec![part])
        }
        (ContentFormat::Parts, ValueKind::Seq) => Value::from(list(content).iter().map(plain_part).collect::<Vec<_>>()),
        _ => return None,
    })
}

/// Joins the parts, one per line. As in vLLM, media come before text.
fn joined(parts: &[Value]) -> String {
    let kind = |part: &Value| part_kind(part);
    let media = parts.iter().filter_map(|part| kind(part).map(|kind| Value::from(format!("<|{kind}|>"))));
    let texts = parts.iter().filter(|part| kind(part).is_none()).map(part_text);
    let mut joined = String::new();
    for (index, line) in media.chain(texts).enumerate() {
        if index > 0 {
            joined.push('\n');
        }
        joined.push_str(line.as_str().unwrap_or_default());
    }
    joined
}

/// Returns the kind of a media part: `image`, `audio` or `video`.
fn part_kind(part: &Value) -> Option<&'static str> {
    let kind = field(part, "type")?;
    let kind = kind.as_str()?;
    ["image", "audio", "video"].into_iter().find(|media| kind.contains(media))
}

/// The text of a part, without a copy.
fn part_text(part: &Value) -> Value {
    if part.as_str().is_some() {
        return part.clone();
    }
    let given = ["text", "refusal", "thinking"].into_iter().find_map(|name| field(part, name));
    given.map_or_else(|| Value::from(""), |value| as_text(&value))
}

/// Returns `str(value)`; a string is shared.
fn as_text(value: &Value) -> Value {
    if value.as_str().is_some() { value.clone() } else { Value::from(crate::python::text(value).into_owned()) }
}

/// Simplifies a part to `{"type": "text", "text": ...}` or `{"type": "image"}`.
fn plain_part(part: &Value) -> Value {
    match part_kind(part) {
        Some(kind) => Value::from_pairs([("type", Value::from(kind))]),
        None => Value::from_pairs([("type", Value::from("text")), ("text", part_text(part))]),
    }
}

fn with_parsed_arguments(call: &Value) -> Result<Value, TemplateError> {
    let Some(function) = field(call, "function") else { return Ok(call.clone()) };
    let arguments = match field(&function, "arguments") {
        None => Value::from_pairs::<_, &str, Value>([]),
        Some(text) if text.as_str() == Some("") => Value::from_pairs::<_, &str, Value>([]),
        Some(value) => match value.as_str() {
            None => value,
            Some(text) => serde_json::from_str(text)
                .map_err(|error| refused(&format!("invalid arguments of a tool call: expected JSON: {error}")))?,
        },
    };
    Ok(with(call, vec![("function", with(&function, vec![("arguments", arguments)]))]))
}

/// The keys under which templates look for reasoning.
const REASONING: [&str; 3] = ["reasoning", "reasoning_content", "thinking"];

/// Copies the reasoning of each message to all these keys.
pub(super) fn with_reasoning_aliases(messages: &Value) -> Value {
    if messages.kind() != ValueKind::Seq {
        return messages.clone();
    }
    let aliased = |message: &Value| {
        let reasoning = REASONING.iter().find_map(|name| field(message, name));
        let Some(reasoning) = reasoning else { return message.clone() };
        let missing = REASONING.iter().filter(|name| field(message, name).is_none());
        with(message, missing.map(|name| (*name, reasoning.clone())).collect())
    };
    Value::from(list(messages).iter().map(aliased).collect::<Vec<_>>())
}

/// Appends a mark to the text of the last message. Returns all messages and that text.
pub(super) fn tagged(messages: &Value, tag: &str) -> Result<(Value, Value), TemplateError> {
    let mut all = list(messages);
    let last = all.pop().ok_or_else(|| refused("continue_final_message is set but the conversation is empty"))?;
    let content = field(&last, "content")
        .ok_or_else(|| refused("continue_final_message is set but the final message has no \"content\" to continue"))?;
    let (content, text) = match content.as_str() {
        Some(text) => (Value::from(format!("{text}{tag}")), content.clone()),
        None => {
            let mut parts = list(&content);
            let found = parts.iter_mut().rev().find_map(|part| Some((field(part, "text")?, part)));
            let (text, part) = found.ok_or_else(|| {
                refused("continue_final_message is set but the final message has no text to continue")
            })?;
            let text = as_text(&text);
            let tagged = format!("{}{tag}", text.as_str().unwrap_or_default());
            *part = with(part, vec![("text", Value::from(tagged))]);
            (Value::from(parts), text)
        }
    };
    all.push(with(&last, vec![("content", content)]));
    Ok((Value::from(all), text))
}

/// Detects whether a template iterates over content parts. vLLM searches the syntax tree for a loop over `content`;
/// here a message with one part is rendered. The results are equal if the template prints only the text of the
/// part.
pub(super) fn detected_format(render: impl Fn(Value) -> Result<String, TemplateError>) -> ContentFormat {
    const NEEDLE: &str = "needle-of-content";
    let part = Value::from_pairs([("type", Value::from("text")), ("text", Value::from(NEEDLE))]);
    let message = Value::from_pairs([("role", Value::from("user")), ("content", Value::from(vec![part]))]);
    match render(Value::from(vec![message])) {
        Ok(text) if text.contains(NEEDLE) && !text.contains(&format!("'text': '{NEEDLE}'")) => ContentFormat::Parts,
        _ => ContentFormat::String,
    }
}
