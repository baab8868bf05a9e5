//! Prompts that rows give as texts: `text_input`, `messages` with `tools`, or a request's body as `payload`.
//!
//! There is no tokenizer here. Four bytes count as one token, unless the row states the prompt's length. The ids of
//! the blocks are hashes of the corresponding bytes, so prompts share the blocks of a common beginning.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

const BYTES_PER_TOKEN: usize = 4;
/// The default block size for such prompts, which is vLLM's default.
pub(super) const BLOCK_TOKENS: u32 = 16;

pub(super) fn tokens(text: &str) -> u64 {
    text.len().div_ceil(BYTES_PER_TOKEN) as u64
}

pub(super) fn block_ids(text: &str, block_size_tokens: u32, ids: &mut Vec<u64>) {
    ids.clear();
    let bytes = (block_size_tokens as usize).saturating_mul(BYTES_PER_TOKEN);
    ids.extend(text.as_bytes().chunks(bytes).map(xxh3_64));
}

/// The messages and the tools of a chat as one text. The text of a turn starts with the text of the conversation's
/// earlier turns.
pub(super) fn of_messages(messages: &[Value], tools: Option<&Value>) -> String {
    let mut text = String::new();
    if let Some(tools) = tools {
        write_json(tools, &mut text);
        text.push('\n');
    }
    for message in messages {
        let Some(message) = message.as_object() else {
            write_json(&Value::Array(vec![message.clone()]), &mut text);
            continue;
        };
        text.push_str(message.get("role").and_then(Value::as_str).unwrap_or_default());
        text.push('\n');
        match message.get("content") {
            Some(Value::Array(parts)) => parts.iter().for_each(|part| write_part(part, &mut text)),
            Some(part) => write_part(part, &mut text),
            None => {}
        }
        let mut others: Vec<_> =
            message.iter().filter(|(key, _)| !["role", "content"].contains(&key.as_str())).collect();
        others.sort_by_key(|(key, _)| *key);
        for (key, value) in others {
            text.push_str(key);
            write_json(value, &mut text);
        }
        text.push('\n');
    }
    text
}

/// The prompt in the body of a request, and the maximum number of output tokens.
pub(super) fn of_payload(payload: &Value) -> Option<(String, Option<u32>)> {
    let limit = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
    let limit = limit.iter().find_map(|key| payload.get(key)?.as_u64()).and_then(|limit| u32::try_from(limit).ok());
    let text = match (payload.get("messages"), payload.get("prompt").or(payload.get("input"))) {
        (Some(Value::Array(messages)), _) => of_messages(messages, payload.get("tools")),
        (_, Some(Value::String(prompt))) => prompt.clone(),
        (_, Some(Value::Array(messages))) => of_messages(messages, payload.get("tools")),
        _ => return None,
    };
    Some((text, limit))
}

/// Writes a part of a message: its text, or else its whole JSON.
fn write_part(part: &Value, out: &mut String) {
    match (part, part.get("text")) {
        (Value::Null, _) => {}
        (Value::String(text), _) | (_, Some(Value::String(text))) => out.push_str(text),
        (other, _) => write_json(other, out),
    }
}

/// Writes JSON with sorted keys, so that equal values have equal texts.
fn write_json(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            items.iter().for_each(|item| write_json(item, out));
            out.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            out.push('{');
            for (key, value) in entries {
                out.push_str(key);
                out.push(':');
                write_json(value, out);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_turn_continues_the_text_of_the_turn_before() {
        let first = json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]);
        let mut second = first.as_array().unwrap().clone();
        let first = of_messages(&second, None);
        second.push(json!({"role": "assistant", "content": "Hello"}));
        second.push(json!({"role": "assistant", "tool_calls": [{"b": 1, "a": null}], "content": null}));
        let second = of_messages(&second, None);
        assert_eq!(first, "system\nBe kind.\nuser\nHi\n");
        assert_eq!(second.strip_prefix(&first), Some("assistant\nHello\nassistant\ntool_calls[{a:nullb:1}]\n"));
    }

    #[test]
    fn blocks_are_shared_as_far_as_texts_agree() {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        block_ids("aaaabbbbcccc", 1, &mut a);
        block_ids("aaaabbbbdd", 1, &mut b);
        assert_eq!((a.len(), b.len(), tokens("aaaabbbbdd")), (3, 3, 3));
        assert_eq!((a[..2] == b[..2], a[2] == b[2]), (true, false));
    }

    #[test]
    fn the_body_of_a_request_says_how_much_it_wants() {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 9});
        assert_eq!(of_payload(&body), Some(("user\nx\n".to_owned(), Some(9))));
        assert_eq!(of_payload(&json!({"prompt": "x"})), Some(("x".to_owned(), None)));
        assert_eq!(of_payload(&json!({"model": "m"})), None);
    }
}
