use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::value::RawValue;

use crate::grammar::Grammar;
use crate::node::Node;
use crate::schema::Schemas;
use crate::structural::Format;
use crate::values::pattern::Pattern;

/// Maximum size in bytes of a structured-output request, so that a request cannot block an engine.
const BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(crate) enum OutputForm {
    /// One of these texts. The list is not empty.
    Choice(Vec<String>),
    Json(Schemas),
    Text(Format),
    /// A text that matches the pattern.
    Pattern(Pattern),
    Grammar(Grammar),
}

/// vLLM's `StructuredOutputsParams`, without the flags that only control the compilation of grammars.
#[derive(serde::Deserialize)]
struct Params {
    json: Option<Box<RawValue>>,
    json_object: Option<bool>,
    choice: Option<Vec<String>>,
    regex: Option<String>,
    grammar: Option<String>,
    structural_tag: Option<Box<RawValue>>,
}

impl OutputForm {
    /// Parses the frontend's parameters.
    ///
    /// # Errors
    /// If the parameters cannot be parsed, or are of an unknown kind.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("the structured output has {} bytes, but may have {BYTES_MAX}", text.len()));
        }
        let unread = |error: serde_json::Error| format!("the structured output cannot be read: {error}");
        let params: Params = serde_json::from_str(text).map_err(unread)?;
        match params {
            Params { choice: Some(choices), .. } if choices.is_empty() => {
                Err("the structured output has an empty `choice`".into())
            }
            Params { choice: Some(choices), .. } => Ok(Self::Choice(choices)),
            Params { json: Some(json), .. } => {
                let read = serde_json::from_str(&unquoted(&json)).map_err(|error| format!("{error}"));
                let schemas = read.and_then(|document: Node| Schemas::strict(&document));
                schemas.map(Self::Json).map_err(|error| format!("the schema of the output cannot be followed: {error}"))
            }
            Params { structural_tag: Some(tag), .. } => Format::parse(&unquoted(&tag))
                .map(Self::Text)
                .map_err(|error| format!("the structural tag of the output cannot be followed: {error}")),
            Params { regex: Some(regex), .. } => Pattern::parse(&regex).map(Self::Pattern),
            Params { grammar: Some(grammar), .. } => Grammar::parse(&grammar).map(Self::Grammar),
            Params { json_object: Some(true), .. } => Ok(Self::Json(Schemas::any_object())),
            _ => Err("the structured output has none of `json`, `json_object`, `choice`, `regex`, `grammar` and \
                      `structural_tag`"
                .into()),
        }
    }
}

/// The JSON of a value, which is JSON itself or a string with JSON in it.
fn unquoted(value: &RawValue) -> Cow<'_, str> {
    serde_json::from_str(value.get()).map_or(Cow::Borrowed(value.get()), Cow::<str>::Owned)
}
