//! Checks of vLLM's Python API server other than those of types: some come before the type checks, the checks of
//! sampling parameters come after.

use serde_json::{Map, Value};

use super::kinds::as_float;
use super::words::{class, is_true, shown, written};
use super::{Limits, Refused};

/// The maximum length of a cache salt, in characters.
const SALT_CHARS_MAX: usize = 128;
/// The maximum number of logprobs per position.
const MAX_LOGPROBS: i64 = 20;

type Fields = Map<String, Value>;
type Checked = Result<(), Refused>;

fn given<'a>(fields: &'a Fields, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn refuse(message: impl Into<String>) -> Checked {
    Err(Refused::plain(message))
}

fn refuse_field(message: &str, name: &'static str) -> Checked {
    Err(Refused::field(message, name, None))
}

fn refuse_value(message: impl AsRef<str>, name: &'static str, value: &Value) -> Checked {
    Err(Refused::field(message.as_ref(), name, Some(written(value))))
}

/// Checks a text completion before its types are checked.
pub(super) fn completion(fields: &Fields) -> Checked {
    let is_empty = match given(fields, "prompt") {
        None => true,
        Some(prompt) => prompt.as_str() == Some(""),
    };
    if is_empty && given(fields, "prompt_embeds").is_none_or(|embeds| embeds.as_array().is_some_and(Vec::is_empty)) {
        return refuse_field("Either prompt or prompt_embeds must be provided and non-empty.", "prompt");
    }
    stream_options(fields)?;
    logprobs(fields, "logprobs")?;
    structured_outputs(fields, Some("structured_outputs"))?;
    response_format(fields)?;
    salt(fields)?;
    thinking(fields)
}

/// Checks a chat before its types are checked.
pub(super) fn chat(fields: &Fields) -> Checked {
    match fields.get("messages") {
        None | Some(Value::Array(_) | Value::Object(_) | Value::String(_)) => {}
        Some(other) => return refuse(format!("'{}' object is not iterable", class(other))),
    }
    generation_prompt(fields)?;
    tools(fields)?;
    structured_outputs(fields, None)?;
    logprobs(fields, "top_logprobs")?;
    stream_options(fields)?;
    response_format(fields)?;
    salt(fields)?;
    thinking(fields)
}

/// Checks a body of `/inference/v1/generate` before its types are checked.
pub(super) fn generate(fields: &Fields) -> Checked {
    salt(fields)
}

/// Checks a body of `/tokenize` before its types are checked.
pub(super) fn generation_prompt(fields: &Fields) -> Checked {
    let both = is_true(fields.get("continue_final_message")) && is_true(fields.get("add_generation_prompt"));
    if both { refuse("Cannot set both `continue_final_message` and `add_generation_prompt` to True.") } else { Ok(()) }
}

fn stream_options(fields: &Fields) -> Checked {
    if is_true(fields.get("stream_options")) && !is_true(fields.get("stream")) {
        return refuse_field("Stream options can only be defined when `stream=True`.", "stream_options");
    }
    Ok(())
}

fn logprobs(fields: &Fields, own: &'static str) -> Checked {
    let count = |name| {
        given(fields, name).map(|value| (value, value.as_f64().or(value.as_bool().map(|yes| f64::from(u8::from(yes))))))
    };
    for name in ["prompt_logprobs", own] {
        if let Some((value, None)) = count(name) {
            return refuse_value(format!("`{name}` must be an integer."), name, value);
        }
    }
    if let Some((value, Some(number))) = count("prompt_logprobs") {
        if is_true(fields.get("stream")) && (number > 0.0 || number == -1.0) {
            return refuse_field("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs");
        }
        if number < 0.0 && number != -1.0 {
            return refuse_value("`prompt_logprobs` must be a positive value or -1.", "prompt_logprobs", value);
        }
    }
    if let Some((value, Some(number))) = count(own) {
        if number < 0.0 && number != -1.0 {
            return refuse_value(format!("`{own}` must be a positive value or -1."), own, value);
        }
        if own == "top_logprobs" && (number > 0.0 || number == -1.0) && !is_true(fields.get("logprobs")) {
            return refuse_field("when using `top_logprobs`, `logprobs` must be set to true.", own);
        }
    }
    Ok(())
}

fn structured_outputs(fields: &Fields, param: Option<&'static str>) -> Checked {
    let Some(structure) = given(fields, "structured_outputs") else { return Ok(()) };
    let Value::Object(structure) = structure else {
        return Err(Refused::internal(format!("'{}' object has no attribute 'get'", class(structure))));
    };
    let count = ["json", "regex", "choice"].iter().filter(|name| given(structure, name).is_some()).count();
    if count > 1 {
        let message = "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').";
        return match param {
            Some(param) => refuse_field(message, param),
            None => refuse(message),
        };
    }
    let choice = fields.get("tool_choice").map_or(Some("none"), Value::as_str);
    if param.is_none() && count > 0 && !matches!(choice, Some("none" | "auto" | "required")) {
        return refuse("You can only either use constraints for structured outputs or tools, not both.");
    }
    Ok(())
}

/// Checks that exactly one kind of structure is given.
pub(super) fn kinds_of_structure(structure: &Fields) -> Checked {
    let kinds = ["json", "regex", "choice", "grammar", "json_object", "structural_tag"];
    let count = kinds.iter().filter(|name| given(structure, name).is_some()).count();
    if count == 1 {
        return Ok(());
    }
    let value = |name: &str, default: &str| structure.get(name).map_or_else(|| default.to_owned(), shown);
    let fields = [
        ("json", "None"),
        ("regex", "None"),
        ("choice", "None"),
        ("grammar", "None"),
        ("json_object", "None"),
        ("disable_any_whitespace", "False"),
        ("disable_additional_properties", "False"),
        ("whitespace_pattern", "None"),
        ("structural_tag", "None"),
        ("_backend", "None"),
        ("_backend_was_auto", "False"),
    ];
    let fields: Vec<String> =
        fields.iter().map(|(name, default)| format!("'{name}': {}", value(name, default))).collect();
    let (must, but) = if count > 1 { ("can only", "multiple") } else { ("must", "none") };
    refuse(format!(
        "You {must} use one kind of structured outputs constraint but {but} are specified: {{{}}}",
        fields.join(", ")
    ))
}

fn response_format(fields: &Fields) -> Checked {
    let Some(format) = given(fields, "response_format") else { return Ok(()) };
    let kind = format.get("type").and_then(Value::as_str);
    if kind == Some("json_schema") && format.get("json_schema").is_none_or(Value::is_null) {
        let message = "When response_format type is 'json_schema', the 'json_schema' field must be provided.";
        return refuse_field(message, "response_format");
    }
    let is_tag = format.get("format").is_some() || format.get("structures").is_some();
    if kind == Some("structural_tag") && !is_tag {
        return refuse_field("Invalid response_format structural_tag specification.", "response_format");
    }
    Ok(())
}

fn salt(fields: &Fields) -> Checked {
    let Some(salt) = given(fields, "cache_salt") else { return Ok(()) };
    let Some(salt) = salt.as_str().filter(|salt| !salt.is_empty()) else {
        return refuse_field("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt");
    };
    if salt.chars().count() > SALT_CHARS_MAX || salt.contains(['@', '/', '\\', '\0']) {
        let message =
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL.";
        return refuse_field(message, "cache_salt");
    }
    Ok(())
}

fn thinking(fields: &Fields) -> Checked {
    let Some(budget) = given(fields, "thinking_token_budget") else { return Ok(()) };
    if budget.is_u64() || budget.as_i64().is_some_and(|budget| budget >= -1) {
        return Ok(());
    }
    let message = "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.";
    refuse_value(message, "thinking_token_budget", budget)
}

fn tools(fields: &Fields) -> Checked {
    const USAGE: &str = "Correct usage: `{\"type\": \"function\", \"function\": {\"name\": \"my_function\"}}`";
    let tools = given(fields, "tools");
    if tools.is_some_and(|tools| tools.as_array().is_some_and(Vec::is_empty)) {
        let message =
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.";
        return refuse_field(message, "tools");
    }
    let Some(choice) = given(fields, "tool_choice").filter(|choice| *choice != "none") else { return Ok(()) };
    let Some(tools) = tools else {
        return refuse_field("When using `tool_choice`, `tools` must be set.", "tool_choice");
    };
    let Value::Object(named) = choice else {
        if matches!(choice.as_str(), Some("auto" | "required")) {
            return Ok(());
        }
        let choice = written(choice);
        let message = format!(
            "Invalid value for `tool_choice`: {choice}! Only named tools, \"none\", \"auto\" or \"required\" are \
             supported."
        );
        return refuse_field(&message, "tool_choice");
    };
    let function = named.get("function").unwrap_or(&Value::Null);
    let Value::Object(function) = function else {
        let function = written(function);
        let message = format!("Invalid value for `function`: `{function}` in `tool_choice`! {USAGE}");
        return refuse_field(&message, "tool_choice.function");
    };
    let Some(name) = function.get("name") else {
        let message = format!("Expected field `name` in `function` in `tool_choice`! {USAGE}");
        return refuse_field(&message, "tool_choice.function.name");
    };
    if name.as_str().is_none_or(str::is_empty) {
        let name = written(name);
        let message = format!("Invalid `name` in `function`: `{name}` in `tool_choice`! {USAGE}");
        return refuse_field(&message, "tool_choice.function.name");
    }
    let is_offered = tools.as_array().into_iter().flatten().any(|tool| tool["function"]["name"] == *name);
    if is_offered {
        return Ok(());
    }
    refuse_field("The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice")
}

/// Checks a prompt after its type has been checked.
pub(super) fn prompt(fields: &Fields, path: &str) -> Checked {
    let is_empty = |name: &str| fields.get(name).and_then(Value::as_array).is_some_and(Vec::is_empty);
    if path == "/v1/completions" && is_empty("prompt") {
        return refuse_field("You must pass at least one prompt", "prompt");
    }
    if path == "/v1/completions" && fields.contains_key("suffix") {
        let message = "suffix is only supported for models with FIM completion rendering";
        return Err(Refused { param: Some("suffix".to_owned()), ..Refused::plain(message) });
    }
    if path == "/v1/chat/completions" && is_empty("messages") {
        return refuse("Cannot apply chat template to an empty conversation. Provide at least one message.");
    }
    if is_true(fields.get("continue_final_message")) && fields.get("add_generation_prompt") != Some(&false.into()) {
        return refuse(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you \
             want the model to continue the final message, and add_generation_prompt when you want to add a header that \
             will prompt it to start a new assistant message instead.",
        );
    }
    Ok(())
}

/// Checks the sampling parameters after their types have been checked.
pub(super) fn sampling(fields: &Fields, limits: &Limits, path: &str) -> Checked {
    let is_chat = path == "/v1/chat/completions";
    let is_text = is_chat || path == "/v1/completions";
    let int = |name: &str| given(fields, name).and_then(Value::as_i64);
    let echoes = path == "/v1/completions" && is_true(fields.get("echo")) && int("max_tokens") == Some(0);
    let max_tokens = ["max_completion_tokens", "max_tokens"].into_iter().find_map(|name| Some((name, int(name)?)));
    let length = i64::from(limits.max_model_len);
    if is_text {
        if let Some((name, count)) = max_tokens.filter(|(_, count)| *count > length) {
            let message = format!(
                "{name}={count} cannot be greater than max_model_len={length}. Please request fewer output tokens."
            );
            return refuse_value(message, name, &count.into());
        }
        if let Some(count) = int("truncate_prompt_tokens").filter(|count| *count > length) {
            let message = format!(
                "truncate_prompt_tokens={count} cannot be greater than max_model_len = {length}. Please request a \
                 smaller truncation size."
            );
            return refuse_value(message, "truncate_prompt_tokens", &count.into());
        }
    }
    if let Some(Value::Object(biases)) = given(fields, "logit_bias") {
        let is_unread = |key: &&String| key.trim().parse::<i64>().is_err();
        let unread: Vec<Value> = biases.keys().filter(is_unread).map(|key| Value::from(key.as_str())).collect();
        if !unread.is_empty() {
            let unread = Value::from(unread);
            let message =
                format!("logit_bias contains key(s) that cannot be converted to integer token IDs: {}", shown(&unread));
            return refuse_value(message, "logit_bias", &unread);
        }
    }
    if let Some(n) = int("n").filter(|n| *n < 1) {
        return refuse(format!("n must be at least 1, got {n}."));
    }
    numbers(fields)?;
    if let Some(top_k) = int("top_k").filter(|top_k| *top_k < -1) {
        return refuse(format!("top_k must be 0 (disable), or at least 1, got {top_k}."));
    }
    if let Some((_, text)) = fields.get("min_p").and_then(as_float).filter(|(min_p, _)| !(0.0..=1.0).contains(min_p)) {
        return refuse(format!("min_p must be in [0, 1], got {text}."));
    }
    if let Some((_, count)) = max_tokens.filter(|(_, count)| *count < 1 && !echoes) {
        return refuse_value(format!("max_tokens must be at least 1, got {count}."), "max_tokens", &count.into());
    }
    if let Some(least) = int("min_tokens") {
        if least < 0 {
            return refuse(format!("min_tokens must be greater than or equal to 0, got {least}."));
        }
        let default = (!is_chat).then_some(16);
        if let Some(most) = max_tokens.map(|(_, most)| most).or(default).filter(|most| least > *most) {
            return refuse(format!("min_tokens must be less than or equal to max_tokens={most}, got {least}."));
        }
    }
    if !is_text {
        for name in ["logprobs", "prompt_logprobs"] {
            if let Some(count) = int(name).filter(|count| *count < -1) {
                let message = format!("{name} must be non-negative or -1, got {count}.");
                return refuse_value(message, name, &count.into());
            }
        }
    }
    let is_empty = |text: &Value| text.as_str() == Some("");
    let stops = |stop: &Value| is_empty(stop) || stop.as_array().is_some_and(|texts| texts.iter().any(is_empty));
    if given(fields, "stop").is_some_and(stops) {
        return refuse("stop cannot contain an empty string.");
    }
    if let Some(words) = given(fields, "bad_words").filter(|words| stops(words)) {
        return refuse(format!("bad_words cannot contain an empty string. Got bad_words={}", shown(words)));
    }
    let is_greedy = fields.get("temperature").and_then(Value::as_f64).is_some_and(|temperature| temperature < 1e-5);
    if let Some(n) = int("n").filter(|n| *n > 1 && is_greedy) {
        return refuse(format!("n must be 1 when using greedy sampling, got {n}."));
    }
    against_model(fields, limits, is_chat)
}

fn numbers(fields: &Fields) -> Checked {
    let number = |name: &str| fields.get(name).and_then(as_float);
    for name in ["presence_penalty", "frequency_penalty"] {
        if let Some((_, text)) = number(name).filter(|(value, _)| !(-2.0..=2.0).contains(value)) {
            return refuse(format!("{name} must be in [-2, 2], got {text}."));
        }
    }
    if let Some((_, text)) = number("repetition_penalty").filter(|(value, _)| *value <= 0.0) {
        return refuse(format!("repetition_penalty must be greater than zero, got {text}."));
    }
    if let Some((value, text)) = number("temperature").filter(|(value, _)| !(0.0..=2.0).contains(value)) {
        let range = if value < 0.0 { "non-negative" } else { "in [0, 2]" };
        return Err(Refused::field(&format!("temperature must be {range}, got {text}."), "temperature", Some(text)));
    }
    if let Some((_, text)) = number("top_p").filter(|(value, _)| !(*value > 0.0 && *value <= 1.0)) {
        return Err(Refused::field(&format!("top_p must be in (0, 1], got {text}."), "top_p", Some(text)));
    }
    Ok(())
}

fn against_model(fields: &Fields, limits: &Limits, is_chat: bool) -> Checked {
    let own = if is_chat { "top_logprobs" } else { "logprobs" };
    for (name, of, param) in [(own, "sample", "logprobs"), ("prompt_logprobs", "prompt", "prompt_logprobs")] {
        let asked = given(fields, name).and_then(Value::as_i64).unwrap_or(0);
        let asked = if asked == -1 { i64::from(limits.vocab_size) } else { asked };
        if asked > MAX_LOGPROBS {
            let message =
                format!("Requested {of} logprobs of {asked}, which is greater than max allowed: {MAX_LOGPROBS}");
            return refuse_value(message, param, &asked.into());
        }
    }
    let outside = |ids: Vec<i64>| -> Vec<Value> {
        let is_outside = |id: &i64| *id < 0 || *id >= i64::from(limits.vocab_size);
        ids.into_iter().filter(is_outside).map(Value::from).collect()
    };
    let list = |name: &str| given(fields, name).and_then(Value::as_array);
    let ids = |name: &str| -> Vec<i64> { list(name).into_iter().flatten().filter_map(Value::as_i64).collect() };
    let biases: Vec<i64> = given(fields, "logit_bias")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|biases| biases.keys())
        .filter_map(|key| key.trim().parse().ok())
        .collect();
    for (name, ids) in [("stop_token_ids", ids("stop_token_ids")), ("logit_bias", biases)] {
        let outside = outside(ids);
        if !outside.is_empty() {
            let outside = Value::from(outside);
            let message = format!(
                "token_id(s) {} in {name} contain out-of-vocab token ids. Vocabulary size: {}",
                shown(&outside),
                limits.vocab_size
            );
            return refuse_value(message, name, &outside);
        }
    }
    let Some(allowed) = list("allowed_token_ids") else { return Ok(()) };
    if allowed.is_empty() {
        let message = "allowed_token_ids is not None and empty!";
        return refuse_value(message, "allowed_token_ids", &Value::Array(Vec::new()));
    }
    let outside = outside(ids("allowed_token_ids"));
    if outside.is_empty() {
        return Ok(());
    }
    refuse_value("allowed_token_ids contains out-of-vocab token id!", "allowed_token_ids", &outside.into())
}
