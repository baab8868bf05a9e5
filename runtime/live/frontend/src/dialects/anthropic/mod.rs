//! Anthropic's Messages API: `POST /v1/messages` and its token count.

mod request;
mod stream;

pub(crate) use request::{chat_request, prompt_request};
pub(crate) use stream::MessageStream;

use serde_json::{Value, json};

use super::{Call, Choice};
use crate::generate::{StopCause, Usage};

/// The response to a request without streaming. `id` starts with `msg_`.
pub(crate) fn message(id: &str, model: &str, choice: &Choice, counts: Usage) -> Value {
    let (answer, mut content) = (&choice.message, Vec::new());
    if let Some(thinking) = answer.reasoning() {
        content.push(json!({ "type": "thinking", "thinking": thinking, "signature": "" }));
    }
    // An empty answer still has a text block.
    if answer.text().is_some() || answer.tool_calls.is_empty() {
        content.push(json!({ "type": "text", "text": answer.text().unwrap_or_default() }));
    }
    for Call { id, function, .. } in &answer.tool_calls {
        // If the token limit cut the arguments, they are not valid JSON.
        let input: Value = serde_json::from_str(&function.arguments).unwrap_or_else(|_| json!({}));
        content.push(json!({ "type": "tool_use", "id": id, "name": function.name, "input": input }));
    }
    let (reason, sequence) = stop_reason(choice.finish_reason, choice.stop_reason.as_ref());
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": model,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage(counts),
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
        "cache_read_input_tokens": usage.cached_tokens(),
        "cache_creation_input_tokens": 0,
    })
}

/// The stop reason of this API, and the stop string that ended the answer, if any.
fn stop_reason<'a>(finish_reason: Option<&str>, stop: Option<&'a StopCause>) -> (&'static str, Option<&'a str>) {
    match (finish_reason, stop) {
        (Some("length"), _) => ("max_tokens", None),
        (Some("tool_calls"), _) => ("tool_use", None),
        (_, Some(StopCause::Text(sequence))) => ("stop_sequence", Some(sequence)),
        _ => ("end_turn", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialects::Message;
    use crate::parse::Part;

    #[test]
    fn an_answer_becomes_blocks_in_the_order_of_its_parts() {
        let parts = [
            Part::Reasoning("hm".to_owned()),
            Part::Text("Hello".to_owned()),
            Part::Call { index: 0, id: "call_1".to_owned(), name: "weather".to_owned() },
            Part::Arguments { index: 0, text: r#"{"city":"Bonn"}"#.to_owned() },
        ];
        let message = Message::new("assistant", parts);
        let choice = Choice { message, finish_reason: Some("tool_calls"), ..Choice::default() };
        let message = super::message("msg_1", "sim", &choice, Usage::new(9, 3, Some(4)));
        let kinds: Vec<_> = message["content"].as_array().expect("a list").iter().map(|block| &block["type"]).collect();
        assert_eq!(kinds, ["thinking", "text", "tool_use"]);
        assert_eq!(message["content"][2]["input"], json!({ "city": "Bonn" }));
        assert_eq!(message["stop_reason"], "tool_use");
        assert_eq!(message["usage"]["input_tokens"], 9);
        assert_eq!(message["usage"]["cache_read_input_tokens"], 4);
    }

    #[test]
    fn reasons_to_stop_have_this_apis_names() {
        let of = |finish_reason: &'static str, stop_reason: Option<StopCause>| {
            let choice = Choice { finish_reason: Some(finish_reason), stop_reason, ..Choice::default() };
            let message = message("msg_1", "sim", &choice, Usage::default());
            (message["stop_reason"].clone(), message["stop_sequence"].clone())
        };
        assert_eq!(of("length", None), (json!("max_tokens"), Value::Null));
        assert_eq!(of("stop", None), (json!("end_turn"), Value::Null));
        assert_eq!(of("stop", Some(StopCause::Text("END".to_owned()))), (json!("stop_sequence"), json!("END")));
        // A stop token has no text.
        assert_eq!(of("stop", Some(StopCause::Token(17))), (json!("end_turn"), Value::Null));
    }

    #[test]
    fn errors_have_the_type_of_their_status() {
        assert_eq!(error(429, "slow down")["error"]["type"], "rate_limit_error");
        assert_eq!(error(500, "oh")["error"]["type"], "api_error");
    }
}
