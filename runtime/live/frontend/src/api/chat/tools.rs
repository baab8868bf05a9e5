//! The tools and tool choice of a chat, by vLLM's rules.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::value::RawValue;
use vcr_text::Value as Templated;
use vcr_text::tools::{CallForm, Tool};

use crate::api::request::structured;
use crate::generate::{EngineSubmission, OptionalStructure};
use crate::parse::ArgumentTypes;
use crate::server::chats::{CallParsing, ChatOptions};
use crate::server::error::ApiError;

#[derive(Clone, Debug, Deserialize)]
pub(in crate::api) struct OfferedTool {
    #[serde(rename = "type", default = "function")]
    kind: String,
    function: Function,
    defer_loading: Option<bool>,
}

fn function() -> String {
    "function".to_owned()
}

/// A function that a request offers. Templates get the same fields.
#[derive(Clone, Debug, Deserialize)]
struct Function {
    name: String,
    description: Option<String>,
    /// A JSON schema. Its keys keep their order.
    #[serde(default = "nothing")]
    parameters: Templated,
    strict: Option<bool>,
    defer_loading: Option<bool>,
}

fn nothing() -> Templated {
    Templated::from(())
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(in crate::api) enum ToolChoice {
    Value(ToolChoiceValue),
    Function {
        #[serde(rename = "type")]
        tool_type: String,
        function: FunctionChoice,
    },
    AllowedTools {
        #[serde(rename = "type")]
        _tool_type: String,
        #[serde(rename = "mode")]
        _mode: String,
        tools: Vec<serde_json::Value>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::api) enum ToolChoiceValue {
    Auto,
    Required,
    None,
}

#[derive(Clone, Debug, Deserialize)]
pub(in crate::api) struct FunctionChoice {
    name: String,
}

/// The tool choice after validation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    None,
    Auto,
    Required,
    Named(String),
}

#[derive(Debug)]
pub(in crate::api) struct ToolContext {
    /// The first `of_request` functions are from the request, the others from its messages.
    offered: Vec<Function>,
    of_request: usize,
    choice: Choice,
    is_parallel: bool,
    /// Whether there is a tool result after the last assistant message.
    has_result: bool,
}

impl ToolContext {
    /// Validates the tools of a request and its messages, and the tool choice.
    pub(in crate::api) fn new(
        tools: Option<Vec<OfferedTool>>,
        messages: &[Templated],
        choice: Option<&ToolChoice>,
        is_parallel: bool,
    ) -> Result<Self, ApiError> {
        let mut offered = functions(tools.unwrap_or_default(), "tools")?;
        let of_request = offered.len();
        for message in messages.iter().filter(|message| is_role(message, "developer")) {
            let own = message.get_attr("tools").ok().filter(|tools| !tools.is_undefined() && !tools.is_none());
            let Some(own) = own else { continue };
            let read: Vec<OfferedTool> = serde_json::to_value(own)
                .and_then(serde_json::from_value)
                .map_err(|error| ApiError::invalid_param("messages", format!("messages[].tools: {error}")))?;
            offered.extend(functions(read, "messages[].tools")?);
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = offered.iter().find(|tool| !names.insert(tool.name.as_str())) {
            return Err(ApiError::invalid(format!("duplicate tool name `{}`", twice.name)));
        }
        let choice = match choice {
            None if offered.is_empty() => Choice::None,
            None => Choice::Auto,
            Some(choice) => choice.read()?,
        };
        match &choice {
            Choice::Auto | Choice::Required if offered.is_empty() => {
                return Err(ApiError::invalid("tool_choice requires at least one available tool"));
            }
            Choice::Named(name) if !names.contains(name.as_str()) => {
                let message = format!("tool_choice function `{name}` was not found in the available tools");
                return Err(ApiError::invalid(message));
            }
            _ => {}
        }
        let last = messages.iter().rev().take_while(|message| !is_role(message, "assistant"));
        let has_result = last.into_iter().any(|message| is_role(message, "tool"));
        Ok(Self { offered, of_request, choice, is_parallel, has_result })
    }

    /// The tools for the template.
    pub(in crate::api) fn templated(&self, options: &ChatOptions) -> Option<Vec<Templated>> {
        let is_unused = options.excludes_unused_tools && self.choice == Choice::None;
        let shown = &self.offered[if is_unused { self.of_request } else { 0 }..];
        let entry = |tool: &Function| {
            Templated::from_pairs([("type", Templated::from("function")), ("function", tool.templated())])
        };
        (!shown.is_empty()).then(|| shown.iter().map(entry).collect())
    }

    /// The format of tool calls to look for in the answer. None if the answer can have no calls.
    pub(in crate::api) fn form(&self, options: &ChatOptions) -> Result<Option<&'static CallForm>, ApiError> {
        if self.choice == Choice::None || self.offered.is_empty() {
            return Ok(None);
        }
        let refused = |problem: String| Err(ApiError::internal(format!("failed to submit chat request: {problem}")));
        match &options.calls {
            CallParsing::Form(form) => Ok(Some(*form)),
            CallParsing::Disabled => refused("tool parsing is disabled by frontend configuration".to_owned()),
            CallParsing::Unavailable(model) => refused(format!("tool parsing is not available for model `{model}`")),
        }
    }

    /// The types of the tools' arguments.
    pub(in crate::api) fn types(&self) -> ArgumentTypes {
        ArgumentTypes::new(&self.offered.iter().map(Function::tool).collect::<Vec<_>>())
    }

    /// The maximum number of calls that an answer returns.
    pub(in crate::api) fn calls_max(&self) -> usize {
        if self.is_parallel { usize::MAX } else { 1 }
    }

    /// Whether the request names the tool to call. Then the finish reason is never `tool_calls`.
    pub(in crate::api) fn is_named(&self) -> bool {
        matches!(self.choice, Choice::Named(_))
    }

    /// Whether the model decides if it calls a tool. vLLM counts parsed answers only in this case.
    pub(in crate::api) fn is_auto(&self) -> bool {
        self.choice == Choice::Auto
    }

    /// Constrains the answer to a tool call: always if the tool choice requires one, otherwise with the configured
    /// probability. Unless a call is required, a tool result is answered with text.
    pub(in crate::api) fn constrain(&self, form: &CallForm, options: &ChatOptions, asked: &mut EngineSubmission) {
        let is_named = |tool: &&Function| !matches!(&self.choice, Choice::Named(name) if *name != tool.name);
        let tools: Vec<Tool> = self.offered.iter().filter(is_named).map(Function::tool).collect();
        let may_repeat = self.is_parallel && !self.is_named();
        let structured_outputs = structured::tag(form.constraint(tools.iter(), may_repeat));
        match (&self.choice, asked.request.sampling_params.as_mut()) {
            (Choice::Required | Choice::Named(_), Some(params)) => {
                params.structured_outputs = Some(structured_outputs);
            }
            (Choice::Auto, _) if options.call_probability > 0.0 && !self.has_result => {
                asked.chance = Some(OptionalStructure {
                    probability: options.call_probability,
                    structured_outputs,
                    refusal: None,
                });
            }
            _ => {}
        }
    }
}

impl ToolChoice {
    fn read(&self) -> Result<Choice, ApiError> {
        match self {
            Self::Value(ToolChoiceValue::Auto) => Ok(Choice::Auto),
            Self::Value(ToolChoiceValue::None) => Ok(Choice::None),
            Self::Value(ToolChoiceValue::Required) => Ok(Choice::Required),
            Self::Function { tool_type, function } if tool_type == "function" => {
                Ok(Choice::Named(function.name.clone()))
            }
            Self::Function { .. } => Err(ApiError::invalid(format!("tool_choice={self:?} is not supported yet."))),
            Self::AllowedTools { tools, .. } => {
                let name = |tool: &serde_json::Value| {
                    let text = |key: &str| tool[key].as_str().unwrap_or_default();
                    format!("{}:{}", text("type"), text("name"))
                };
                let names: Vec<String> = tools.iter().map(name).collect();
                let message = format!("allowed_tools tool_choice is not supported yet: {}.", names.join(", "));
                Err(ApiError::invalid(message))
            }
        }
    }
}

impl Function {
    fn templated(&self) -> Templated {
        let text = |text: &Option<String>| text.as_deref().map_or(Templated::from(()), Templated::from);
        let mut pairs = vec![
            ("name", Templated::from(self.name.as_str())),
            ("description", text(&self.description)),
            ("parameters", self.parameters.clone()),
        ];
        pairs.extend(self.strict.map(|strict| ("strict", strict.into())));
        pairs.extend(self.defer_loading.map(|is_deferred| ("defer_loading", is_deferred.into())));
        Templated::from_pairs(pairs)
    }

    fn tool(&self) -> Tool {
        let schema = serde_json::to_string(&self.parameters).ok().filter(|schema| schema != "null");
        Tool { name: self.name.clone(), parameters: schema.and_then(|schema| RawValue::from_string(schema).ok()) }
    }
}

fn is_role(message: &Templated, role: &str) -> bool {
    message.get_attr("role").is_ok_and(|own| own.as_str() == Some(role))
}

fn functions(tools: Vec<OfferedTool>, param: &'static str) -> Result<Vec<Function>, ApiError> {
    if tools.iter().any(|tool| tool.kind != "function") {
        return Err(ApiError::invalid_param(param, "Only function tools are supported."));
    }
    let function = |tool: OfferedTool| Function {
        defer_loading: tool.function.defer_loading.or(tool.defer_loading),
        ..tool.function
    };
    Ok(tools.into_iter().map(function).collect())
}
