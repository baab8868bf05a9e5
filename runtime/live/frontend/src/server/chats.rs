//! Settings of chats.

use std::collections::BTreeMap;

use vcr_text::tools::CallForm;
use vcr_text::{ReasoningForm, Value};

/// Settings of chats.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// The reasoning format, if reasoning is separated from the answer.
    pub reasoning: Option<ReasoningForm>,
    /// The parser for tool calls.
    pub calls: CallParsing,
    /// The probability of a tool call if the request leaves the choice to the model.
    pub call_probability: f64,
    /// The role of answers, if not `assistant`.
    pub response_role: Option<String>,
    /// Whether to leave tools out of prompts whose request wants no tool call.
    pub excludes_unused_tools: bool,
    /// Variables for the chat template, which requests may override.
    pub template_kwargs: BTreeMap<String, Value>,
}

/// The method of finding tool calls in answers.
#[derive(Clone, Debug, Default)]
pub enum CallParsing {
    /// Tool calls are not searched for.
    #[default]
    Disabled,
    /// The model's call format is unknown, for this reason.
    Unavailable(String),
    Form(&'static CallForm),
}
