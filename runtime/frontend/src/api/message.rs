//! Messages of chats: what each role must say, checked in vLLM's words.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use vcr_text::Value as Templated;

use crate::server::error::ApiError;

/// A message by its role. The names of the types are part of error messages.
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
    /// Templates may know more roles.
    #[serde(other)]
    Other,
}

/// A text, or parts of which other modules read those that are no text.
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

/// One message, of the shape that its role asks for.
struct Checked(Templated);

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let message = Templated::deserialize(deserializer)?;
        let json = serde_json::to_value(&message).map_err(D::Error::custom)?;
        ChatMessage::deserialize(json).map_err(D::Error::custom)?;
        Ok(Self(message))
    }
}

/// Messages of a request.
pub(super) fn messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Templated>, D::Error> {
    let messages = Vec::<Checked>::deserialize(deserializer)?;
    Ok(messages.into_iter().map(|Checked(message)| message).collect())
}

/// What must follow the last message.
///
/// # Errors
/// When the request asks for both a new answer and a longer last message, or there is none to
/// be continued.
pub(super) fn generation_prompt(
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

/// Refuses what is of the right shape, but that nobody answers.
pub(super) fn check(messages: &[Templated]) -> Result<(), ApiError> {
    let refused = |what: &str| {
        let value = serde_json::to_value(messages).unwrap_or_default();
        Err(ApiError::invalid(format!("messages: Validation error: {what} [{{\"value\": {value:?}}}]")))
    };
    if messages.is_empty() {
        return refused("messages cannot be empty");
    }
    let attribute = |message: &Templated, name: &str| message.get_attr(name).unwrap_or_default();
    for message in messages {
        let (role, content) = (attribute(message, "role"), attribute(message, "content"));
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
            Some("function") => return Err(ApiError::invalid("Function messages are not supported.")),
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
