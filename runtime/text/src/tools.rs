//! Tool calls, drawn from the tools' own schemas.

use serde_json::value::RawValue;
use vcr_random::Stream;

use crate::{English, Tokenizer};

/// A tool that a request offers.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub description: Option<String>,
    /// The JSON schema of its arguments; none means an object of any kind.
    #[serde(default)]
    pub parameters: Option<Box<RawValue>>,
}

/// A list entry of a request's `tools`: `{"type": "function", "function": {...}}`.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct OfferedTool {
    /// The tool.
    pub function: Tool,
}

/// Which calls a request wants.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    /// No call.
    None,
    /// A call with this probability.
    Auto {
        /// From 0 to 1.
        probability: f64,
    },
    /// At least one call.
    Required,
    /// A call of the tool with this name.
    Named(String),
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's id, such as vLLM makes: `chatcmpl-tool-` and 16 digits.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The arguments as JSON, valid by the tool's schema.
    pub arguments: String,
}

/// Calls cannot be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The named tool is not offered.
    #[error("tool_choice names the tool `{0}`, which is not among `tools`")]
    Unknown(String),
    /// There is no tool to call.
    #[error("tool_choice requires a call, but `tools` is empty")]
    NoTools,
    /// A schema that cannot be followed.
    #[error("invalid parameters of tool `{name}`: {reason}")]
    Schema {
        /// Name of the tool.
        name: String,
        /// What of the schema cannot be followed.
        reason: String,
    },
}

/// How much is said in arguments beyond what must be, of at most 3.
const GENEROSITY: u32 = 2;

/// The most calls of one answer where several are allowed.
const CALLS_MAX: u32 = 2;

/// Draws the calls of an answer: none, one, or where `parallel` allows, two. The same
/// seed draws the same calls.
///
/// # Errors
/// When there is no such tool, or its schema cannot be followed.
pub fn draw(tools: &[Tool], choice: &ToolChoice, parallel: bool, seed: u64) -> Result<Vec<ToolCall>, ToolError> {
    let mut stream = Stream::new(seed, "tool calls");
    let named = match choice {
        ToolChoice::None => return Ok(Vec::new()),
        // Drawn in any case, so that a probability does not change which call it is.
        ToolChoice::Auto { probability } if stream.unit() >= *probability || tools.is_empty() => {
            return Ok(Vec::new());
        }
        ToolChoice::Auto { .. } => None,
        ToolChoice::Required if tools.is_empty() => return Err(ToolError::NoTools),
        ToolChoice::Required => None,
        ToolChoice::Named(name) => {
            let tool = tools.iter().find(|tool| tool.name == *name);
            Some(tool.ok_or_else(|| ToolError::Unknown(name.clone()))?)
        }
    };
    let mut below = |end: usize| ((stream.unit() * end as f64) as usize).min(end - 1);
    let calls = if parallel && named.is_none() { 1 + below(CALLS_MAX as usize) } else { 1 };
    (0..calls).map(|index| call(named.unwrap_or(&tools[below(tools.len())]), seed, index as u64)).collect()
}

fn call(tool: &Tool, seed: u64, index: u64) -> Result<ToolCall, ToolError> {
    let mut stream = Stream::new(seed, &format!("tool call {index}"));
    let mut word = || (stream.unit() * f64::from(u32::MAX)) as u64;
    let (high, low, seed) = (word(), word(), word());
    let schema = tool.parameters.as_deref().map_or("{\"type\": \"object\"}", RawValue::get);
    let arguments = vcr_structured::json_of_schema(schema, seed, GENEROSITY);
    let arguments = arguments.map_err(|reason| ToolError::Schema { name: tool.name.clone(), reason })?;
    Ok(ToolCall { id: format!("chatcmpl-tool-{high:08x}{low:08x}"), name: tool.name.clone(), arguments })
}

/// Calls as the model itself would write them, in the form that vLLM's `hermes` parser
/// reads.
#[must_use]
pub fn text(calls: &[ToolCall]) -> String {
    let line = |call: &ToolCall| {
        let name = serde_json::Value::from(call.name.as_str());
        format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {}}}\n</tool_call>", call.arguments)
    };
    calls.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Reasoning to go before an answer: a few sentences, at most `max_tokens` of them
/// that end with a whole sentence, or the one sentence that does not fit.
#[must_use]
pub fn reasoning(tokenizer: &Tokenizer, english: &English, seed: u64, max_tokens: usize) -> String {
    let mut text = english.start(seed ^ 0x7265_6173_6f6e);
    let (mut tokens, mut whole) = (Vec::new(), 0);
    while tokens.len() < max_tokens && !text.is_over() {
        tokens.push(text.next_token(english));
        if text.is_between_sentences() {
            whole = tokens.len();
        }
    }
    if whole > 0 {
        tokens.truncate(whole);
    }
    tokenizer.decode(&tokens, true)
}
