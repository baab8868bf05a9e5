//! Settings of chats.

use std::collections::BTreeMap;

use vcr_text::tools::CallForm;
use vcr_text::{ReasoningForm, Value};

/// Settings of chats.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// How the model writes its reasoning, if that is separated.
    pub reasoning: Option<ReasoningForm>,
    /// How calls of tools are found.
    pub calls: CallParsing,
    /// The probability of a call where a request leaves that to the model.
    pub call_probability: f64,
    /// The role of answers, unless it is `assistant`.
    pub response_role: Option<String>,
    /// Leave tools out of prompts of requests that want no calls.
    pub excludes_unused_tools: bool,
    /// Variables of the chat template that requests may override.
    pub template_kwargs: BTreeMap<String, Value>,
}

/// How calls of tools are found in answers.
#[derive(Clone, Debug, Default)]
pub enum CallParsing {
    /// They are not.
    #[default]
    Disabled,
    /// It is not known how this model writes them.
    Unavailable(String),
    Form(&'static CallForm),
}
