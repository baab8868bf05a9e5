//! Server-sent events in the parts of a body.

use bytes::{Bytes, BytesMut};
use serde_json::Value;

/// Combines the parts of a body into events, each with its blank line.
#[derive(Debug, Default)]
pub(super) struct EventSplitter {
    buffer: BytesMut,
}

impl EventSplitter {
    pub(super) fn push(&mut self, part: &[u8]) {
        self.buffer.extend_from_slice(part);
    }

    pub(super) fn next(&mut self) -> Option<Bytes> {
        let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
        Some(self.buffer.split_to(end + 2).freeze())
    }

    /// The bytes after the last complete event.
    pub(super) fn rest(&mut self) -> Option<Bytes> {
        (!self.buffer.is_empty()).then(|| self.buffer.split().freeze())
    }
}

/// The data of an event, if it has a data line.
pub(super) fn data(event: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(event).ok()?;
    text.lines().find_map(|line| line.strip_prefix("data:")).map(str::trim)
}

/// Whether this event is the end of an OpenAI stream.
pub(super) fn is_done(event: &[u8]) -> bool {
    data(event) == Some("[DONE]")
}

/// Whether this event contains a part of the answer: text, reasoning, arguments or tokens.
pub(super) fn has_token(event: &[u8]) -> bool {
    let Some(value) = data(event).and_then(|data| serde_json::from_str::<Value>(data).ok()) else { return false };
    if let Some(kind) = value["type"].as_str() {
        return kind.ends_with("delta") && kind != "message_delta";
    }
    let is_some = |part: &Value| match part {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    value["choices"].as_array().into_iter().flatten().any(|choice| {
        let delta = &choice["delta"];
        let parts = [&delta["content"], &delta["reasoning"], &delta["reasoning_content"], &delta["tool_calls"]];
        is_some(&choice["text"]) || is_some(&choice["token_ids"]) || parts.into_iter().any(is_some)
    })
}

/// Removes `usage` from an event or body. Returns none if there is no usage.
pub(super) fn without_usage(json: &str) -> Option<String> {
    fn remove(value: &mut Value) -> bool {
        let Value::Object(map) = value else { return false };
        let mut is_changed = map.remove("usage").is_some();
        for nested in ["response", "message"] {
            is_changed |= map.get_mut(nested).is_some_and(remove);
        }
        is_changed
    }
    let mut value = serde_json::from_str(json).ok()?;
    remove(&mut value).then(|| value.to_string())
}

/// Whether this event contains only usage, as OpenAI's last event before the end.
pub(super) fn is_usage_only(event: &[u8]) -> bool {
    let Some(value) = data(event).and_then(|data| serde_json::from_str::<Value>(data).ok()) else { return false };
    value["usage"].is_object() && value["choices"].as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_however_their_bytes_come() {
        let mut splitter = EventSplitter::default();
        let mut events = Vec::new();
        for byte in b"data: 1\n\nevent: x\ndata: 2\n\ndata: 3" {
            splitter.push(&[*byte]);
            events.extend(splitter.next());
        }
        assert_eq!(events, ["data: 1\n\n", "event: x\ndata: 2\n\n"]);
        assert_eq!((data(&events[1]), splitter.rest().as_deref()), (Some("2"), Some(&b"data: 3"[..])));
    }

    #[test]
    fn tokens_are_told_from_roles_and_ends() {
        for (event, wanted) in [
            (r#"data: {"choices":[{"delta":{"role":"assistant"}}]}"#, false),
            (r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#, false),
            (r#"data: {"choices":[{"delta":{"content":"a"}}]}"#, true),
            (r#"data: {"choices":[{"text":"a"}]}"#, true),
            (r#"data: {"type":"response.output_text.delta","delta":"a"}"#, true),
            (r#"data: {"type":"content_block_delta"}"#, true),
            (r#"data: {"type":"message_delta"}"#, false),
            ("data: [DONE]", false),
        ] {
            assert_eq!(has_token(event.as_bytes()), wanted, "{event}");
        }
    }

    #[test]
    fn usage_is_taken_out_wherever_it_is() {
        assert_eq!(without_usage(r#"{"a":1,"usage":{}}"#).as_deref(), Some(r#"{"a":1}"#));
        assert_eq!(without_usage(r#"{"response":{"usage":{}}}"#).as_deref(), Some(r#"{"response":{}}"#));
        assert_eq!(without_usage(r#"{"a":1}"#), None);
    }
}
