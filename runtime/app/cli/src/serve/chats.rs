//! Options of chats: reasoning, tools and template variables.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;
use vcr_frontend::{CallParsing, ChatOptions, Model};
use vcr_text::tools::CallForm;
use vcr_text::{ChatTemplate, ReasoningForm, Value};

use crate::play::unusable::Unusable;

#[derive(Debug, Args)]
#[command(next_help_heading = "Chats")]
pub(crate) struct ChatArgs {
    /// vLLM's parser of tool calls; `auto` follows the model's name, `none` finds no calls.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) tool_call_parser: String,

    /// vLLM's parser of reasoning; `auto` follows the model's name, `none` finds no reasoning.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) reasoning_parser: String,

    /// Accepted and ignored: tool calls are always enabled.
    #[arg(long)]
    pub(crate) enable_auto_tool_choice: bool,

    /// Probability of a tool call if `tool_choice` is `auto` and the last message is not a tool result.
    #[arg(long, value_name = "P", default_value_t = 0.5, value_parser = probability)]
    pub(crate) tool_call_probability: f64,

    /// Length of reasoning in tokens: a number or a distribution as in scenarios, but at most half
    /// of `max_tokens` [default: a few sentences].
    #[arg(long, value_name = "COUNT")]
    pub(crate) reasoning_tokens: Option<String>,

    /// Chat template, as a file or as its text [default: MODEL's].
    #[arg(long, value_name = "FILE|TEXT")]
    pub(crate) chat_template: Option<String>,

    /// Role of answers to chats.
    #[arg(long, value_name = "NAME", default_value = "assistant")]
    pub(crate) response_role: String,

    /// Leave tools out of the prompt if `tool_choice` is `none`.
    #[arg(long)]
    pub(crate) exclude_tools_when_tool_choice_none: bool,

    /// Variables of the chat template, as JSON; a request's variables override them.
    #[arg(long, value_name = "JSON", value_parser = kwargs)]
    pub(crate) default_chat_template_kwargs: Option<Kwargs>,
}

/// Variables of a chat template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kwargs(BTreeMap<String, Value>);

pub(crate) fn probability(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number.filter(|number| (0.0..=1.0).contains(number)).ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

fn kwargs(text: &str) -> Result<Kwargs, String> {
    serde_json::from_str(text).map(Kwargs).map_err(|error| format!("expected a JSON object: {error}"))
}

/// Replaces the model's chat template, if the options have one.
pub(crate) fn replace_template(args: &ChatArgs, model: &mut Model) -> Result<(), Unusable> {
    let Some(given) = &args.chat_template else { return Ok(()) };
    let unusable = |reason: String| Unusable::new(format!("invalid --chat-template: {reason}"));
    let path = Path::new(given);
    let is_text = given.contains(['{', '}', '\n']) && !path.is_file();
    let source = if is_text {
        given.clone()
    } else {
        let limit = vcr_base::input::MAX_CONFIG_BYTES;
        vcr_base::input::read_text(path, limit)
            .map_err(|error| unusable(format!("expected a file or a template: {error}")))?
    };
    let template = match &model.template {
        Some(template) => template.with_source(&source),
        None => ChatTemplate::new(&source, BTreeMap::new()),
    };
    let template = template.and_then(|template| template.check().map(|()| template));
    model.template = Some(template.map_err(|error| unusable(error.to_string()))?);
    Ok(())
}

/// Chat settings for this model. The built-in model has no name to choose parsers by.
pub(crate) fn options(args: &ChatArgs, model: &Model, is_builtin: bool) -> Result<ChatOptions, Unusable> {
    Ok(ChatOptions {
        reasoning: reasoning(&args.reasoning_parser, model, is_builtin)?,
        calls: calls(&args.tool_call_parser, model, is_builtin)?,
        call_probability: args.tool_call_probability,
        response_role: Some(args.response_role.clone()),
        excludes_unused_tools: args.exclude_tools_when_tool_choice_none,
        template_kwargs: args.default_chat_template_kwargs.clone().unwrap_or_default().0,
    })
}

fn reasoning(name: &str, model: &Model, is_builtin: bool) -> Result<Option<ReasoningForm>, Unusable> {
    let named = |name: &str| ReasoningForm::named(name, &model.tokenizer);
    match name {
        "none" => Ok(None),
        // The built-in tokenizer lacks the special tokens of the model that it is named after.
        "auto" if is_builtin => Ok(None),
        "auto" => Ok(ReasoningForm::name_for(&model.root).and_then(|name| named(name).ok())),
        name => named(name)
            .map(Some)
            .map_err(|error| Unusable::new(format!("invalid --reasoning-parser `{name}`: {error}"))),
    }
}

fn calls(name: &str, model: &Model, is_builtin: bool) -> Result<CallParsing, Unusable> {
    let name = match name {
        "none" => return Ok(CallParsing::Disabled),
        "auto" if is_builtin => "hermes",
        "auto" => match CallForm::name_for(&model.root) {
            Some(name) => name,
            None => return Ok(CallParsing::Unavailable(model.root.clone())),
        },
        name => name,
    };
    CallForm::named(name)
        .map(CallParsing::Form)
        .map_err(|problem| Unusable::new(format!("invalid --tool-call-parser `{name}`: {problem}")))
}
