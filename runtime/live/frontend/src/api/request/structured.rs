//! Structured outputs, by vLLM's rules and with its error texts.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json};
use vcr_text::Value as Templated;
use vcr_wire::Value;

use crate::generate::wire_of_text;
use crate::server::error::ApiError;

/// The maximum nesting depth of a schema.
const NESTING_MAX: usize = 64;
/// The maximum nesting depth of a structural tag around its schemas.
const TAG_NESTING: usize = 16;

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::api) enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema {
        json_schema: JsonSchema,
    },
    StructuralTag {
        #[serde(flatten)]
        tag: std::collections::BTreeMap<String, Templated>,
    },
}

#[derive(Clone, Debug, Deserialize)]
pub(in crate::api) struct JsonSchema {
    #[serde(rename = "name")]
    _name: String,
    /// A JSON schema. Its keys keep their order.
    #[serde(alias = "json_schema")]
    schema: Templated,
}

#[derive(Clone, Debug)]
enum Constraint {
    /// A JSON schema, as text.
    Json(String),
    Regex(String),
    Choice(Vec<String>),
    Grammar(String),
    JsonObject,
    /// A structural tag, as JSON text.
    StructuralTag(String),
}

/// A constraint and its options.
#[derive(Clone, Debug)]
pub(in crate::api) struct Structure {
    constraint: Constraint,
    disable_any_whitespace: bool,
    disable_additional_properties: bool,
    whitespace_pattern: Option<String>,
}

/// `structured_outputs` as given.
#[derive(Default, Deserialize)]
#[serde(default, expecting = "struct WireStructuredOutputsParams")]
struct Given {
    json: Option<Box<RawValue>>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
    disable_any_whitespace: bool,
    disable_additional_properties: bool,
    whitespace_pattern: Option<String>,
    structural_tag: Option<String>,
}

impl Constraint {
    fn name(&self) -> &'static str {
        match self {
            Self::Json(_) => "json",
            Self::Regex(_) => "regex",
            Self::Choice(_) => "choice",
            Self::Grammar(_) => "grammar",
            Self::JsonObject => "json_object",
            Self::StructuralTag(_) => "structural_tag",
        }
    }

    /// Refuses constraints that no engine supports.
    fn check(&self) -> Result<(), String> {
        let empty = |text: &str| text.trim().is_empty();
        let name = self.name();
        match self {
            Self::Grammar(text) | Self::StructuralTag(text) if empty(text) => {
                Err(format!("structured_outputs.{name} cannot be an empty string"))
            }
            Self::Json(schema) => match serde_json::from_str(schema).unwrap_or_default() {
                Json::String(text) if empty(&text) => Err("structured_outputs.json cannot be an empty string".into()),
                Json::String(text) => {
                    let schema = serde_json::from_str(&text).map_err(|_| "Invalid JSON grammar specification.")?;
                    check_nesting(&schema, NESTING_MAX)
                }
                schema => check_nesting(&schema, NESTING_MAX),
            },
            Self::Choice(choices) if choices.is_empty() => Err("structured_outputs.choice cannot be empty".into()),
            Self::Regex(regex) if regex.contains('\0') => {
                Err("structured_outputs.regex must not contain a NUL character ('\\x00')".into())
            }
            Self::StructuralTag(tag) => {
                let tag = serde_json::from_str(tag).map_err(|_| "Invalid structural tag specification.")?;
                check_nesting(&tag, NESTING_MAX + TAG_NESTING)
            }
            _ => Ok(()),
        }
    }
}

impl From<Constraint> for Structure {
    fn from(constraint: Constraint) -> Self {
        Self {
            constraint,
            disable_any_whitespace: false,
            disable_additional_properties: false,
            whitespace_pattern: None,
        }
    }
}

fn invalid_params(problem: impl std::fmt::Display) -> String {
    format!("invalid structured outputs params: {problem}")
}

impl Given {
    fn structure(self) -> Result<Structure, String> {
        let json = self.json.map(|json| Constraint::Json(json.get().to_owned()));
        let object = match self.json_object {
            Some(false) => {
                return Err("structured_outputs.json_object must be true if set; omit structured_outputs to disable \
                            structured outputs"
                    .to_owned());
            }
            object => object.map(|_| Constraint::JsonObject),
        };
        let mut given = [
            json,
            self.regex.map(Constraint::Regex),
            self.choice.map(Constraint::Choice),
            self.grammar.map(Constraint::Grammar),
            object,
            self.structural_tag.map(Constraint::StructuralTag),
        ]
        .into_iter()
        .flatten();
        let constraint = given.next().ok_or("missing structured output constraint")?;
        if let Some(other) = given.next() {
            let names = [constraint.name(), other.name()].join(", ");
            return Err(format!("multiple structured output constraints specified: {names}"));
        }
        constraint.check()?;
        Ok(Structure {
            constraint,
            disable_any_whitespace: self.disable_any_whitespace,
            disable_additional_properties: self.disable_additional_properties,
            whitespace_pattern: self.whitespace_pattern,
        })
    }
}

fn text_of(value: &Templated) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

/// Formats an error without its position, which refers to a text that the client did not send.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split_once(" at line ").map_or(text.clone(), |(message, _)| message.to_owned())
}

/// Reads the structure in `structured_outputs`.
pub(in crate::api) fn own(given: Option<&Templated>) -> Result<Option<Structure>, ApiError> {
    let Some(given) = given else { return Ok(None) };
    let structure = serde_json::from_str::<Given>(&text_of(given))
        .map_err(|error| without_place(&error))
        .and_then(|given| given.structure().map_err(invalid_params));
    structure.map(Some).map_err(|problem| {
        ApiError::invalid_param("structured_outputs", format!("invalid structured_outputs: {problem}"))
    })
}

/// Parses the `response_format` of a text completion. vLLM parses it after it has checked the other fields.
pub(in crate::api) fn late_format(format: Option<&Templated>) -> Result<Option<ResponseFormat>, ApiError> {
    let format = format.map(|format| serde_json::from_str(&text_of(format))).transpose();
    format.map_err(|error| {
        let problem = without_place(&error);
        ApiError::invalid_param("response_format", format!("invalid response_format: {problem}"))
    })
}

/// Combines the structures in `response_format` and `structured_outputs`.
pub(in crate::api) fn structure(
    format: Option<&ResponseFormat>,
    given: Option<&Templated>,
) -> Result<Option<Structure>, ApiError> {
    let own = own(given)?;
    let constraint = match format {
        None | Some(ResponseFormat::Text) => return Ok(own),
        Some(ResponseFormat::JsonObject) => Constraint::JsonObject,
        Some(ResponseFormat::JsonSchema { json_schema }) => Constraint::Json(text_of(&json_schema.schema)),
        Some(ResponseFormat::StructuralTag { tag }) => {
            let mut tag = tag.clone();
            tag.insert("type".to_owned(), "structural_tag".into());
            Constraint::StructuralTag(serde_json::to_string(&tag).unwrap_or_default())
        }
    };
    let structure = match own {
        None => Structure::from(constraint),
        Some(own) if own.constraint.name() == constraint.name() => Structure { constraint, ..own },
        Some(_) => {
            return Err(ApiError::invalid(
                "You can only use one kind of structured outputs constraint but multiple are specified.",
            ));
        }
    };
    let checked = structure.constraint.check();
    checked.map_err(|problem| ApiError::invalid_param("response_format", invalid_params(problem)))?;
    Ok(Some(structure))
}

/// Converts a structure for engines.
pub(in crate::api) fn wire(structure: Structure) -> Arc<Value> {
    let name = structure.constraint.name();
    let constraint = match structure.constraint {
        Constraint::Json(schema) => wire_of_text(&schema),
        Constraint::Regex(text) | Constraint::Grammar(text) | Constraint::StructuralTag(text) => text.as_str().into(),
        Constraint::Choice(choices) => Value::Array(choices.iter().map(|choice| choice.as_str().into()).collect()),
        Constraint::JsonObject => true.into(),
    };
    let mut pairs = vec![(name.into(), constraint)];
    for (name, is_set) in [
        ("disable_any_whitespace", structure.disable_any_whitespace),
        ("disable_additional_properties", structure.disable_additional_properties),
    ] {
        if is_set {
            pairs.push((name.into(), true.into()));
        }
    }
    if let Some(pattern) = structure.whitespace_pattern {
        pairs.push(("whitespace_pattern".into(), pattern.as_str().into()));
    }
    pairs.push(("_backend".into(), "xgrammar".into()));
    Arc::new(Value::Map(pairs))
}

/// Converts a structural tag for engines.
pub(in crate::api) fn tag(tag: String) -> Arc<Value> {
    let pairs = vec![("structural_tag".into(), tag.as_str().into()), ("_backend".into(), "xgrammar".into())];
    Arc::new(Value::Map(pairs))
}

fn check_nesting(value: &Json, most: usize) -> Result<(), String> {
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        if depth > most && (value.is_object() || value.is_array()) {
            return Err(format!(
                "The JSON schema is nested too deeply: objects and arrays may nest at most {NESTING_MAX} levels"
            ));
        }
        let list = value.as_array().into_iter().flatten();
        let inner = list.chain(value.as_object().into_iter().flat_map(Map::values));
        open.extend(inner.map(|inner| (inner, depth + 1)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wired(format: Json, given: Json) -> Result<Json, String> {
        let read = |value: Json| serde_json::from_value::<Option<Templated>>(value).expect("any value is one");
        let format = late_format(read(format).as_ref()).map_err(|error| error.message)?;
        let structure = structure(format.as_ref(), read(given).as_ref());
        let value = structure.map_err(|error| error.message)?.map(wire);
        Ok(value.map_or(Json::Null, |value| serde_json::to_value(&*value).expect("it is JSON")))
    }

    #[test]
    fn both_ways_of_asking_are_one_structure() {
        assert_eq!(wired(json!(null), json!(null)), Ok(json!(null)));
        assert_eq!(wired(json!({"type": "text"}), json!(null)), Ok(json!(null)));
        let object = json!({"json_object": true, "_backend": "xgrammar"});
        assert_eq!(wired(json!({"type": "json_object"}), json!(null)), Ok(object.clone()));
        assert_eq!(wired(json!({"type": "json_object"}), json!({"json_object": true})), Ok(object));
        let schema = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}});
        let own = json!({"json": {}, "disable_any_whitespace": true});
        let both = json!({"json": {"type": "integer"}, "disable_any_whitespace": true, "_backend": "xgrammar"});
        assert_eq!(wired(schema.clone(), own), Ok(both));
        let error = wired(schema, json!({"regex": "a"})).expect_err("they differ");
        assert!(error.starts_with("You can only use one kind"), "{error}");
        let tag = json!({"type": "structural_tag", "format": {"type": "any_text"}});
        let wired = wired(tag.clone(), json!(null)).expect("it is a tag");
        let text = wired["structural_tag"].as_str().expect("a text");
        assert_eq!(serde_json::from_str::<Json>(text).expect("it is JSON"), tag);
    }

    #[test]
    fn what_is_invalid_is_told_in_the_words_of_vllm() {
        let error = |given: Json| wired(json!(null), given).expect_err("it is invalid");
        let start = "invalid structured_outputs: invalid structured outputs params: ";
        for (given, expected) in [
            (json!({}), "missing structured output constraint"),
            (json!({"json": {}, "regex": "a"}), "multiple structured output constraints specified: json, regex"),
            (json!({"choice": []}), "structured_outputs.choice cannot be empty"),
            (json!({"json": " "}), "structured_outputs.json cannot be an empty string"),
            (json!({"json": "{"}), "Invalid JSON grammar specification."),
            (json!({"structural_tag": "{"}), "Invalid structural tag specification."),
        ] {
            assert_eq!(error(given), format!("{start}{expected}"));
        }
        let expected = "invalid structured_outputs: invalid type: string \"a\", expected a sequence";
        assert_eq!(error(json!({"choice": "a"})), expected);
        let expected =
            "invalid structured_outputs: invalid type: string \"x\", expected struct WireStructuredOutputsParams";
        assert_eq!(error(json!("x")), expected);
        let taken = wired(json!(null), json!({"json": {"items": {"type": "integer", "multipleOf": 3}}}));
        assert!(taken.is_ok(), "vLLM falls back to another backend");
        let mut deep = json!({});
        for _ in 0..70 {
            deep = json!({ "items": deep });
        }
        assert!(error(json!({"json": deep})).contains("nested too deeply"));
        let format = wired(json!({"type": "x"}), json!(null)).expect_err("there is none");
        assert!(format.starts_with("invalid response_format: unknown variant `x`, expected one of"), "{format}");
    }
}
