//! Chat templates, rendered as Transformers and vLLM do.

mod environment;
mod messages;
mod processes;

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::{Environment, Value};
use serde::{Deserialize, Serialize};

use crate::{TemplateError, TemplateErrorKind};
use environment::{NAME, failed, fixed_clock};
pub use processes::{render_in_processes, serve as serve_renderings};

/// Form of a message's content in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// A text: lists of parts are joined to one.
    String,
    /// A list of parts, as in OpenAI's API: a text becomes a list of one part.
    Parts,
}

/// One chat to be rendered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TemplateRequest {
    /// The messages, a list of maps. Values that are read as [`Value`] by serde keep
    /// the order of their keys.
    pub messages: Value,
    /// The tools, if any: a list of maps.
    pub tools: Option<Value>,
    /// Documents, if any: a list of maps.
    pub documents: Option<Value>,
    /// Whether the beginning of an answer follows the messages.
    pub add_generation_prompt: bool,
    /// Whether the last message is to be continued rather than closed.
    pub continue_final_message: bool,
    /// Further variables (`chat_template_kwargs`).
    pub kwargs: BTreeMap<String, Value>,
    /// The time that the template sees, in seconds since 1970; `strftime_now` fails
    /// without one.
    pub now_s: Option<i64>,
}

/// A compiled chat template. Clones share it.
#[derive(Clone)]
pub struct ChatTemplate(Arc<Inner>);

/// The compiled contents.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Compiled {
    source: String,
    special_texts: BTreeMap<String, String>,
}

struct Inner {
    environment: Environment<'static>,
    compiled: Compiled,
    content: ContentFormat,
    /// It is our own, which needs no limits but its fuel.
    is_builtin: bool,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.0.compiled.source).finish_non_exhaustive()
    }
}

/// Marks the end of a continued message; the space, as in Transformers, shows whether the template
/// trims texts.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl ChatTemplate {
    /// The built-in template, in the manner of ChatML.
    #[must_use]
    pub fn builtin() -> Self {
        let texts = crate::builtin::Builtin::new().special_texts();
        match Self::compiled(include_str!("template/builtin.jinja"), texts, true) {
            Ok(template) => template,
            Err(error) => panic!("the built-in template compiles: {error}"),
        }
    }

    /// Compiles a template. `special_texts` are `bos_token` and the like.
    pub fn new(source: &str, special_texts: BTreeMap<String, String>) -> Result<Self, TemplateError> {
        Self::compiled(source, special_texts, false)
    }

    fn compiled(
        source: &str,
        special_texts: BTreeMap<String, String>,
        is_builtin: bool,
    ) -> Result<Self, TemplateError> {
        let mut inner = Inner::new(Compiled { source: source.to_owned(), special_texts })?;
        inner.is_builtin = is_builtin;
        inner.content = messages::detected_format(|messages| {
            let request = TemplateRequest { messages, now_s: Some(0), ..TemplateRequest::default() };
            inner.render(&request.messages, &request)
        });
        Ok(Self(Arc::new(inner)))
    }

    /// Another template with the same special texts.
    pub fn with_source(&self, source: &str) -> Result<Self, TemplateError> {
        Self::new(source, self.0.compiled.special_texts.clone())
    }

    /// The template's source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.0.compiled.source
    }

    /// Whether a rendering waits for another process ([`render_in_processes`]).
    #[must_use]
    pub fn waits(&self) -> bool {
        self.0.is_isolated()
    }

    /// Form of a message's content in the template.
    #[must_use]
    pub fn content_format(&self) -> ContentFormat {
        self.0.content
    }

    /// Renders a short chat, so that a template that could serve none is known at the start.
    ///
    /// # Errors
    /// When it takes too much work, or asks for another file. What it refuses itself, or misses in
    /// this chat, it may find in others.
    pub fn check(&self) -> Result<(), TemplateError> {
        let message = Value::from_pairs([("role", "user"), ("content", "a")]);
        let request = TemplateRequest {
            messages: std::iter::once(message).collect(),
            add_generation_prompt: true,
            now_s: Some(0),
            ..TemplateRequest::default()
        };
        match self.render_chat(&request) {
            Err(error) if matches!(error.kind, TemplateErrorKind::Limit | TemplateErrorKind::File) => Err(error),
            _ => Ok(()),
        }
    }

    /// Renders a chat as vLLM does: contents are brought into the template's format
    /// and arguments of tool calls are parsed before.
    ///
    /// # Errors
    /// When the template fails or takes too much work, or there is nothing to continue.
    pub fn render_chat(&self, request: &TemplateRequest) -> Result<String, TemplateError> {
        let messages = messages::prepared(&request.messages, self.0.content)?;
        self.render(&TemplateRequest { messages, ..request.clone() })
    }

    /// Renders messages as they are, as Transformers' `apply_chat_template` does.
    ///
    /// # Errors
    /// When the template fails or takes too much work, or there is nothing to continue.
    pub fn render(&self, request: &TemplateRequest) -> Result<String, TemplateError> {
        let messages = messages::with_reasoning_aliases(&request.messages);
        if !request.continue_final_message {
            return self.0.render(&messages, request);
        }
        let (tagged, last) = messages::tagged(&messages, CONTINUE_TAG)?;
        let mut text = self.0.render(&tagged, request)?;
        let (tag, last) = (CONTINUE_TAG.trim(), last.as_str().unwrap_or_default().trim());
        let at = text.rfind(tag).filter(|_| text.contains(last)).ok_or_else(|| {
            refused(
                "continue_final_message is set but the final message does not appear in the chat after applying \
                     the chat template",
            )
        })?;
        let is_spaced = text[at..].starts_with(CONTINUE_TAG);
        text.truncate(at);
        if !is_spaced {
            text.truncate(text.trim_end().len());
        }
        Ok(text)
    }
}

fn refused(reason: &str) -> TemplateError {
    TemplateError { kind: TemplateErrorKind::Request, line: None, reason: reason.to_owned() }
}

impl Inner {
    fn new(compiled: Compiled) -> Result<Self, TemplateError> {
        let environment = environment::compiled(&compiled.source)?;
        Ok(Self { environment, compiled, content: ContentFormat::String, is_builtin: false })
    }

    fn is_isolated(&self) -> bool {
        !self.is_builtin && processes::is_isolated()
    }

    fn render(&self, messages: &Value, request: &TemplateRequest) -> Result<String, TemplateError> {
        let request = TemplateRequest { messages: messages.clone(), ..request.clone() };
        if self.is_isolated() {
            return processes::rendered(&processes::Job { template: self.compiled.clone(), request });
        }
        self.rendered_here(&request)
    }

    /// Renders in this process.
    fn rendered_here(&self, request: &TemplateRequest) -> Result<String, TemplateError> {
        let or_none = |value: &Option<Value>| value.clone().unwrap_or(Value::from(()));
        let mut context: BTreeMap<String, Value> =
            self.compiled.special_texts.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str()))).collect();
        context.insert("messages".to_owned(), request.messages.clone());
        context.insert("tools".to_owned(), or_none(&request.tools));
        context.insert("documents".to_owned(), or_none(&request.documents));
        context.insert("add_generation_prompt".to_owned(), Value::from(request.add_generation_prompt));
        context.extend(request.kwargs.iter().map(|(name, value)| (name.clone(), value.clone())));
        let context = Value::from_pairs(context);
        let rendered = match request.now_s {
            Some(now_s) if self.compiled.source.contains("strftime_now") => {
                let mut environment = self.environment.clone();
                fixed_clock(&mut environment, now_s);
                environment.get_template(NAME).and_then(|template| template.render(context))
            }
            _ => self.environment.get_template(NAME).and_then(|template| template.render(context)),
        };
        rendered.map_err(|error| failed(&error))
    }
}
