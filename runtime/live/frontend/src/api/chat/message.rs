//! Checks that messages have the fields that their roles require, with vLLM's error texts.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use vcr_text::{Value as Templated, ValueKind};

use crate::server::error::ApiError;
use crate::server::frontend_kind::FrontendKind;

/// A message by role. Error messages contain the names of these types.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only the shape is checked")]
#[serde(tag = "role", rename_all = "lowercase")]
enum ChatMessage {
    System {
        content: MessageContent,
    },
    User {
        content: MessageContent,
    },
    Developer {
        content: MessageContent,
    },
    Assistant {
        content: Option<MessageContent>,
    },
    Tool {
        content: MessageContent,
        tool_call_id: String,
    },
    Function {
        content: String,
        name: String,
    },
    /// Templates may support other roles.
    #[serde(other)]
    Other,
}

/// A string, or a list of parts. Parts other than text are read elsewhere.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only the shape is checked")]
#[serde(untagged)]
enum MessageContent {
    Text(String),
    Parts(Vec<Part>),
}

struct Part;

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let part = Value::deserialize(deserializer)?;
        let is_text = part["type"] == "text";
        if part.is_object() && (!is_text || part["text"].is_string()) {
            return Ok(Self);
        }
        Err(D::Error::custom("a part is an object, and a text has a `text`"))
    }
}

/// A message that has the fields its role requires.
struct Checked(Templated);

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let message = Templated::deserialize(deserializer)?;
        if !has_shape(&message) {
            // Copy only a message with an unexpected shape, to get vLLM's error text.
            let json = serde_json::to_value(&message).map_err(D::Error::custom)?;
            ChatMessage::deserialize(json).map_err(D::Error::custom)?;
        }
        Ok(Self(message))
    }
}

/// Whether a message certainly deserializes as [`ChatMessage`]. Checks without a copy, because messages can be
/// large. A message that fails this check may still be valid.
fn has_shape(message: &Templated) -> bool {
    let attribute = |name: &str| message.get_attr(name).unwrap_or_default();
    let is_text = |name: &str| attribute(name).as_str().is_some();
    let content = attribute("content");
    message.kind() == ValueKind::Map
        && match attribute("role").as_str() {
            Some("system" | "user" | "developer") => is_content(&content),
            Some("assistant") => content.is_none() || content.is_undefined() || is_content(&content),
            Some("tool") => is_content(&content) && is_text("tool_call_id"),
            Some("function") => is_text("content") && is_text("name"),
            Some(_) => true,
            None => false,
        }
}

/// Whether a value certainly deserializes as [`MessageContent`].
fn is_content(content: &Templated) -> bool {
    let is_part = |part: Templated| {
        let attribute = |name: &str| part.get_attr(name).unwrap_or_default();
        let is_text = attribute("type").as_str() == Some("text");
        part.kind() == ValueKind::Map && (!is_text || attribute("text").as_str().is_some())
    };
    content.as_str().is_some()
        || (content.kind() == ValueKind::Seq && content.try_iter().is_ok_and(|mut parts| parts.all(is_part)))
}

pub(in crate::api) fn messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Templated>, D::Error> {
    let messages = Vec::<Checked>::deserialize(deserializer)?;
    Ok(messages.into_iter().map(|Checked(message)| message).collect())
}

/// Whether to add a generation prompt after the last message.
///
/// # Errors
/// When the request wants both a new answer and a continued last message, or there is no message to continue.
pub(in crate::api) fn generation_prompt(
    messages: &[Templated],
    add_generation_prompt: Option<bool>,
    continue_final_message: bool,
) -> Result<bool, ApiError> {
    let adds = add_generation_prompt.unwrap_or(!continue_final_message);
    if continue_final_message && adds {
        return Err(ApiError::invalid("Cannot set both `continue_final_message` and `add_generation_prompt` to True."));
    }
    let last_role = messages.last().and_then(|message| message.get_attr("role").ok());
    if continue_final_message && last_role.is_none_or(|role| role.as_str() != Some("assistant")) {
        return Err(ApiError::invalid(
            "Cannot set `continue_final_message` to True when the last message is not from the assistant.",
        ));
    }
    Ok(adds)
}

/// Messages as errors print them: as JSON, converted one at a time.
struct Printed<'a>(&'a [Templated]);

impl std::fmt::Debug for Printed<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Array ")?;
        let messages = self.0.iter().map(|message| serde_json::to_value(message).unwrap_or_default());
        out.debug_list().entries(messages).finish()
    }
}

/// Refuses messages that have the right fields but cannot be answered.
pub(in crate::api) fn check(messages: &[Templated], frontend: FrontendKind) -> Result<(), ApiError> {
    let refused = |what: &str| {
        let value = Printed(messages);
        Err(ApiError::invalid(format!("messages: Validation error: {what} [{{\"value\": {value:?}}}]")))
    };
    if messages.is_empty() {
        return refused("messages cannot be empty");
    }
    let attribute = |message: &Templated, name: &str| message.get_attr(name).unwrap_or_default();
    for message in messages {
        let (role, content) = (attribute(message, "role"), attribute(message, "content"));
        // The Python server leaves these checks to the template.
        if frontend == FrontendKind::Python {
            continue;
        }
        if role.as_str() == Some("user") && content.as_str() == Some("") {
            return refused("message content cannot be empty");
        }
        if role.as_str() == Some("user") && content.as_str().is_none() && content.len() == Some(0) {
            return refused("message content parts cannot be empty");
        }
    }
    for message in messages {
        let is_empty = |name: &str| {
            let value = attribute(message, name);
            value.is_undefined() || value.is_none() || value.len() == Some(0)
        };
        match attribute(message, "role").as_str() {
            Some("function") if frontend == FrontendKind::Rust => {
                return Err(ApiError::invalid("Function messages are not supported."));
            }
            Some("assistant")
                if ["content", "tool_calls", "reasoning", "reasoning_content"].iter().all(|name| is_empty(name)) =>
            {
                return Err(ApiError::invalid(
                    "Assistant messages must contain text, reasoning content, or tool_calls.",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Templated>, String> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        messages(&mut deserializer).map_err(|error| error.to_string())
    }

    #[test]
    fn each_role_says_what_it_must() {
        assert!(read(r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]"#).is_ok());
        assert!(
            read(r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]"#).is_ok()
        );
        let error = |text: &str| read(text).expect_err("it has another shape");
        assert!(error(r#"[{"content": "a"}]"#).contains("missing field `role`"));
        assert!(error(r#"[{"role": "user"}]"#).contains("missing field `content`"));
        assert!(error(r#"[{"role": "tool", "content": "a"}]"#).contains("missing field `tool_call_id`"));
        assert!(error(r#"["a"]"#).contains("expected internally tagged enum ChatMessage"));
        assert!(error(r#"[{"role": "user", "content": [{"type": "text"}]}]"#).contains("untagged enum MessageContent"));
    }

    /// A message is copied only to produce serde's error text.
    #[test]
    fn shapes_are_seen_without_a_copy() {
        for (text, is_seen) in [
            (r#"{"role": "user", "content": "a"}"#, true),
            (r#"{"role": "user", "content": []}"#, true),
            (r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "x", "text": 1}, {}]}"#, true),
            (r#"{"role": "user", "content": [{"type": "text", "text": 1}]}"#, false),
            (r#"{"role": "user", "content": ["a"]}"#, false),
            (r#"{"role": "user", "content": [[]]}"#, false),
            (r#"{"role": "user", "content": {}}"#, false),
            (r#"{"role": "user", "content": null}"#, false),
            (r#"{"role": "user"}"#, false),
            (r#"{"role": "assistant"}"#, true),
            (r#"{"role": "assistant", "content": null}"#, true),
            (r#"{"role": "assistant", "content": 1}"#, false),
            (r#"{"role": "tool", "content": "a", "tool_call_id": "b"}"#, true),
            (r#"{"role": "tool", "content": "a", "tool_call_id": null}"#, false),
            (r#"{"role": "function", "content": "a", "name": "b"}"#, true),
            (r#"{"role": "function", "content": [], "name": "b"}"#, false),
            (r#"{"role": "other", "content": 5}"#, true),
            (r#"{"role": 5, "content": "a"}"#, false),
            (r#"{}"#, false),
            (r#"[]"#, false),
            (r#""a""#, false),
        ] {
            let message: Templated = serde_json::from_str(text).expect("it is JSON");
            assert_eq!(has_shape(&message), is_seen, "{text}");
            let json: Value = serde_json::from_str(text).expect("it is JSON");
            assert_eq!(ChatMessage::deserialize(json).is_ok(), is_seen, "{text}");
        }
    }

    #[test]
    fn refused_messages_are_printed_as_one_value() {
        let texts = r#"[{"role": "user", "content": "", "n": [1, 2.5, null, true]}, {"role": "x"}]"#;
        let messages = read(texts).expect("messages");
        let json: Value = serde_json::from_str(texts).expect("it is JSON");
        assert_eq!(format!("{:?}", Printed(&messages)), format!("{json:?}"));
        assert_eq!(format!("{:?}", Printed(&[])), format!("{:?}", Value::Array(Vec::new())));
    }

    #[test]
    fn an_answer_follows_or_continues() {
        let asked = read(r#"[{"role": "user", "content": "a"}]"#).expect("messages");
        assert_eq!(generation_prompt(&asked, None, false), Ok(true));
        assert!(generation_prompt(&asked, None, true).is_err(), "there is nothing to continue");
        let answered = read(r#"[{"role": "assistant", "content": "a"}]"#).expect("messages");
        assert_eq!(generation_prompt(&answered, None, true), Ok(false));
        assert!(generation_prompt(&answered, Some(true), true).is_err());
    }
}
