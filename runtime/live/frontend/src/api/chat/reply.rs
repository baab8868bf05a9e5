//! Messages of chats out of the parts of answers.

use serde::Serialize;
use serde_json::Value;

use crate::generate::Span;
use crate::media::IMAGE_URL;
use crate::parse::{Parser, Part};

/// The content of a message.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    /// A text and an image.
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentPart {
    Text { text: String },
    ImageUrl { image_url: ImageUrl },
}

#[derive(Debug, Serialize)]
struct ImageUrl {
    url: &'static str,
}

impl Content {
    fn image() -> ContentPart {
        ContentPart::ImageUrl { image_url: ImageUrl { url: IMAGE_URL } }
    }
}

/// Adds to the text of a message.
fn push_text(content: &mut Option<Content>, text: &str) {
    match content.get_or_insert_with(|| Content::Text(String::new())) {
        Content::Text(all) => all.push_str(text),
        Content::Parts(parts) => parts.push(ContentPart::Text { text: text.to_owned() }),
    }
}

/// The message of a whole answer.
#[derive(Debug, Default, Serialize)]
pub(in crate::api) struct Message {
    role: String,
    content: Option<Content>,
    refusal: Option<String>,
    annotations: Option<Value>,
    audio: Option<Value>,
    function_call: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
    reasoning: Option<String>,
}

#[derive(Debug, Serialize)]
struct Call {
    id: String,
    r#type: &'static str,
    function: CalledFunction,
}

#[derive(Debug, Serialize)]
struct CalledFunction {
    name: String,
    arguments: String,
}

/// A whole answer in its parts.
#[derive(Debug)]
pub(in crate::api) struct Reply {
    message: Message,
    pub(in crate::api) reasoning_tokens: usize,
}

impl Reply {
    /// Reads a whole answer.
    pub(in crate::api) fn read(role: &str, mut parser: Parser, text: &str, spans: &[Span]) -> Self {
        let mut message = Message { role: role.to_owned(), ..Message::default() };
        let mut parts = parser.push(text, spans);
        parts.extend(parser.finish());
        for part in parts {
            match part {
                Part::Text(text) => push_text(&mut message.content, &text),
                Part::Reasoning(text) => message.reasoning.get_or_insert_default().push_str(&text),
                Part::Call { id, name, .. } => {
                    let function = CalledFunction { name, arguments: String::new() };
                    message.tool_calls.push(Call { id, r#type: "function", function });
                }
                Part::Arguments { text, .. } => {
                    if let Some(call) = message.tool_calls.last_mut() {
                        call.function.arguments.push_str(&text);
                    }
                }
            }
        }
        Self { message, reasoning_tokens: parser.reasoning_tokens() }
    }

    /// Whether it calls tools.
    pub(in crate::api) fn has_calls(&self) -> bool {
        !self.message.tool_calls.is_empty()
    }

    /// Adds an image behind its text.
    pub(in crate::api) fn add_image(&mut self) {
        let text = match self.message.content.take() {
            Some(Content::Text(text)) => Some(ContentPart::Text { text }),
            _ => None,
        };
        self.message.content = Some(Content::Parts(text.into_iter().chain([Content::image()]).collect()));
    }

    /// Whether tokens may be shown: not where they are of reasoning that is not.
    pub(in crate::api) fn shows_tokens(&self, include_reasoning: bool) -> bool {
        include_reasoning || self.message.reasoning.is_none()
    }

    /// Its message.
    pub(in crate::api) fn message(self, include_reasoning: bool) -> Message {
        let reasoning = self.message.reasoning.filter(|_| include_reasoning);
        Message { reasoning, ..self.message }
    }
}

/// More of a message.
#[derive(Debug, Default, Serialize)]
pub(in crate::api) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::api) role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Content>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
}

#[derive(Debug, Serialize)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Debug, Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
}

impl Delta {
    /// Whether it has a call, or a part of one.
    pub(in crate::api) fn has_calls(&self) -> bool {
        !self.tool_calls.is_empty()
    }

    /// The first of a message.
    pub(in crate::api) fn of_role(role: &str) -> Self {
        Self { role: Some(role.to_owned()), ..Self::default() }
    }

    /// An image behind the text.
    pub(in crate::api) fn of_image() -> Self {
        Self { content: Some(Content::Parts(vec![Content::image()])), ..Self::default() }
    }

    fn add(&mut self, part: Part) {
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

    fn is_empty(&self) -> bool {
        self.content.is_none() && self.reasoning.is_none() && self.tool_calls.is_empty()
    }
}

/// An answer that is read as it comes.
pub(in crate::api) struct Progress {
    parser: Parser,
    include_reasoning: bool,
    /// Chunks are one for each update of the engine, rather than one for each part.
    is_combined: bool,
    is_in_reasoning: bool,
    has_calls: bool,
}

/// Additions of an update to an answer's message.
pub(in crate::api) struct Update {
    pub(in crate::api) deltas: Vec<Delta>,
    /// Whether the tokens of the update may be shown.
    pub(in crate::api) shows_tokens: bool,
}

impl Progress {
    pub(in crate::api) fn new(parser: Parser, include_reasoning: bool, is_combined: bool) -> Self {
        Self { parser, include_reasoning, is_combined, is_in_reasoning: false, has_calls: false }
    }

    /// The reasoning so far, in tokens.
    pub(in crate::api) fn reasoning_tokens(&self) -> usize {
        self.parser.reasoning_tokens()
    }

    /// Whether the text so far ends with reasoning.
    pub(in crate::api) fn is_in_reasoning(&self) -> bool {
        self.is_in_reasoning
    }

    /// Whether it calls tools.
    pub(in crate::api) fn has_calls(&self) -> bool {
        self.has_calls
    }

    /// Takes more of the text.
    pub(in crate::api) fn push(&mut self, text: &str, spans: &[Span]) -> Update {
        let was_in_reasoning = self.is_in_reasoning;
        let parts = self.parser.push(text, spans);
        let has_reasoning = parts.iter().any(|part| matches!(part, Part::Reasoning(_)));
        let shows_tokens = self.include_reasoning || !(was_in_reasoning || has_reasoning);
        Update { deltas: self.deltas(parts), shows_tokens }
    }

    /// Takes its end.
    pub(in crate::api) fn finish(&mut self) -> Vec<Delta> {
        let parts = self.parser.finish();
        self.deltas(parts)
    }

    fn deltas(&mut self, parts: Vec<Part>) -> Vec<Delta> {
        let mut deltas: Vec<Delta> = Vec::new();
        for part in parts {
            self.is_in_reasoning = matches!(part, Part::Reasoning(_));
            self.has_calls |= matches!(part, Part::Call { .. });
            if self.is_in_reasoning && !self.include_reasoning {
                continue;
            }
            if !self.is_combined || deltas.is_empty() {
                deltas.push(Delta::default());
            }
            if let Some(delta) = deltas.last_mut() {
                delta.add(part);
            }
        }
        deltas.retain(|delta| !delta.is_empty());
        deltas
    }
}
