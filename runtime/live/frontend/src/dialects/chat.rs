//! Answers of chats, complete or in chunks. Chat completions serialize them directly; the other APIs translate
//! them.

use serde::Serialize;
use serde_json::Value;

use crate::generate::{StopCause, Usage};
use crate::media::IMAGE_URL;
use crate::parse::Part;

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Content {
    Text(String),
    /// A text and an image.
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentPart {
    Text { text: String },
    ImageUrl { image_url: ImageUrl },
}

#[derive(Debug, Serialize)]
pub(crate) struct ImageUrl {
    url: &'static str,
}

impl Content {
    fn image() -> ContentPart {
        ContentPart::ImageUrl { image_url: ImageUrl { url: IMAGE_URL } }
    }
}

fn push_text(content: &mut Option<Content>, text: &str) {
    match content.get_or_insert_with(|| Content::Text(String::new())) {
        Content::Text(all) => all.push_str(text),
        Content::Parts(parts) => parts.push(ContentPart::Text { text: text.to_owned() }),
    }
}

/// The content, if it is a non-empty text.
fn text_of(content: Option<&Content>) -> Option<&str> {
    match content {
        Some(Content::Text(text)) => shown(Some(text)),
        _ => None,
    }
}

fn shown(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

/// The message of a complete answer.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Message {
    role: String,
    content: Option<Content>,
    refusal: Option<String>,
    annotations: Option<Value>,
    audio: Option<Value>,
    function_call: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<Call>,
    pub(crate) reasoning: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Call {
    /// The call's id, which the tool result repeats.
    pub(crate) id: String,
    r#type: &'static str,
    pub(crate) function: CalledFunction,
}

#[derive(Debug, Serialize)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// JSON text. It is incomplete if the answer was cut.
    pub(crate) arguments: String,
}

impl Call {
    /// Creates a call with empty arguments.
    pub(crate) fn new(id: String, name: String) -> Self {
        Self { id, r#type: "function", function: CalledFunction { name, arguments: String::new() } }
    }
}

impl Message {
    pub(crate) fn new(role: &str, parts: impl IntoIterator<Item = Part>) -> Self {
        let mut message = Self { role: role.to_owned(), ..Self::default() };
        for part in parts {
            match part {
                Part::Text(text) => push_text(&mut message.content, &text),
                Part::Reasoning(text) => message.reasoning.get_or_insert_default().push_str(&text),
                Part::Call { id, name, .. } => message.tool_calls.push(Call::new(id, name)),
                Part::Arguments { text, .. } => {
                    if let Some(call) = message.tool_calls.last_mut() {
                        call.function.arguments.push_str(&text);
                    }
                }
            }
        }
        message
    }

    pub(crate) fn add_image(&mut self) {
        let text = match self.content.take() {
            Some(Content::Text(text)) => Some(ContentPart::Text { text }),
            _ => None,
        };
        self.content = Some(Content::Parts(text.into_iter().chain([Content::image()]).collect()));
    }

    /// The text, unless it is empty.
    pub(super) fn text(&self) -> Option<&str> {
        text_of(self.content.as_ref())
    }

    /// The reasoning, unless it is empty.
    pub(super) fn reasoning(&self) -> Option<&str> {
        shown(self.reasoning.as_ref())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ChatLogprob {
    pub(crate) bytes: Vec<u8>,
    pub(crate) logprob: f64,
    pub(crate) token: String,
    /// The most likely tokens at this position. None within this list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_logprobs: Option<Vec<Self>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ChoiceLogprobs {
    pub(crate) content: Vec<ChatLogprob>,
}

/// A complete answer.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) message: Message,
    pub(crate) logprobs: Option<ChoiceLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<StopCause>,
    pub(crate) token_ids: Option<Vec<u32>>,
    pub(crate) routed_experts: Option<String>,
    pub(crate) weight_versions: Option<Value>,
}

/// An addition to a message.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Content>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallDelta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
}

/// An addition to a tool call: first its id and name, then its arguments.
#[derive(Debug, Serialize)]
pub(crate) struct CallDelta {
    /// The index of the call in the answer.
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    pub(crate) function: FunctionDelta,
}

#[derive(Debug, Serialize)]
pub(crate) struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
}

impl CallDelta {
    /// The additional arguments, unless they are empty.
    pub(super) fn arguments(&self) -> Option<&str> {
        shown(self.function.arguments.as_ref())
    }
}

impl Delta {
    /// The first delta of a message.
    pub(crate) fn of_role(role: &str) -> Self {
        Self { role: Some(role.to_owned()), ..Self::default() }
    }

    /// An image after the text.
    pub(crate) fn of_image() -> Self {
        Self { content: Some(Content::Parts(vec![Content::image()])), ..Self::default() }
    }

    pub(crate) fn add(&mut self, part: Part) {
        match part {
            Part::Text(text) => push_text(&mut self.content, &text),
            Part::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
            Part::Call { index, id, name } => self.tool_calls.push(CallDelta {
                index,
                id: Some(id),
                r#type: Some("function"),
                function: FunctionDelta { name: Some(name), arguments: None },
            }),
            Part::Arguments { index, text } => self.tool_calls.push(CallDelta {
                index,
                id: None,
                r#type: None,
                function: FunctionDelta { name: None, arguments: Some(text) },
            }),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.content.is_none() && self.reasoning.is_none() && self.tool_calls.is_empty()
    }

    /// The text, unless it is empty.
    pub(super) fn text(&self) -> Option<&str> {
        text_of(self.content.as_ref())
    }

    /// The reasoning, unless it is empty.
    pub(super) fn reasoning(&self) -> Option<&str> {
        shown(self.reasoning.as_ref())
    }
}

/// A choice in a chunk of a streamed answer.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: Delta,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprobs: Option<ChoiceLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<StopCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Default)]
pub(crate) struct ChatChunk {
    /// None if the chunk contains only usage.
    pub(crate) choice: Option<ChunkChoice>,
    pub(crate) usage: Option<Usage>,
    pub(crate) modality: Option<&'static str>,
}

#[cfg(test)]
impl ChatChunk {
    pub(super) fn of(parts: impl IntoIterator<Item = Part>) -> Self {
        let mut choice = ChunkChoice::default();
        parts.into_iter().for_each(|part| choice.delta.add(part));
        Self { choice: Some(choice), ..Self::default() }
    }

    pub(super) fn text(text: &str) -> Self {
        Self::of([Part::Text(text.to_owned())])
    }

    /// The first chunk of a call.
    pub(super) fn call(index: usize, id: &str, name: &str) -> Self {
        Self::of([Part::Call { index, id: id.to_owned(), name: name.to_owned() }])
    }

    /// Additional arguments of a call.
    pub(super) fn arguments(index: usize, text: &str) -> Self {
        Self::of([Part::Arguments { index, text: text.to_owned() }])
    }

    /// Makes this the last chunk of its answer, with the finish reason.
    pub(super) fn ending(mut self, reason: &'static str, stop: Option<StopCause>) -> Self {
        let choice = self.choice.get_or_insert_default();
        (choice.finish_reason, choice.stop_reason) = (Some(reason), stop);
        self
    }

    /// A chunk with usage only.
    pub(super) fn counts(prompt_tokens: usize, completion_tokens: usize) -> Self {
        Self { usage: Some(Usage::new(prompt_tokens, completion_tokens, None)), ..Self::default() }
    }
}
