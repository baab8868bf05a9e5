//! Translates the chunks of a chat to the events of a streamed message.

use serde_json::{Value, json};

use super::{stop_reason, usage};
use crate::dialects::{CallDelta, ChatChunk, Event};
use crate::generate::{StopCause, Usage};

/// The open content block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    /// A tool call, by its index in the answer.
    Tool(usize),
}

/// A streamed message. It takes chunks and produces events.
#[derive(Debug)]
pub(crate) struct MessageStream {
    id: String,
    model: String,
    has_started: bool,
    block: Option<Block>,
    /// The number of blocks started so far.
    num_blocks: usize,
    finish_reason: Option<&'static str>,
    stop: Option<StopCause>,
    usage: Usage,
}

impl MessageStream {
    /// Creates a message without events. `id` starts with `msg_`.
    pub(crate) fn new(id: impl Into<String>, model: impl Into<String>) -> Self {
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
    pub(crate) fn push(&mut self, chunk: &ChatChunk, out: &mut Vec<Event>) {
        if let Some(usage) = chunk.usage {
            self.usage = usage;
        }
        self.start(out);
        let Some(choice) = &chunk.choice else { return };
        if let Some(thinking) = choice.delta.reasoning() {
            self.open(Block::Thinking, None, out);
            self.delta(&json!({ "type": "thinking_delta", "thinking": thinking }), out);
        }
        if let Some(text) = choice.delta.text() {
            self.open(Block::Text, None, out);
            self.delta(&json!({ "type": "text_delta", "text": text }), out);
        }
        for call in &choice.delta.tool_calls {
            self.open(Block::Tool(call.index), Some(call), out);
            if let Some(arguments) = call.arguments() {
                self.delta(&json!({ "type": "input_json_delta", "partial_json": arguments }), out);
            }
        }
        if choice.finish_reason.is_some() {
            self.finish_reason = choice.finish_reason;
            self.stop.clone_from(&choice.stop_reason);
        }
    }

    /// Appends the final events.
    pub(crate) fn finish(&mut self, out: &mut Vec<Event>) {
        self.start(out);
        if self.num_blocks == 0 {
            self.open(Block::Text, None, out);
        }
        self.close(out);
        let (reason, sequence) = stop_reason(self.finish_reason, self.stop.as_ref());
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        let data = json!({ "type": "message_delta", "delta": delta, "usage": usage(self.usage) });
        out.push(Event { name: "message_delta", data });
        out.push(Event { name: "message_stop", data: json!({ "type": "message_stop" }) });
    }

    fn start(&mut self, out: &mut Vec<Event>) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        let mut counts = self.usage;
        counts.completion_tokens = 0;
        let message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.model,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(counts),
        });
        out.push(Event { name: "message_start", data: json!({ "type": "message_start", "message": message }) });
    }

    /// Starts a block and ends the previous one. Does nothing if the block is open.
    fn open(&mut self, block: Block, call: Option<&CallDelta>, out: &mut Vec<Event>) {
        if self.block == Some(block) {
            return;
        }
        self.close(out);
        let content = match block {
            Block::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            Block::Text => json!({ "type": "text", "text": "" }),
            Block::Tool(_) => {
                let id = call.and_then(|call| call.id.as_deref()).unwrap_or_default();
                let name = call.and_then(|call| call.function.name.as_deref()).unwrap_or_default();
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
    use crate::parse::Part;

    fn events(chunks: &[ChatChunk]) -> Vec<Event> {
        let mut stream = MessageStream::new("msg_1", "sim");
        let mut out = Vec::new();
        for chunk in chunks {
            stream.push(chunk, &mut out);
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
            ChatChunk { usage: Some(Usage::new(7, 0, None)), ..ChatChunk::text("") },
            ChatChunk::text("Hel"),
            ChatChunk::text("lo").ending("stop", Some(StopCause::Text("END".to_owned()))),
            ChatChunk::counts(7, 2),
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
        let events = events(&[
            ChatChunk::of([Part::Reasoning("hm".to_owned())]),
            ChatChunk::text("ok"),
            ChatChunk::call(0, "call_a", "f"),
            ChatChunk::arguments(0, "{\"x\""),
            ChatChunk::arguments(0, ":1}"),
            ChatChunk::call(1, "call_b", "g"),
            ChatChunk::arguments(1, "{}"),
            ChatChunk::default().ending("tool_calls", None),
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
        let events = events(&[ChatChunk::default().ending("length", None)]);
        let expected = ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"];
        assert_eq!(names(&events), expected);
        assert_eq!(events[3].data["delta"]["stop_reason"], "max_tokens");
    }
}
