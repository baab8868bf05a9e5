//! Translates the chunks of a chat to the events of a streamed response.

use serde_json::{Value, json};

use super::tools::{custom_input, custom_input_so_far};
use super::{ResponseHead, message_item, reasoning_item, text_part};
use crate::dialects::{Call, CallDelta, ChatChunk, ChatLogprob, Event};
use crate::generate::Usage;

/// The open output item.
#[derive(Debug)]
enum Item {
    Reasoning {
        text: String,
    },
    Message {
        text: String,
        logprobs: Vec<ChatLogprob>,
    },
    /// A call. For custom tools, `input` is the part of the input that was sent.
    Call {
        index: usize,
        call: Call,
        input: String,
    },
}

/// A streamed response. It takes chunks and produces events.
#[derive(Debug)]
pub(crate) struct ResponseStream {
    head: ResponseHead,
    sequence_number: u64,
    has_started: bool,
    item: Option<Item>,
    /// Text and logprobs that are held back until the end, because they may be the start of a call.
    held: Option<(String, Vec<ChatLogprob>)>,
    /// The completed items.
    output: Vec<Value>,
    is_cut: bool,
    usage: Usage,
}

impl ResponseStream {
    /// Creates a response without events.
    pub(crate) fn new(head: ResponseHead) -> Self {
        Self {
            head,
            sequence_number: 0,
            has_started: false,
            item: None,
            held: None,
            output: Vec::new(),
            is_cut: false,
            usage: Usage::default(),
        }
    }

    /// Appends the events of a chunk.
    pub(crate) fn push(&mut self, chunk: &ChatChunk, out: &mut Vec<Event>) {
        self.start(out);
        if let Some(usage) = chunk.usage {
            self.usage = usage;
        }
        let Some(choice) = &chunk.choice else { return };
        if let Some(delta) = choice.delta.reasoning() {
            if !matches!(self.item, Some(Item::Reasoning { .. })) {
                self.open(Item::Reasoning { text: String::new() }, out);
            }
            self.say("response.reasoning_text.delta", json!({ "content_index": 0, "delta": delta }), out);
            if let Some(Item::Reasoning { text }) = &mut self.item {
                text.push_str(delta);
            }
        }
        if let Some(delta) = choice.delta.text() {
            let entries = choice.logprobs.as_ref().map_or(&[][..], |logprobs| &logprobs.content);
            match self.head.must_call {
                true => self.hold_text(delta, entries),
                false => self.push_text(delta, entries, out),
            }
        }
        for call in &choice.delta.tool_calls {
            self.push_call(call, out);
        }
        if let Some(reason) = choice.finish_reason {
            self.is_cut = reason == "length";
        }
    }

    /// Appends the final events. Returns the complete response.
    pub(crate) fn finish(&mut self, out: &mut Vec<Event>) -> Value {
        self.start(out);
        if let Some((text, entries)) = self.held.take().filter(|_| !self.is_cut) {
            self.push_text(&text, &entries, out);
        }
        if self.item.is_none() && self.output.is_empty() && !self.head.must_call {
            self.open(Item::Message { text: String::new(), logprobs: Vec::new() }, out);
        }
        self.close(if self.is_cut { "incomplete" } else { "completed" }, out);
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

    fn hold_text(&mut self, delta: &str, entries: &[ChatLogprob]) {
        let (text, logprobs) = self.held.get_or_insert_default();
        text.push_str(delta);
        logprobs.extend_from_slice(entries);
    }

    fn push_text(&mut self, delta: &str, entries: &[ChatLogprob], out: &mut Vec<Event>) {
        if !matches!(self.item, Some(Item::Message { .. })) {
            self.open(Item::Message { text: String::new(), logprobs: Vec::new() }, out);
        }
        let shown: Vec<Value> = entries.iter().map(streamed_logprobs).collect();
        let data = json!({ "content_index": 0, "delta": delta, "logprobs": shown });
        self.say("response.output_text.delta", data, out);
        if let Some(Item::Message { text, logprobs }) = &mut self.item {
            text.push_str(delta);
            logprobs.extend_from_slice(entries);
        }
    }

    fn push_call(&mut self, delta: &CallDelta, out: &mut Vec<Event>) {
        if !matches!(&self.item, Some(Item::Call { index, .. }) if *index == delta.index) {
            let (id, name) = (delta.id.clone(), delta.function.name.clone());
            let call = Call::new(id.unwrap_or_default(), name.unwrap_or_default());
            self.open(Item::Call { index: delta.index, call, input: String::new() }, out);
        }
        let Some(arguments) = delta.arguments() else { return };
        let is_custom = match &mut self.item {
            Some(Item::Call { call, .. }) => {
                call.function.arguments.push_str(arguments);
                self.head.tools.is_custom(&call.function.name)
            }
            _ => false,
        };
        match is_custom {
            true => self.push_input(custom_input_so_far, out),
            false => {
                self.say("response.function_call_arguments.delta", json!({ "delta": arguments }), out);
            }
        }
    }

    /// Sends the new part of a custom tool's input.
    fn push_input(&mut self, read: fn(&str) -> String, out: &mut Vec<Event>) {
        let Some(Item::Call { call, input, .. }) = &mut self.item else { return };
        let all = read(&call.function.arguments);
        // Text that was sent cannot be withdrawn.
        let more = all.strip_prefix(input.as_str()).unwrap_or(&all).to_owned();
        *input = all;
        if !more.is_empty() {
            self.say("response.custom_tool_call_input.delta", json!({ "delta": more }), out);
        }
    }

    /// Starts an item and ends the previous one.
    fn open(&mut self, item: Item, out: &mut Vec<Event>) {
        self.close("completed", out);
        let id = self.item_id(&item);
        let added = match &item {
            Item::Reasoning { .. } => json!({ "id": id, "type": "reasoning", "summary": [], "status": "in_progress" }),
            Item::Message { .. } => message_item(&id, "in_progress", &[]),
            Item::Call { call, .. } if self.head.tools.is_custom(&call.function.name) => {
                json!({ "id": id, "type": "custom_tool_call", "call_id": call.id, "name": call.function.name, "input": "" })
            }
            Item::Call { call, .. } => self.head.call_item(self.output.len(), call, "in_progress"),
        };
        let data = json!({ "output_index": self.output.len(), "item": added });
        self.event("response.output_item.added", data, out);
        let part = match item {
            Item::Reasoning { .. } => Some(json!({ "type": "reasoning_text", "text": "" })),
            Item::Message { .. } => Some(text_part("", None)),
            Item::Call { .. } => None,
        };
        self.item = Some(item);
        if let Some(part) = part {
            self.say("response.content_part.added", json!({ "content_index": 0, "part": part }), out);
        }
    }

    /// Ends the open item with this status.
    fn close(&mut self, status: &str, out: &mut Vec<Event>) {
        self.push_rest(out);
        let Some(item) = &self.item else { return };
        let id = self.item_id(item);
        let (done, name, part, item) = match item {
            Item::Reasoning { text } => (
                json!({ "content_index": 0, "text": text }),
                "response.reasoning_text.done",
                Some(json!({ "type": "reasoning_text", "text": text })),
                reasoning_item(&id, text),
            ),
            Item::Message { text, logprobs } => {
                let part = text_part(text, (!logprobs.is_empty()).then_some(logprobs));
                (
                    json!({ "content_index": 0, "text": text, "logprobs": [] }),
                    "response.output_text.done",
                    Some(part.clone()),
                    message_item(&id, status, &[part]),
                )
            }
            Item::Call { call, input, .. } if self.head.tools.is_custom(&call.function.name) => (
                json!({ "input": input }),
                "response.custom_tool_call_input.done",
                None,
                self.head.call_item(self.output.len(), call, status),
            ),
            Item::Call { call, .. } => (
                json!({ "name": self.head.tools.resolve(&call.function.name).1, "arguments": call.function.arguments }),
                "response.function_call_arguments.done",
                None,
                self.head.call_item(self.output.len(), call, status),
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

    /// Sends the rest of a custom tool's input.
    fn push_rest(&mut self, out: &mut Vec<Event>) {
        if matches!(&self.item, Some(Item::Call { call, .. }) if self.head.tools.is_custom(&call.function.name)) {
            self.push_input(custom_input, out);
        }
    }

    fn item_id(&self, item: &Item) -> String {
        let prefix = match item {
            Item::Reasoning { .. } => "rs",
            Item::Message { .. } => "msg",
            Item::Call { call, .. } => self.head.call_prefix(&call.function.name),
        };
        self.head.item_id(prefix, self.output.len())
    }

    /// The final event of a failed response.
    pub(crate) fn error(&self, code: &str, message: &str, param: Option<&str>) -> Event {
        let data = json!({
            "type": "error", "code": code, "message": message, "param": param,
            "sequence_number": self.sequence_number,
        });
        Event { name: "error", data }
    }

    /// Adds an event about the open item.
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

/// The logprobs of a token in the format of events, without bytes.
fn streamed_logprobs(entry: &ChatLogprob) -> Value {
    let plain = |entry: &ChatLogprob| json!({ "token": entry.token, "logprob": entry.logprob });
    let mut shown = plain(entry);
    shown["top_logprobs"] = entry.top_logprobs.iter().flatten().map(plain).collect();
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialects::ChoiceLogprobs;
    use crate::parse::Part;

    fn run(chunks: &[ChatChunk]) -> (Vec<Event>, Value) {
        run_with(&json!({}), chunks)
    }

    fn run_with(request: &Value, chunks: &[ChatChunk]) -> (Vec<Event>, Value) {
        let head = ResponseHead::new("resp_7", 5, "sim", request);
        let mut stream = ResponseStream::new(head);
        let mut out = Vec::new();
        for chunk in chunks {
            stream.push(chunk, &mut out);
        }
        let response = stream.finish(&mut out);
        (out, response)
    }

    #[test]
    fn text_has_the_documented_sequence() {
        let (events, response) = run(&[
            ChatChunk::text(""),
            ChatChunk::text("Hel"),
            ChatChunk::text("lo").ending("stop", None),
            ChatChunk::counts(7, 2),
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
        let (events, response) = run(&[
            ChatChunk::of([Part::Reasoning("hm".to_owned())]),
            ChatChunk::text("ok"),
            ChatChunk::call(0, "call_1", "f"),
            ChatChunk::arguments(0, "{\"a\":"),
            ChatChunk::arguments(0, "1}").ending("tool_calls", None),
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
        let (events, response) = run(&[ChatChunk::text("a").ending("length", None)]);
        assert_eq!(events.last().map(|event| event.name), Some("response.incomplete"));
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["output"][0]["status"], "incomplete");
    }

    fn call_chunks(name: &str, arguments: &[&str]) -> Vec<ChatChunk> {
        let more = arguments.iter().map(|part| ChatChunk::arguments(0, part));
        std::iter::once(ChatChunk::call(0, "call_1", name)).chain(more).collect()
    }

    #[test]
    fn calls_have_the_names_and_inputs_of_their_tools() {
        let function = json!({ "type": "function", "name": "f" });
        let request = json!({ "tools": [
            { "type": "custom", "name": "patch" }, { "type": "namespace", "name": "n", "tools": [function] },
        ] });
        let (events, response) = run_with(&request, &call_chunks("patch", &["{\"inp", "ut\": \"a\\", "nb", "\"}"]));
        let deltas: Vec<_> = events
            .iter()
            .filter(|event| event.name == "response.custom_tool_call_input.delta")
            .filter_map(|event| event.data["delta"].as_str())
            .collect();
        assert_eq!(deltas, ["a", "\nb"]);
        let item = &response["output"][0];
        assert_eq!((&item["type"], &item["input"]), (&json!("custom_tool_call"), &json!("a\nb")));
        assert!(item["id"].as_str().is_some_and(|id| id.starts_with("ctc_")));
        let (events, response) = run_with(&request, &call_chunks("n__f", &["{}"]));
        let item = &response["output"][0];
        assert_eq!((&item["name"], &item["namespace"], &item["arguments"]), (&json!("f"), &json!("n"), &json!("{}")));
        let done = events.iter().find(|event| event.name == "response.function_call_arguments.done");
        assert_eq!(done.map(|event| &event.data["name"]), Some(&json!("f")));
    }

    #[test]
    fn log_probabilities_are_told_with_their_tokens() {
        let plain =
            |token: &str| ChatLogprob { bytes: vec![97], logprob: -0.5, token: token.to_owned(), top_logprobs: None };
        let entry = |token: &str| ChatLogprob { top_logprobs: Some(vec![plain(token)]), ..plain(token) };
        let chunk = |token: &str| {
            let mut chunk = ChatChunk::text(token);
            let choice = chunk.choice.get_or_insert_default();
            choice.logprobs = Some(ChoiceLogprobs { content: vec![entry(token)] });
            chunk
        };
        let (events, response) = run(&[chunk("a"), chunk("b")]);
        let written = |token: &str| {
            let top = [json!({ "token": token, "logprob": -0.5, "bytes": [97] })];
            json!({ "token": token, "logprob": -0.5, "bytes": [97], "top_logprobs": top })
        };
        assert_eq!(response["output"][0]["content"][0]["logprobs"], json!([written("a"), written("b")]));
        let delta = events.iter().find(|event| event.name == "response.output_text.delta").expect("a text");
        let shown = json!([{ "token": "a", "logprob": -0.5, "top_logprobs": [{ "token": "a", "logprob": -0.5 }] }]);
        assert_eq!(delta.data["logprobs"], shown);
    }

    #[test]
    fn an_error_is_numbered_as_other_events_are() {
        let mut stream = ResponseStream::new(ResponseHead::new("resp_7", 5, "sim", &json!({})));
        let mut out = Vec::new();
        stream.push(&ChatChunk::text("a"), &mut out);
        let error = stream.error("InternalServerError", "no", None);
        assert_eq!(error.data["sequence_number"], out.len());
    }

    #[test]
    fn the_beginning_of_a_call_that_is_cut_is_no_text() {
        let request = json!({ "tool_choice": "required", "tools": [{ "type": "function", "name": "f" }] });
        let cut = |reason| [ChatChunk::text("{\"name\":"), ChatChunk::default().ending(reason, None)];
        let (events, response) = run_with(&request, &cut("length"));
        assert_eq!((&response["output"], &response["status"]), (&json!([]), &json!("incomplete")));
        assert!(events.iter().all(|event| event.name != "response.output_text.delta"));
        let (_, response) = run_with(&request, &cut("stop"));
        assert_eq!(response["output"][0]["content"][0]["text"], "{\"name\":");
    }

    #[test]
    fn only_the_last_item_is_cut() {
        let mut chunks = call_chunks("f", &["{\"a\":"]);
        chunks.insert(0, ChatChunk::text("a"));
        chunks.push(ChatChunk::default().ending("length", None));
        let (_, response) = run(&chunks);
        let statuses: Vec<_> =
            response["output"].as_array().expect("a list").iter().map(|item| &item["status"]).collect();
        assert_eq!(statuses, ["completed", "incomplete"]);
    }
}
