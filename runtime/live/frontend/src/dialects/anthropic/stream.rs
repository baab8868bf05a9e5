//! Chunks of a chat completion as the events of a streamed message.

use serde_json::{Value, json};

use super::{stop_reason, usage};
use crate::dialects::{ChatDelta, Event, ToolCallDelta, Usage};

/// The content block that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    /// The answer's tool call of this index.
    Tool(usize),
}

/// One streamed message: each chunk in, its events out.
#[derive(Debug)]
pub struct MessageStream {
    id: String,
    model: String,
    has_started: bool,
    block: Option<Block>,
    /// Blocks begun.
    num_blocks: usize,
    finish_reason: Option<String>,
    stop: Option<Value>,
    usage: Usage,
}

impl MessageStream {
    /// A message without events yet. `id` begins with `msg_`.
    #[must_use]
    pub fn new(id: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            model: model.into(),
            has_started: false,
            block: None,
            num_blocks: 0,
            finish_reason: None,
            stop: None,
            usage: Usage::default(),
        }
    }

    /// Appends the events of a chunk.
    pub fn push(&mut self, chunk: &ChatDelta, out: &mut Vec<Event>) {
        if let Some(usage) = chunk.usage {
            self.usage = usage;
        }
        self.start(out);
        if let Some(thinking) = &chunk.reasoning {
            self.open(Block::Thinking, None, out);
            self.delta(&json!({ "type": "thinking_delta", "thinking": thinking }), out);
        }
        if let Some(text) = &chunk.content {
            self.open(Block::Text, None, out);
            self.delta(&json!({ "type": "text_delta", "text": text }), out);
        }
        for call in &chunk.tool_calls {
            self.open(Block::Tool(call.index), Some(call), out);
            if !call.arguments.is_empty() {
                self.delta(&json!({ "type": "input_json_delta", "partial_json": call.arguments }), out);
            }
        }
        if chunk.finish_reason.is_some() {
            self.finish_reason.clone_from(&chunk.finish_reason);
            self.stop.clone_from(&chunk.stop_reason);
        }
    }

    /// Appends the events of the end.
    pub fn finish(&mut self, out: &mut Vec<Event>) {
        self.start(out);
        if self.num_blocks == 0 {
            self.open(Block::Text, None, out);
        }
        self.close(out);
        let (reason, sequence) = stop_reason(self.finish_reason.as_deref(), self.stop.as_ref());
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        let data = json!({ "type": "message_delta", "delta": delta, "usage": usage(self.usage) });
        out.push(Event { name: "message_delta", data });
        out.push(Event { name: "message_stop", data: json!({ "type": "message_stop" }) });
    }

    fn start(&mut self, out: &mut Vec<Event>) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        let message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.model,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(Usage { completion_tokens: 0, ..self.usage }),
        });
        out.push(Event { name: "message_start", data: json!({ "type": "message_start", "message": message }) });
    }

    /// Begins a block, unless it is open; the one before it ends.
    fn open(&mut self, block: Block, call: Option<&ToolCallDelta>, out: &mut Vec<Event>) {
        if self.block == Some(block) {
            return;
        }
        self.close(out);
        let content = match block {
            Block::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            Block::Text => json!({ "type": "text", "text": "" }),
            Block::Tool(_) => {
                let id = call.and_then(|call| call.id.as_deref()).unwrap_or_default();
                let name = call.and_then(|call| call.name.as_deref()).unwrap_or_default();
                json!({ "type": "tool_use", "id": id, "name": name, "input": {} })
            }
        };
        let data = json!({ "type": "content_block_start", "index": self.num_blocks, "content_block": content });
        out.push(Event { name: "content_block_start", data });
        self.block = Some(block);
        self.num_blocks += 1;
    }

    fn close(&mut self, out: &mut Vec<Event>) {
        if self.block.take().is_some() {
            let data = json!({ "type": "content_block_stop", "index": self.num_blocks - 1 });
            out.push(Event { name: "content_block_stop", data });
        }
    }

    fn delta(&self, delta: &Value, out: &mut Vec<Event>) {
        let data = json!({ "type": "content_block_delta", "index": self.num_blocks - 1, "delta": delta });
        out.push(Event { name: "content_block_delta", data });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[Value]) -> Vec<Event> {
        let mut stream = MessageStream::new("msg_1", "sim");
        let mut out = Vec::new();
        for chunk in chunks {
            stream.push(&ChatDelta::read(chunk), &mut out);
        }
        stream.finish(&mut out);
        out
    }

    fn names(events: &[Event]) -> Vec<&str> {
        events.iter().map(|event| event.name).collect()
    }

    #[test]
    fn text_is_one_block_between_start_and_stop() {
        let events = events(&[
            json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }], "usage": { "prompt_tokens": 7 } }),
            json!({ "choices": [{ "delta": { "content": "Hel" } }] }),
            json!({ "choices": [{ "delta": { "content": "lo" }, "finish_reason": "stop", "stop_reason": "END" }] }),
            json!({ "choices": [], "usage": { "prompt_tokens": 7, "completion_tokens": 2 } }),
        ]);
        let expected = [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ];
        assert_eq!(names(&events), expected);
        assert!(events.iter().all(|event| event.data["type"] == event.name));
        assert_eq!(events[0].data["message"]["usage"]["input_tokens"], 7);
        assert_eq!(events[5].data["delta"], json!({ "stop_reason": "stop_sequence", "stop_sequence": "END" }));
        assert_eq!(events[5].data["usage"]["output_tokens"], 2);
    }

    #[test]
    fn reasoning_text_and_each_call_are_blocks_of_their_own() {
        let call = |index: u64, id: Value, name: Value, arguments: &str| {
            let function = json!({ "name": name, "arguments": arguments });
            let calls = json!([{ "index": index, "id": id, "function": function }]);
            json!({ "choices": [{ "delta": { "tool_calls": calls } }] })
        };
        let events = events(&[
            json!({ "choices": [{ "delta": { "reasoning": "hm" } }] }),
            json!({ "choices": [{ "delta": { "content": "ok" } }] }),
            call(0, json!("call_a"), json!("f"), "{\"x\""),
            call(0, Value::Null, Value::Null, ":1}"),
            call(1, json!("call_b"), json!("g"), "{}"),
            json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] }),
        ]);
        let starts: Vec<_> = events
            .iter()
            .filter(|event| event.name == "content_block_start")
            .map(|event| (event.data["index"].clone(), event.data["content_block"]["type"].clone()))
            .collect();
        let expected = ["thinking", "text", "tool_use", "tool_use"];
        assert_eq!(starts, expected.iter().enumerate().map(|(n, kind)| (json!(n), json!(kind))).collect::<Vec<_>>());
        let arguments: String = events
            .iter()
            .filter(|event| event.data["index"] == 2)
            .filter_map(|event| event.data["delta"]["partial_json"].as_str())
            .collect();
        assert_eq!(arguments, "{\"x\":1}");
        let stops = events.iter().filter(|event| event.name == "content_block_stop").count();
        assert_eq!(stops, expected.len());
    }

    #[test]
    fn an_answer_without_text_has_an_empty_block() {
        let events = events(&[json!({ "choices": [{ "delta": {}, "finish_reason": "length" }] })]);
        let expected = ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"];
        assert_eq!(names(&events), expected);
        assert_eq!(events[3].data["delta"]["stop_reason"], "max_tokens");
    }
}
