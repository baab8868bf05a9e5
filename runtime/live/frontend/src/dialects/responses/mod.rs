//! OpenAI's Responses API: `POST /v1/responses`.

mod request;
mod stream;
mod tools;

pub(crate) use request::{chat_request, input_messages};
pub(crate) use stream::ResponseStream;

use serde_json::{Map, Value, json};

use self::tools::ToolNames;
use super::{Call, CalledFunction, ChatLogprob, Choice, copy, given};
use crate::generate::Usage;

/// The fields of a response that come from its request or the server.
#[derive(Clone, Debug)]
pub(crate) struct ResponseHead {
    /// The id, which starts with `resp_`.
    id: String,
    /// Seconds since 1970.
    created_at: u64,
    model: String,
    /// The request fields that the response repeats.
    repeated: Map<String, Value>,
    tools: ToolNames,
    /// Whether the answer must be a tool call. Then a text that was cut is the start of a call.
    must_call: bool,
}

impl ResponseHead {
    pub(crate) fn new(id: impl Into<String>, created_at: u64, model: impl Into<String>, request: &Value) -> Self {
        let mut repeated = Map::new();
        for (name, default) in [
            ("instructions", Value::Null),
            ("max_output_tokens", Value::Null),
            ("metadata", Value::Null),
            ("parallel_tool_calls", json!(true)),
            ("previous_response_id", Value::Null),
            ("reasoning", Value::Null),
            ("service_tier", json!("auto")),
            ("temperature", json!(1.0)),
            ("text", Value::Null),
            ("top_logprobs", Value::Null),
            ("tool_choice", json!("auto")),
            ("tools", json!([])),
            ("top_p", json!(1.0)),
            ("truncation", json!("disabled")),
            ("user", Value::Null),
        ] {
            repeated.insert(name.to_owned(), given(request, name).cloned().unwrap_or(default));
        }
        let choice = &request["tool_choice"];
        let must_call = choice == "required" || matches!(choice["type"].as_str(), Some("function" | "custom"));
        Self { id: id.into(), created_at, model: model.into(), repeated, tools: ToolNames::of(request), must_call }
    }

    /// The id of an output item: the prefix, the response's id and the item's index.
    fn item_id(&self, prefix: &str, index: usize) -> String {
        let own = self.id.strip_prefix("resp_").unwrap_or(&self.id);
        format!("{prefix}_{own}_{index}")
    }

    /// The output item of a call, at this index.
    fn call_item(&self, index: usize, call: &Call, status: &str) -> Value {
        let Call { id: call_id, function: CalledFunction { name, arguments }, .. } = call;
        let id = self.item_id(self.call_prefix(name), index);
        if self.tools.is_custom(name) {
            let input = tools::custom_input(arguments);
            return json!({ "id": id, "type": "custom_tool_call", "call_id": call_id, "name": name, "input": input });
        }
        let (namespace, name) = self.tools.resolve(name);
        let mut item = json!({
            "id": id, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments,
            "status": status,
        });
        if let (Some(namespace), Value::Object(item)) = (namespace, &mut item) {
            item.insert("namespace".to_owned(), json!(namespace));
        }
        item
    }

    fn call_prefix(&self, name: &str) -> &'static str {
        if self.tools.is_custom(name) { "ctc" } else { "fc" }
    }

    fn object(&self, status: &str, output: &[Value], usage: Option<Usage>, is_cut: bool) -> Value {
        let mut object = Map::new();
        for (name, value) in [
            ("id", json!(self.id)),
            ("object", json!("response")),
            ("created_at", json!(self.created_at)),
            ("status", json!(status)),
            ("model", json!(self.model)),
            ("output", json!(output)),
            ("error", Value::Null),
            ("incomplete_details", if is_cut { json!({ "reason": "max_output_tokens" }) } else { Value::Null }),
            ("usage", usage.map_or(Value::Null, usage_object)),
        ] {
            object.insert(name.to_owned(), value);
        }
        let names: Vec<&str> = self.repeated.keys().map(String::as_str).collect();
        copy(&Value::Object(self.repeated.clone()), &names, &mut object);
        for name in self.repeated.keys() {
            object.entry(name.clone()).or_insert(Value::Null);
        }
        Value::Object(object)
    }
}

/// The response to a request without streaming.
pub(crate) fn response(head: &ResponseHead, choice: &Choice, usage: Usage) -> Value {
    let (answer, is_cut) = (&choice.message, choice.finish_reason == Some("length"));
    let mut output = Vec::new();
    if let Some(reasoning) = answer.reasoning() {
        output.push(reasoning_item(&head.item_id("rs", output.len()), reasoning));
    }
    // Only the last item can be incomplete.
    let last_status = if is_cut { "incomplete" } else { "completed" };
    let content = answer.text().filter(|_| !(head.must_call && is_cut));
    if content.is_some() || (answer.tool_calls.is_empty() && !head.must_call) {
        let status = if answer.tool_calls.is_empty() { last_status } else { "completed" };
        let logprobs = choice.logprobs.as_ref().map(|logprobs| &logprobs.content[..]);
        let part = text_part(content.unwrap_or_default(), logprobs);
        output.push(message_item(&head.item_id("msg", output.len()), status, &[part]));
    }
    for (place, call) in answer.tool_calls.iter().enumerate() {
        let status = if place + 1 == answer.tool_calls.len() { last_status } else { "completed" };
        output.push(head.call_item(output.len(), call, status));
    }
    head.object(last_status, &output, Some(usage), is_cut)
}

fn text_part(text: &str, logprobs: Option<&[ChatLogprob]>) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

fn message_item(id: &str, status: &str, content: &[Value]) -> Value {
    json!({ "id": id, "type": "message", "role": "assistant", "status": status, "content": content })
}

fn reasoning_item(id: &str, text: &str) -> Value {
    let content = json!([{ "type": "reasoning_text", "text": text }]);
    json!({ "id": id, "type": "reasoning", "summary": [], "content": content, "status": null })
}

fn usage_object(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens() },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens() },
        "total_tokens": usage.total_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialects::Message;
    use crate::parse::Part;

    fn head() -> ResponseHead {
        ResponseHead::new("resp_7", 5, "sim", &json!({ "temperature": 0.5, "max_output_tokens": 9 }))
    }

    #[test]
    fn a_response_repeats_its_request_and_lists_items() {
        let parts = [
            Part::Text("Hi".to_owned()),
            Part::Call { index: 0, id: "call_1".to_owned(), name: "f".to_owned() },
            Part::Arguments { index: 0, text: "{}".to_owned() },
        ];
        let message = Message::new("assistant", parts);
        let choice = Choice { message, finish_reason: Some("tool_calls"), ..Choice::default() };
        let response = response(&head(), &choice, Usage::new(3, 2, Some(1)));
        assert_eq!(response["status"], "completed");
        assert_eq!(response["temperature"], 0.5);
        assert_eq!(response["max_output_tokens"], 9);
        assert_eq!(response["tools"], json!([]));
        assert_eq!(response["output"][0]["content"][0]["text"], "Hi");
        assert_eq!(response["output"][1]["call_id"], "call_1");
        assert_eq!(response["usage"]["total_tokens"], 5);
        assert_eq!(response["incomplete_details"], Value::Null);
    }

    #[test]
    fn an_answer_cut_at_its_limit_is_incomplete() {
        let choice = Choice { finish_reason: Some("length"), ..Choice::default() };
        let response = response(&head(), &choice, Usage::new(3, 2, Some(1)));
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(response["output"][0]["status"], "incomplete");
    }
}
