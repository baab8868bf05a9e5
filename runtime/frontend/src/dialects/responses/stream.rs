//! Chunks of a chat completion as the events of a streamed response.

use serde_json::{Value, json};

use super::{ResponseHead, call_item, message_item, reasoning_item, text_part};
use crate::dialects::{ChatDelta, Event, ToolCallDelta, Usage};

/// The output item that is open.
#[derive(Debug)]
enum Item {
    Reasoning { text: String },
    Message { text: String },
    Call { index: usize, call_id: String, name: String, arguments: String },
}

/// One streamed response: each chunk in, its events out.
#[derive(Debug)]
pub struct ResponseStream {
    head: ResponseHead,
    sequence_number: u64,
    has_started: bool,
    item: Option<Item>,
    /// Complete items.
    output: Vec<Value>,
    is_cut: bool,
    usage: Usage,
}

impl ResponseStream {
    /// A response without events yet.
    #[must_use]
    pub fn new(head: ResponseHead) -> Self {
        Self {
            head,
            sequence_number: 0,
            has_started: false,
            item: None,
            output: Vec::new(),
            is_cut: false,
            usage: Usage::default(),
        }
    }

    /// Appends the events of a chunk.
    pub fn push(&mut self, chunk: &ChatDelta, out: &mut Vec<Event>) {
        self.start(out);
        if let Some(usage) = chunk.usage {
            self.usage = usage;
        }
        if let Some(delta) = &chunk.reasoning {
            if !matches!(self.item, Some(Item::Reasoning { .. })) {
                self.open(Item::Reasoning { text: String::new() }, out);
            }
            self.say("response.reasoning_text.delta", json!({ "content_index": 0, "delta": delta }), out);
            if let Some(Item::Reasoning { text }) = &mut self.item {
                text.push_str(delta);
            }
        }
        if let Some(delta) = &chunk.content {
            if !matches!(self.item, Some(Item::Message { .. })) {
                self.open(Item::Message { text: String::new() }, out);
            }
            let data = json!({ "content_index": 0, "delta": delta, "logprobs": [] });
            self.say("response.output_text.delta", data, out);
            if let Some(Item::Message { text }) = &mut self.item {
                text.push_str(delta);
            }
        }
        for call in &chunk.tool_calls {
            self.push_call(call, out);
        }
        if let Some(reason) = &chunk.finish_reason {
            self.is_cut = reason == "length";
        }
    }

    /// Appends the events of the end. Returns the whole response.
    pub fn finish(&mut self, out: &mut Vec<Event>) -> Value {
        self.start(out);
        if self.item.is_none() && self.output.is_empty() {
            self.open(Item::Message { text: String::new() }, out);
        }
        self.close(out);
        let (status, name) = match self.is_cut {
            true => ("incomplete", "response.incomplete"),
            false => ("completed", "response.completed"),
        };
        let response = self.head.object(status, &self.output, Some(self.usage), self.is_cut);
        self.event(name, json!({ "response": response }), out);
        response
    }

    fn start(&mut self, out: &mut Vec<Event>) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        let response = self.head.object("in_progress", &[], None, false);
        self.event("response.created", json!({ "response": response }), out);
        self.event("response.in_progress", json!({ "response": response }), out);
    }

    fn push_call(&mut self, call: &ToolCallDelta, out: &mut Vec<Event>) {
        if !matches!(&self.item, Some(Item::Call { index, .. }) if *index == call.index) {
            let item = Item::Call {
                index: call.index,
                call_id: call.id.clone().unwrap_or_default(),
                name: call.name.clone().unwrap_or_default(),
                arguments: String::new(),
            };
            self.open(item, out);
        }
        if call.arguments.is_empty() {
            return;
        }
        self.say("response.function_call_arguments.delta", json!({ "delta": call.arguments }), out);
        if let Some(Item::Call { arguments, .. }) = &mut self.item {
            arguments.push_str(&call.arguments);
        }
    }

    /// Begins an item; the one before it ends.
    fn open(&mut self, item: Item, out: &mut Vec<Event>) {
        self.close(out);
        let id = self.item_id(&item);
        let added = match &item {
            Item::Reasoning { .. } => json!({ "id": id, "type": "reasoning", "summary": [], "status": "in_progress" }),
            Item::Message { .. } => message_item(&id, "in_progress", &[]),
            Item::Call { call_id, name, .. } => call_item(&id, call_id, name, "", "in_progress"),
        };
        let data = json!({ "output_index": self.output.len(), "item": added });
        self.event("response.output_item.added", data, out);
        let part = match item {
            Item::Reasoning { .. } => Some(json!({ "type": "reasoning_text", "text": "" })),
            Item::Message { .. } => Some(text_part("")),
            Item::Call { .. } => None,
        };
        self.item = Some(item);
        if let Some(part) = part {
            self.say("response.content_part.added", json!({ "content_index": 0, "part": part }), out);
        }
    }

    fn close(&mut self, out: &mut Vec<Event>) {
        let Some(item) = &self.item else { return };
        let id = self.item_id(item);
        let (done, name, part, item) = match item {
            Item::Reasoning { text } => (
                json!({ "content_index": 0, "text": text }),
                "response.reasoning_text.done",
                Some(json!({ "type": "reasoning_text", "text": text })),
                reasoning_item(&id, text),
            ),
            Item::Message { text } => (
                json!({ "content_index": 0, "text": text, "logprobs": [] }),
                "response.output_text.done",
                Some(text_part(text)),
                message_item(&id, if self.is_cut { "incomplete" } else { "completed" }, &[text_part(text)]),
            ),
            Item::Call { call_id, name, arguments, .. } => (
                json!({ "name": name, "arguments": arguments }),
                "response.function_call_arguments.done",
                None,
                call_item(&id, call_id, name, arguments, "completed"),
            ),
        };
        self.say(name, done, out);
        if let Some(part) = part {
            self.say("response.content_part.done", json!({ "content_index": 0, "part": part }), out);
        }
        let data = json!({ "output_index": self.output.len(), "item": item });
        self.event("response.output_item.done", data, out);
        self.output.push(item);
        self.item = None;
    }

    fn item_id(&self, item: &Item) -> String {
        let prefix = match item {
            Item::Reasoning { .. } => "rs",
            Item::Message { .. } => "msg",
            Item::Call { .. } => "fc",
        };
        self.head.item_id(prefix, self.output.len())
    }

    /// An event about the open item.
    fn say(&mut self, name: &'static str, mut data: Value, out: &mut Vec<Event>) {
        if let (Some(item), Value::Object(data)) = (&self.item, &mut data) {
            data.insert("item_id".to_owned(), json!(self.item_id(item)));
            data.insert("output_index".to_owned(), json!(self.output.len()));
        }
        self.event(name, data, out);
    }

    fn event(&mut self, name: &'static str, mut data: Value, out: &mut Vec<Event>) {
        if let Value::Object(data) = &mut data {
            data.insert("type".to_owned(), json!(name));
            data.insert("sequence_number".to_owned(), json!(self.sequence_number));
        }
        self.sequence_number += 1;
        out.push(Event { name, data });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(chunks: &[Value]) -> (Vec<Event>, Value) {
        let head = ResponseHead::new("resp_7", 5, "sim", &json!({}));
        let mut stream = ResponseStream::new(head);
        let mut out = Vec::new();
        for chunk in chunks {
            stream.push(&ChatDelta::read(chunk), &mut out);
        }
        let response = stream.finish(&mut out);
        (out, response)
    }

    #[test]
    fn text_has_the_documented_sequence() {
        let (events, response) = run(&[
            json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] }),
            json!({ "choices": [{ "delta": { "content": "Hel" } }] }),
            json!({ "choices": [{ "delta": { "content": "lo" }, "finish_reason": "stop" }] }),
            json!({ "choices": [], "usage": { "prompt_tokens": 7, "completion_tokens": 2 } }),
        ]);
        let names: Vec<_> = events.iter().map(|event| event.name).collect();
        let expected = [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ];
        assert_eq!(names, expected);
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event.data["sequence_number"], number);
            assert_eq!(event.data["type"], event.name);
        }
        assert_eq!(events[6].data["text"], "Hello");
        assert_eq!(response["output"][0]["content"][0]["text"], "Hello");
        assert_eq!(response["usage"]["total_tokens"], 9);
        assert_eq!(events[9].data["response"], response);
    }

    #[test]
    fn items_follow_each_other_with_ids_of_their_own() {
        let call = json!([{ "index": 0, "id": "call_1", "function": { "name": "f", "arguments": "{\"a\":" } }]);
        let rest = json!([{ "index": 0, "function": { "arguments": "1}" } }]);
        let (events, response) = run(&[
            json!({ "choices": [{ "delta": { "reasoning": "hm" } }] }),
            json!({ "choices": [{ "delta": { "content": "ok" } }] }),
            json!({ "choices": [{ "delta": { "tool_calls": call } }] }),
            json!({ "choices": [{ "delta": { "tool_calls": rest }, "finish_reason": "tool_calls" }] }),
        ]);
        let kinds: Vec<_> = response["output"].as_array().expect("a list").iter().map(|item| &item["type"]).collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call"]);
        assert_eq!(response["output"][2]["arguments"], "{\"a\":1}");
        let added: Vec<_> = events
            .iter()
            .filter(|event| event.name == "response.output_item.added")
            .map(|event| event.data["item"]["id"].clone())
            .collect();
        let listed: Vec<_> =
            response["output"].as_array().expect("a list").iter().map(|item| item["id"].clone()).collect();
        assert_eq!(added, listed);
    }

    #[test]
    fn an_answer_cut_at_its_limit_ends_with_the_event_for_that() {
        let (events, response) =
            run(&[json!({ "choices": [{ "delta": { "content": "a" }, "finish_reason": "length" }] })]);
        assert_eq!(events.last().map(|event| event.name), Some("response.incomplete"));
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["output"][0]["status"], "incomplete");
    }
}
