use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::Schema;

/// What a request's output must be like.
#[derive(Debug)]
pub enum Wanted {
    /// One of these texts, which are not none.
    Choice(Vec<String>),
    /// JSON of this schema.
    Json(Box<Schema>),
}

/// vLLM's `StructuredOutputsParams`. Its flags say how a grammar is made of
/// them, which is not for us to know.
#[derive(serde::Deserialize)]
struct Params {
    /// A schema, or the text of one.
    json: Option<Box<RawValue>>,
    json_object: Option<bool>,
    choice: Option<Vec<String>>,
    regex: Option<IgnoredAny>,
    grammar: Option<IgnoredAny>,
    structural_tag: Option<IgnoredAny>,
}

impl Wanted {
    /// Reads what the frontend sent.
    ///
    /// # Errors
    /// When it cannot be read, or is of a kind that this guest does not know.
    pub fn parse(text: &str) -> Result<Self, String> {
        let unread = |error: serde_json::Error| format!("the structured output cannot be read: {error}");
        let params: Params = serde_json::from_str(text).map_err(unread)?;
        let unknown = [
            ("regex", params.regex.is_some()),
            ("grammar", params.grammar.is_some()),
            ("structural_tag", params.structural_tag.is_some()),
        ];
        if let Some((name, _)) = unknown.iter().find(|(_, is_given)| *is_given) {
            return Err(format!("a structured output by `{name}` is not supported: only json, json_object and choice"));
        }
        match params {
            Params { choice: Some(choices), .. } if choices.is_empty() => {
                Err("the structured output has an empty `choice`".into())
            }
            Params { choice: Some(choices), .. } => Ok(Self::Choice(choices)),
            Params { json: Some(json), .. } => {
                // A text is a schema in quotes.
                let quoted: Option<String> = serde_json::from_str(json.get()).ok();
                let schema = serde_json::from_str(quoted.as_deref().unwrap_or(json.get()));
                schema.map(Self::Json).map_err(|error| format!("the schema of the output cannot be followed: {error}"))
            }
            Params { json_object: Some(true), .. } => Ok(Self::Json(Box::new(Schema::any_object()))),
            _ => Err("the structured output has neither `json`, `json_object` nor `choice`".into()),
        }
    }
}
