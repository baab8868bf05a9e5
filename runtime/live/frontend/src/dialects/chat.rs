//! Chat completions and their chunks, as the translations read them.

use serde_json::Value;

use super::given;

/// The token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of them, those found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// Of them, tokens of the reasoning.
    pub reasoning_tokens: u64,
}

impl Usage {
    fn read(value: &Value) -> Self {
        let count = |path: &str| value.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        Self {
            prompt_tokens: count("/prompt_tokens"),
            cached_tokens: count("/prompt_tokens_details/cached_tokens"),
            completion_tokens: count("/completion_tokens"),
            reasoning_tokens: count("/completion_tokens_details/reasoning_tokens"),
        }
    }
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id, by which the result refers to it.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, as JSON text.
    pub arguments: String,
}

/// A piece of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Index among the answer's calls.
    pub index: usize,
    /// Its id, in the first piece.
    pub id: Option<String>,
    /// The tool, in the first piece.
    pub name: Option<String>,
    /// More of its arguments.
    pub arguments: String,
}

/// A whole chat completion: its first choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatAnswer {
    /// The reasoning before the answer.
    pub reasoning: Option<String>,
    /// The text of the answer.
    pub content: Option<String>,
    /// Log probabilities of its tokens, if they were asked for.
    pub logprobs: Option<Value>,
    /// Calls of tools.
    pub tool_calls: Vec<ToolCall>,
    /// `stop`, `length`, `tool_calls`, ...
    pub finish_reason: Option<String>,
    /// The stop string or token that ended it.
    pub stop_reason: Option<Value>,
    /// Its token counts.
    pub usage: Usage,
}

impl ChatAnswer {
    /// Reads a `chat.completion` object.
    #[must_use]
    pub fn read(completion: &Value) -> Self {
        let choice = &completion["choices"][0];
        let message = &choice["message"];
        let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            reasoning: reasoning(message),
            content: string(message, "content"),
            logprobs: logprobs(choice),
            tool_calls: calls.iter().map(tool_call).collect(),
            finish_reason: string(choice, "finish_reason"),
            stop_reason: given(choice, "stop_reason").cloned(),
            usage: Usage::read(&completion["usage"]),
        }
    }
}

/// A chunk of a streamed chat completion: its first choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatDelta {
    /// More of the reasoning.
    pub reasoning: Option<String>,
    /// More of the text.
    pub content: Option<String>,
    /// Log probabilities of its tokens, if they were asked for.
    pub logprobs: Option<Value>,
    /// More of the calls of tools.
    pub tool_calls: Vec<ToolCallDelta>,
    /// Why the answer ends, in its last chunk.
    pub finish_reason: Option<String>,
    /// The stop string or token that ended it.
    pub stop_reason: Option<Value>,
    /// The token counts, in chunks that have them.
    pub usage: Option<Usage>,
}

impl ChatDelta {
    /// Reads a `chat.completion.chunk` object.
    #[must_use]
    pub fn read(chunk: &Value) -> Self {
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        let calls = delta["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            reasoning: reasoning(delta),
            content: string(delta, "content"),
            logprobs: logprobs(choice),
            tool_calls: calls.iter().map(tool_call_delta).collect(),
            finish_reason: string(choice, "finish_reason"),
            stop_reason: given(choice, "stop_reason").cloned(),
            usage: given(chunk, "usage").map(Usage::read),
        }
    }
}

/// The reasoning of a message: vLLM renamed the field from `reasoning_content`.
fn reasoning(message: &Value) -> Option<String> {
    string(message, "reasoning").or_else(|| string(message, "reasoning_content"))
}

/// The log probabilities of a choice, a list with an entry for each token.
fn logprobs(choice: &Value) -> Option<Value> {
    choice["logprobs"]["content"].as_array().map(|entries| Value::Array(entries.clone()))
}

fn string(value: &Value, field: &str) -> Option<String> {
    value[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn tool_call(call: &Value) -> ToolCall {
    let field = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let function = &call["function"];
    ToolCall { id: field(&call["id"]), name: field(&function["name"]), arguments: field(&function["arguments"]) }
}

fn tool_call_delta(call: &Value) -> ToolCallDelta {
    let function = &call["function"];
    ToolCallDelta {
        index: call["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0),
        id: string(call, "id"),
        name: string(function, "name"),
        arguments: string(function, "arguments").unwrap_or_default(),
    }
}
