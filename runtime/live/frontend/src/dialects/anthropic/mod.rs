//! Anthropic's Messages API: `POST /v1/messages` and its token count.

mod request;
mod stream;

pub use request::{chat_request, prompt_request};
pub use stream::MessageStream;

use serde_json::{Value, json};

use super::{ChatAnswer, Usage};

/// The answer to a request that does not stream. `id` begins with `msg_`.
#[must_use]
pub fn message(id: &str, model: &str, answer: &ChatAnswer) -> Value {
    let mut content = Vec::new();
    if let Some(thinking) = &answer.reasoning {
        content.push(json!({ "type": "thinking", "thinking": thinking, "signature": "" }));
    }
    // An answer without anything in it still has a text block.
    if answer.content.is_some() || answer.tool_calls.is_empty() {
        content.push(json!({ "type": "text", "text": answer.content.as_deref().unwrap_or_default() }));
    }
    for call in &answer.tool_calls {
        // Arguments cut off at the token limit are no JSON.
        let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        content.push(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }));
    }
    let (reason, sequence) = stop_reason(answer.finish_reason.as_deref(), answer.stop_reason.as_ref());
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": model,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage(answer.usage),
    })
}

/// The error object of this API.
#[must_use]
pub fn error(status: u16, message: &str) -> Value {
    let kind = match status {
        400 | 422 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
    })
}

/// The reason in this API's words, and the stop string where one ended the answer.
fn stop_reason<'a>(finish_reason: Option<&str>, stop: Option<&'a Value>) -> (&'static str, Option<&'a Value>) {
    match (finish_reason, stop) {
        (Some("length"), _) => ("max_tokens", None),
        (Some("tool_calls"), _) => ("tool_use", None),
        (_, Some(sequence @ Value::String(_))) => ("stop_sequence", Some(sequence)),
        _ => ("end_turn", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialects::ToolCall;

    #[test]
    fn an_answer_becomes_blocks_in_the_order_of_its_parts() {
        let answer = ChatAnswer {
            reasoning: Some("hm".to_owned()),
            content: Some("Hello".to_owned()),
            logprobs: None,
            tool_calls: vec![ToolCall {
                id: "call_1".to_owned(),
                name: "weather".to_owned(),
                arguments: r#"{"city":"Bonn"}"#.to_owned(),
            }],
            finish_reason: Some("tool_calls".to_owned()),
            stop_reason: None,
            usage: Usage { prompt_tokens: 9, cached_tokens: 4, completion_tokens: 3, reasoning_tokens: 1 },
        };
        let message = message("msg_1", "sim", &answer);
        let kinds: Vec<_> = message["content"].as_array().expect("a list").iter().map(|block| &block["type"]).collect();
        assert_eq!(kinds, ["thinking", "text", "tool_use"]);
        assert_eq!(message["content"][2]["input"], json!({ "city": "Bonn" }));
        assert_eq!(message["stop_reason"], "tool_use");
        assert_eq!(message["usage"]["input_tokens"], 9);
        assert_eq!(message["usage"]["cache_read_input_tokens"], 4);
    }

    #[test]
    fn reasons_to_stop_have_this_apis_names() {
        let of = |finish: &str, stop: Option<Value>| {
            let answer =
                ChatAnswer { finish_reason: Some(finish.to_owned()), stop_reason: stop, ..ChatAnswer::default() };
            let message = message("msg_1", "sim", &answer);
            (message["stop_reason"].clone(), message["stop_sequence"].clone())
        };
        assert_eq!(of("length", None), (json!("max_tokens"), Value::Null));
        assert_eq!(of("stop", None), (json!("end_turn"), Value::Null));
        assert_eq!(of("stop", Some(json!("END"))), (json!("stop_sequence"), json!("END")));
        // A stop token has no text.
        assert_eq!(of("stop", Some(json!(17))), (json!("end_turn"), Value::Null));
    }

    #[test]
    fn errors_have_the_type_of_their_status() {
        assert_eq!(error(429, "slow down")["error"]["type"], "rate_limit_error");
        assert_eq!(error(500, "oh")["error"]["type"], "api_error");
    }
}
