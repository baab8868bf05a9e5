//! Reads requests as vLLM's Python API server does: same conversions, same error texts.
//!
//! A body that parses directly does not need this module. Any other body is checked as Pydantic does. The result is
//! either an error with the Python server's text, or a body with converted values.

mod decode;
mod kinds;
mod models;
mod rules;
mod words;

use serde_json::Value;

use self::kinds::{Check, Kind, Problem};

/// The maximum number of validation errors in a response.
const TOLD_MAX: usize = 10;
/// The maximum length of one validation error, in characters.
const TOLD_CHARS_MAX: usize = 1_000;

/// The reason why a request is refused, with the Python server's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) message: String,
    pub(super) param: Option<String>,
}

impl Refused {
    fn plain(message: impl Into<String>) -> Self {
        Self { status: 400, kind: "BadRequestError", message: message.into(), param: None }
    }

    /// An error about a field, and optionally its value.
    fn field(message: &str, name: &str, value: Option<String>) -> Self {
        let value = value.map(|value| format!(", value={value}")).unwrap_or_default();
        let message = format!("{message} (parameter={name}{value})");
        Self { param: Some(name.to_owned()), ..Self::plain(message) }
    }

    fn internal(message: String) -> Self {
        Self { status: 500, kind: "InternalServerError", message, param: None }
    }

    /// The refusal for one or more validation errors.
    fn validation(problems: &[Problem]) -> Self {
        let count = problems.len();
        let label = if count == 1 { "error" } else { "errors" };
        let mut message = format!("{count} validation {label}:");
        for problem in problems.iter().take(TOLD_MAX) {
            let text = problem.text();
            let (text, rest) = match text.char_indices().nth(TOLD_CHARS_MAX) {
                Some((end, _)) => (&text[..end], "...[truncated]"),
                None => (&text[..], ""),
            };
            message += &format!("\n  {text}{rest}");
        }
        if count > TOLD_MAX {
            message += &format!("\n  ...and {} more errors", count - TOLD_MAX);
        }
        let param = problems.first().map(|problem| problem.place.clone());
        Self { kind: "Bad Request", param, ..Self::plain(message) }
    }

    /// The error for a content type other than JSON.
    pub(super) fn media_type() -> Self {
        let message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        Self { kind: "Bad Request", ..Self::plain(message) }
    }
}

/// The limits that the model imposes on requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_model_len: u32,
    pub(super) vocab_size: u32,
}

/// Returns the path if its bodies are checked here.
pub(super) fn known(path: &str) -> Option<&'static str> {
    let paths = ["/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/tokenize", "/detokenize"];
    paths.into_iter().find(|known| *known == path)
}

/// Checks a body and converts its values.
pub(super) fn checked(path: &str, text: &[u8], limits: &Limits) -> Result<Value, Refused> {
    let value = read(text)?;
    let rules = match path {
        "/v1/completions" => rules::completion,
        "/v1/chat/completions" => rules::chat,
        "/inference/v1/generate" => rules::generate,
        "/tokenize" => rules::generation_prompt,
        _ => |_: &serde_json::Map<String, Value>| Ok(()),
    };
    if let Value::Object(fields) = &value {
        rules(fields)?;
    }
    let kind = match path {
        "/v1/completions" => &Kind::Model(models::COMPLETION),
        "/v1/chat/completions" => &Kind::Model(models::CHAT),
        "/inference/v1/generate" => &Kind::Model(models::GENERATE),
        "/tokenize" => &models::TOKENIZE,
        _ => &Kind::Model(models::DETOKENIZE),
    };
    let mut check = Check { problems: Vec::new() };
    let checked = check.value(kind, &value, "body", false);
    let tokens = checked.as_ref().and_then(|checked| checked.get("token_ids"));
    if let Some(Value::Array(tokens)) = tokens.filter(|_| path == "/inference/v1/generate")
        && tokens.iter().any(|token| token.as_i64().is_some_and(|token| token < 0))
    {
        let given = Value::Array(tokens.clone());
        let problem = Problem::value_error("body.token_ids", "token_ids must not contain negative values", &given);
        return Err(Refused::validation(&[problem]));
    }
    let Some(Value::Object(mut fields)) = checked else { return Err(Refused::validation(&check.problems)) };
    // The Python server has no field `best_of`.
    fields.remove("best_of");
    let params = if path == "/inference/v1/generate" { fields.get("sampling_params") } else { None };
    let params = params.and_then(Value::as_object).unwrap_or(&fields);
    if let Some(Value::Object(structure)) = params.get("structured_outputs") {
        rules::kinds_of_structure(structure)?;
    }
    rules::prompt(&fields, path)?;
    if !path.ends_with("tokenize") {
        rules::sampling(params, limits, path)?;
    }
    Ok(Value::Object(fields))
}

fn read(text: &[u8]) -> Result<Value, Refused> {
    if text.is_empty() {
        return Err(Refused::validation(&[Problem::no_body()]));
    }
    let value: Result<Value, Refused> = serde_json::from_slice(text).or_else(|_| {
        let text = String::from_utf8_lossy(text);
        match decode::problem(&text) {
            Some((reason, at)) => Err(Refused::validation(&[Problem::no_json(&reason, at)])),
            // Python accepts this text: it starts with a byte order mark, or contains a lone surrogate.
            None => serde_json::from_str(text.trim_start_matches('\u{feff}'))
                .map_err(|error| Refused::plain(error.to_string())),
        }
    });
    if value == Ok(Value::Null) { Err(Refused::validation(&[Problem::no_body()])) } else { value }
}
