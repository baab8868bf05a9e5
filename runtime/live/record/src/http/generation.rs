//! Reads generations from bodies of OpenAI's and Anthropic's APIs.

use serde_json::{Map, Value};

use super::decode::Part;
use super::events::events;

#[derive(Debug, Default)]
pub(super) struct Generation {
    /// Whether the exchange is a generation: its answer has usage or text.
    pub(super) is_found: bool,
    /// Whether the stream's last event ends an answer: `[DONE]`, `message_stop`, or the complete response.
    pub(super) has_last_event: bool,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) cached_tokens: u64,
    pub(super) output_tokens: Option<u64>,
    /// Outputs of a stream: their times, in ascending order, and the number of events with text in each.
    pub(super) outputs: Vec<(u64, u64)>,
    /// When the stream gave its finish reason in an event without text.
    closed_ns: Option<u64>,
    pub(super) finish_reason: Option<&'static str>,
    pub(super) tool_calls: Vec<String>,
    pub(super) error: Option<String>,
    pub(super) text: String,
}

impl Generation {
    /// Reads an answer: a stream of events, or one JSON value.
    pub(super) fn of(parts: &[Part], is_stream: bool) -> Self {
        let mut found = Self::default();
        if is_stream {
            for event in events(parts) {
                let data = event.data();
                found.has_last_event = data == "[DONE]";
                if let Ok(value) = serde_json::from_str::<Value>(&data) {
                    found.has_last_event = is_last(&value);
                    found.take(&value, Some(event.at_ns));
                }
            }
        } else {
            let whole: Vec<u8> = parts.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
            if let Ok(value) = serde_json::from_slice::<Value>(&whole) {
                found.take(&value, None);
            }
        }
        found
    }

    pub(super) fn take(&mut self, value: &Value, at_ns: Option<u64>) {
        for place in ["/usage", "/message/usage", "/response/usage"] {
            self.usage(value.pointer(place).and_then(Value::as_object));
        }
        let before = self.text.len();
        let mut is_closed = false;
        for choice in list(value, "choices") {
            self.choice(choice);
            is_closed |= self.finish(choice.get("finish_reason"));
        }
        match value.get("type").and_then(Value::as_str) {
            Some("content_block_delta") => {
                for field in ["text", "thinking", "partial_json"] {
                    self.text(value.get("delta").and_then(|delta| delta.get(field)));
                }
            }
            Some("content_block_start") => self.part(value.get("content_block")),
            Some("message_delta") => is_closed |= self.finish(value.pointer("/delta/stop_reason")),
            Some("message") => {
                list(value, "content").for_each(|part| self.part(Some(part)));
                is_closed |= self.finish(value.get("stop_reason"));
            }
            Some("response.output_item.added") => self.call(value.pointer("/item/name")),
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                is_closed |= self.finish(value.pointer("/response/status"));
                self.error(value.pointer("/response/error"));
            }
            Some(kind) if kind.starts_with("response.") && kind.ends_with(".delta") => self.text(value.get("delta")),
            _ => {}
        }
        if value.get("object").and_then(Value::as_str) == Some("response") && at_ns.is_none() {
            for item in list(value, "output") {
                self.call(item.get("name"));
                self.text(item.get("arguments"));
                list(item, "content").for_each(|part| self.text(part.get("text")));
            }
            is_closed |= self.finish(value.get("status"));
        }
        self.error(value.get("error").or(Some(value).filter(|value| is_error(value))));
        let has_text = self.text.len() > before;
        self.is_found |= has_text || is_closed;
        let Some(at_ns) = at_ns else { return };
        match self.outputs.last_mut() {
            Some((last_ns, events)) if has_text && *last_ns == at_ns => *events += 1,
            _ if has_text => self.outputs.push((at_ns, 1)),
            _ if is_closed => self.closed_ns = Some(at_ns),
            _ => {}
        }
    }

    fn usage(&mut self, usage: Option<&Map<String, Value>>) {
        let Some(usage) = usage else { return };
        let number = |name: &str| usage.get(name).and_then(Value::as_u64);
        let detail = |name: &str| usage.get(name)?.get("cached_tokens")?.as_u64();
        // Anthropic counts cached tokens separately from `input_tokens`.
        let read = number("cache_read_input_tokens").unwrap_or(0);
        let beside = read.saturating_add(number("cache_creation_input_tokens").unwrap_or(0));
        let input = number("input_tokens").map(|tokens| tokens.saturating_add(beside));
        if let Some(tokens) = number("prompt_tokens").or(input).filter(|tokens| *tokens > 0) {
            self.prompt_tokens = Some(tokens);
            self.cached_tokens = detail("prompt_tokens_details").or(detail("input_tokens_details")).unwrap_or(read);
            self.is_found = true;
        }
        if let Some(tokens) = number("completion_tokens").or(number("output_tokens")) {
            self.output_tokens = Some(tokens);
        }
    }

    fn choice(&mut self, choice: &Value) {
        self.text(choice.get("text"));
        let Some(message) = choice.get("delta").or(choice.get("message")) else { return };
        for field in ["content", "reasoning_content", "reasoning", "refusal"] {
            self.text(message.get(field));
        }
        for call in list(message, "tool_calls") {
            self.call(call.pointer("/function/name"));
            self.text(call.pointer("/function/name"));
            self.text(call.pointer("/function/arguments"));
        }
    }

    /// Reads a content block of Anthropic's API.
    fn part(&mut self, part: Option<&Value>) {
        let Some(part) = part else { return };
        if part.get("type").and_then(Value::as_str) == Some("tool_use") {
            self.call(part.get("name"));
        }
        for field in ["text", "thinking"] {
            self.text(part.get(field));
        }
    }

    fn text(&mut self, text: Option<&Value>) {
        self.text.push_str(text.and_then(Value::as_str).unwrap_or_default());
    }

    fn call(&mut self, name: Option<&Value>) {
        self.tool_calls.extend(name.and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned));
    }

    fn finish(&mut self, reason: Option<&Value>) -> bool {
        let Some(reason) = reason.and_then(Value::as_str) else { return false };
        self.finish_reason = Some(match reason {
            "length" | "max_tokens" | "incomplete" | "model_context_window_exceeded" => "length",
            "abort" | "cancelled" => "abort",
            "error" | "failed" => "error",
            "repetition" => "repetition",
            _ => "stop",
        });
        true
    }

    fn error(&mut self, error: Option<&Value>) {
        let Some(error) = error.filter(|error| !error.is_null()) else { return };
        let message = error.get("message").unwrap_or(error);
        self.error = Some(message.as_str().map_or_else(|| message.to_string(), str::to_owned));
    }

    /// Distributes `total` tokens over the outputs of a stream. Events do not state their number of tokens: a
    /// server may send several at once, or hold text back. If there are as many events as tokens, each event has
    /// one.
    pub(super) fn tokens_by_output(&self, total: u64) -> Vec<(u64, u32)> {
        let mut outputs = self.outputs.clone();
        let mut events: u64 = outputs.iter().map(|(_, events)| events).sum();
        // The end-of-text token produces no event with text.
        let is_behind = |at_ns: &u64| outputs.last().is_none_or(|(last_ns, _)| last_ns < at_ns);
        if let Some(at_ns) = self.closed_ns.filter(|at_ns| total > events && events > 0 && is_behind(at_ns)) {
            outputs.push((at_ns, 1));
            events += 1;
        }
        let share = |events_so_far: u64| {
            let product = u128::from(events_so_far) * u128::from(total);
            let (events, fewer) = (u128::from(events), u64::from(total < events));
            (product / events) as u64 + fewer * u64::from(product % events > 0)
        };
        let (mut events_so_far, mut tokens_so_far) = (0, 0);
        let mut tokens = Vec::with_capacity(outputs.len());
        for (at_ns, more) in outputs {
            events_so_far += more;
            let now = share(events_so_far);
            if now > tokens_so_far {
                tokens.push((at_ns, u32::try_from(now - tokens_so_far).unwrap_or(u32::MAX)));
            }
            tokens_so_far = now;
        }
        tokens
    }
}

/// Whether an event is an error of the Responses API, or of a server before vLLM 0.10.
fn is_error(value: &Value) -> bool {
    ["type", "object"].iter().any(|field| value.get(field).and_then(Value::as_str) == Some("error"))
}

/// Whether an event is the last event of an answer in Anthropic's or the Responses API.
fn is_last(value: &Value) -> bool {
    let kind = value.get("type").and_then(Value::as_str);
    matches!(kind, Some("message_stop" | "response.completed" | "response.incomplete" | "response.failed"))
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Returns the text of a prompt, and the number of token ids in it.
pub(super) fn prompt_of(body: &Value) -> (String, u64) {
    let (mut text, mut ids) = (String::new(), 0);
    for field in ["system", "prompt", "input", "messages", "query", "documents", "tools"] {
        if let Some(value) = body.get(field) {
            gather(value, &mut text, &mut ids);
        }
    }
    (text, ids)
}

fn gather(value: &Value, text: &mut String, ids: &mut u64) {
    match value {
        Value::String(part) => {
            text.push_str(part);
            text.push('\n');
        }
        Value::Number(_) => *ids += 1,
        Value::Array(items) => items.iter().for_each(|item| gather(item, text, ids)),
        Value::Object(fields) => {
            let known = ["content", "text", "arguments", "function", "name", "description", "tool_calls", "output"];
            fields
                .iter()
                .filter(|(name, _)| known.contains(&name.as_str()))
                .for_each(|(_, item)| gather(item, text, ids));
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// Request parameters that affect the answer: their names in HTTP bodies, and vLLM's names.
pub(crate) const SAMPLING_PARAMETERS: &[(&str, &str)] = &[
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("max_tokens", "max_tokens"),
    ("max_completion_tokens", "max_tokens"),
    ("max_output_tokens", "max_tokens"),
    ("min_tokens", "min_tokens"),
    ("seed", "seed"),
    ("n", "n"),
    ("stop", "stop"),
    ("ignore_eos", "ignore_eos"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("repetition_penalty", "repetition_penalty"),
];

/// The request's parameters that affect the answer, under vLLM's names.
pub(super) fn params_of(body: &Value) -> Map<String, Value> {
    let parameters = SAMPLING_PARAMETERS.iter();
    let given = parameters.filter_map(|(given, name)| Some((*name, body.get(given).filter(|value| !value.is_null())?)));
    given.map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(events: &[(u64, &str)]) -> Generation {
        let parts: Vec<Part> =
            events.iter().map(|(at_ns, data)| (*at_ns, format!("data: {data}\n\n").into_bytes())).collect();
        Generation::of(&parts, true)
    }

    #[test]
    fn chats_of_openai() {
        let found = stream(&[
            (10, r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#),
            (20, r#"{"choices":[{"delta":{"content":"a"}}]}"#),
            (30, r#"{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":""}}]}}]}"#),
            (30, r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{}"}}]}}]}"#),
            (40, r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#),
            (
                40,
                r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}}"#,
            ),
            (40, "[DONE]"),
        ]);
        assert_eq!((found.prompt_tokens, found.cached_tokens, found.output_tokens), (Some(7), 3, Some(4)));
        assert_eq!((found.finish_reason, found.tool_calls.as_slice()), (Some("stop"), ["f".to_owned()].as_slice()));
        assert_eq!(found.tokens_by_output(4), [(20, 1), (30, 2), (40, 1)]);
    }

    #[test]
    fn messages_of_anthropic_and_responses() {
        let found = stream(&[
            (
                5,
                r#"{"type":"message_start","message":{"usage":{"input_tokens":4,"cache_read_input_tokens":6,"output_tokens":1}}}"#,
            ),
            (10, r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#),
            (20, r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{}"}}"#),
            (30, r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":2}}"#),
        ]);
        assert_eq!((found.prompt_tokens, found.cached_tokens, found.output_tokens), (Some(10), 6, Some(2)));
        assert_eq!((found.finish_reason, found.tokens_by_output(2)), (Some("length"), vec![(10, 1), (20, 1)]));
        let found = stream(&[
            (10, r#"{"type":"response.output_text.delta","delta":"a"}"#),
            (
                20,
                r#"{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":3,"output_tokens":1}}}"#,
            ),
        ]);
        assert_eq!((found.prompt_tokens, found.output_tokens, found.finish_reason), (Some(3), Some(1), Some("stop")));
        assert_eq!(found.tokens_by_output(1), [(10, 1)]);
        let whole = br#"{"object":"response","status":"completed","usage":{"input_tokens":3,"output_tokens":1},
            "output":[{"type":"function_call","name":"f","arguments":"{}"},{"content":[{"text":"hi"}]}]}"#;
        let found = Generation::of(&[(9, whole.to_vec())], false);
        assert_eq!((found.text.as_str(), found.tool_calls.len(), found.outputs.len()), ("{}hi", 1, 0));
    }

    #[test]
    fn tokens_of_outputs_add_up() {
        let texts: Vec<(u64, &str)> = (1..=10).map(|at_ns| (at_ns, r#"{"choices":[{"text":"x"}]}"#)).collect();
        let found = stream(&texts);
        for total in 1..40 {
            let tokens = found.tokens_by_output(total);
            assert_eq!(tokens.iter().map(|(_, tokens)| u64::from(*tokens)).sum::<u64>(), total);
            assert_eq!(tokens[0].0, 1, "the first output is the first of {total} tokens");
        }
        assert!(found.tokens_by_output(0).is_empty());
        assert!(Generation::default().tokens_by_output(5).is_empty());
    }

    #[test]
    fn errors_and_prompts_are_read() {
        for error in [
            r#"{"error":{"message":"it broke","code":500}}"#,
            r#"{"type":"error","code":"server_error","message":"it broke"}"#,
            r#"{"object":"error","message":"it broke","code":500}"#,
        ] {
            assert_eq!(stream(&[(1, error)]).error.as_deref(), Some("it broke"), "{error}");
        }
        let body = serde_json::json!({"prompt": [1, 2, 3], "max_completion_tokens": 5, "seed": null});
        assert_eq!(prompt_of(&body), (String::new(), 3));
        assert_eq!(Value::Object(params_of(&body)), serde_json::json!({"max_tokens": 5}));
        let body = serde_json::json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]});
        assert_eq!(prompt_of(&body).0, "hi\n");
    }
}
