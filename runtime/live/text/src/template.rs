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

/// The form in which a template expects the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// A string. Lists of parts are joined.
    String,
    /// A list of parts, as in OpenAI's API. A string becomes a list of one part.
    Parts,
}

/// One chat to be rendered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TemplateRequest {
    /// The messages: a list of maps. Deserialized [`Value`]s keep the order of keys.
    pub messages: Value,
    /// The tools, if any: a list of maps.
    pub tools: Option<Value>,
    /// Documents, if any: a list of maps.
    pub documents: Option<Value>,
    /// Whether to append the start of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Whether to leave the last message open, so that the model continues it.
    pub continue_final_message: bool,
    /// Further variables (`chat_template_kwargs`).
    pub kwargs: BTreeMap<String, Value>,
    /// The current time for the template, in seconds since 1970. Without it `strftime_now` fails.
    pub now_s: Option<i64>,
}

/// A compiled chat template. Clones share it.
#[derive(Clone)]
pub struct ChatTemplate(Arc<Inner>);

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Compiled {
    source: String,
    special_texts: BTreeMap<String, String>,
}

struct Inner {
    environment: Environment<'static>,
    compiled: Compiled,
    content: ContentFormat,
    /// Whether this is the built-in template, which needs no limit except its fuel.
    is_builtin: bool,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.0.compiled.source).finish_non_exhaustive()
    }
}

/// Marks the end of a continued message. As in Transformers, the trailing space shows whether the template trims
/// text.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl ChatTemplate {
    /// Returns the built-in template, which writes ChatML.
    #[must_use]
    pub fn builtin() -> Self {
        let texts = crate::builtin::Builtin::new().special_texts();
        match Self::compiled(include_str!("template/builtin.jinja"), texts, true) {
            Ok(template) => template,
            Err(error) => panic!("the built-in template compiles: {error}"),
        }
    }

    /// Compiles a template. `special_texts` are `bos_token`, `eos_token` and so on.
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

    /// Compiles another template with the same special texts.
    pub fn with_source(&self, source: &str) -> Result<Self, TemplateError> {
        Self::new(source, self.0.compiled.special_texts.clone())
    }

    /// The source of the template.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.0.compiled.source
    }

    /// Whether rendering waits for another process (see [`render_in_processes`]).
    #[must_use]
    pub fn waits(&self) -> bool {
        self.0.is_isolated()
    }

    /// The form in which the template expects the content of a message.
    #[must_use]
    pub fn content_format(&self) -> ContentFormat {
        self.0.content
    }

    /// Renders a short chat, to find unusable templates at startup.
    ///
    /// # Errors
    /// When the template exceeds a limit or refers to another file. Other errors are ignored: they may not occur in
    /// other chats.
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

    /// Renders a chat as vLLM does: message contents are converted to the template's format, and the arguments of
    /// tool calls are parsed first.
    ///
    /// # Errors
    /// When the template fails or exceeds a limit, or there is no message to continue.
    pub fn render_chat(&self, request: &TemplateRequest) -> Result<String, TemplateError> {
        let messages = messages::prepared(&request.messages, self.0.content)?;
        self.render(&TemplateRequest { messages, ..request.clone() })
    }

    /// Renders messages unchanged, as Transformers' `apply_chat_template` does.
    ///
    /// # Errors
    /// When the template fails or exceeds a limit, or there is no message to continue.
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
