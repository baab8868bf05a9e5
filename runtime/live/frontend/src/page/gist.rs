//! Short summaries of requests.

use serde_json::Value;

/// The maximum length of a summary's text, in characters.
const GIST_CHARS: usize = 160;

/// A summary of a request body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gist {
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    pub(super) text: String,
}

impl Gist {
    pub(super) fn of(body: &[u8]) -> Self {
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return Self::default() };
        let last = |key: &str| body[key].as_array().and_then(|list| list.last());
        let text = last("messages").or_else(|| last("input")).map_or_else(
            || ["prompt", "input", "query", "text"].iter().find_map(|key| text_of(&body[*key])),
            |last| text_of(&last["content"]).or_else(|| text_of(last)),
        );
        Self {
            model: body["model"].as_str().map(str::to_owned),
            stream: body["stream"] == true,
            text: text.unwrap_or_default().chars().take(GIST_CHARS).collect(),
        }
    }
}

/// The text of a message's content or of a prompt.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().rev().find_map(|part| match part {
            Value::String(text) => Some(text.clone()),
            part => part["text"].as_str().map(str::to_owned),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_is_told_in_short() {
        let gist = |body: Value| Gist::of(body.to_string().as_bytes());
        let chat = gist(json!({"model": "m", "stream": true, "messages": [{"content": "a"}, {"content": "b"}]}));
        assert_eq!((chat.model.as_deref(), chat.stream, chat.text.as_str()), (Some("m"), true, "b"));
        let parts = json!([{"type": "image_url"}, {"type": "text", "text": "c"}]);
        for (body, text) in [
            (json!({"messages": [{"content": parts}]}), "c"),
            (json!({"prompt": "d"}), "d"),
            (json!({"prompt": ["d", "e"]}), "e"),
            (json!({"input": "f"}), "f"),
            (json!({"input": ["g", "h"]}), "h"),
            (json!({"messages": []}), ""),
            (json!([1]), ""),
        ] {
            assert_eq!(gist(body.clone()).text, text, "{body}");
        }
        assert_eq!(Gist::of(b"{").text, "");
        assert_eq!(gist(json!({"prompt": "ä".repeat(1000)})).text.chars().count(), GIST_CHARS);
    }
}
