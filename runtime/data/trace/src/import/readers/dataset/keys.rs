//! Finds the prompt and the response in a row of a data set.

use serde_json::{Map, Value};

use crate::import::error::Problem;

/// Keys of prompts, in order of precedence.
const PROMPT_KEYS: [&str; 6] = ["prompt", "instruction", "question", "query", "input_text", "context"];
/// Keys whose text is appended to the prompt.
const MORE_KEYS: [&str; 2] = ["input", "inputs"];
/// Keys of responses, in order of precedence.
const RESPONSE_KEYS: [&str; 6] = ["output", "response", "completion", "answer", "target", "label"];
const MESSAGES: &str = "messages";
/// Keys of prompts that are used if the row has no other.
const PLAIN_KEYS: [&str; 2] = ["text", "content"];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) prompt_key: &'static str,
    pub(super) prompt: String,
    pub(super) response_key: &'static str,
    pub(super) response: String,
}

pub(super) fn pair(row: &Map<String, Value>) -> Result<Pair, Problem> {
    let (prompt_key, mut prompt) = first(row, &PROMPT_KEYS)?
        .map_or_else(|| messages(row, &["system", "user"]), |found| Ok(Some(found)))?
        .map_or_else(|| first(row, &PLAIN_KEYS), |found| Ok(Some(found)))?
        .ok_or_else(|| missing("prompt", &PROMPT_KEYS))?;
    if let Some((_, more)) = first(row, &MORE_KEYS)?.filter(|(_, more)| !more.is_empty() && prompt_key != MESSAGES) {
        prompt.push('\n');
        prompt.push_str(&more);
    }
    let (response_key, response) = first(row, &RESPONSE_KEYS)?
        .map_or_else(|| messages(row, &["assistant"]), |found| Ok(Some(found)))?
        .ok_or_else(|| missing("response", &RESPONSE_KEYS))?;
    Ok(Pair { prompt_key, prompt, response_key, response })
}

fn missing(what: &str, keys: &[&str]) -> Problem {
    let text = format!("the row has no {what}; name it one of {}, or give `{MESSAGES}`", keys.join(", "));
    Problem::new("", text)
}

fn first(row: &Map<String, Value>, keys: &[&'static str]) -> Result<Option<(&'static str, String)>, Problem> {
    let found = keys.iter().find_map(|key| Some((*key, row.get(*key).filter(|value| !value.is_null())?)));
    let Some((key, value)) = found else { return Ok(None) };
    Ok(Some((key, text(key, value)?)))
}

fn text(key: &str, value: &Value) -> Result<String, Problem> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        _ => Err(Problem::new(key, "invalid value: expected a text")),
    }
}

/// The texts of the messages with these roles, one per line.
fn messages(row: &Map<String, Value>, roles: &[&str]) -> Result<Option<(&'static str, String)>, Problem> {
    let Some(value) = row.get(MESSAGES).filter(|value| !value.is_null()) else { return Ok(None) };
    let wrong = || {
        Problem::new(MESSAGES, "invalid value: expected a list of objects with `role` and `content`; correct the row")
    };
    let mut texts = Vec::new();
    for message in value.as_array().ok_or_else(wrong)? {
        let role = message.get("role").and_then(Value::as_str).ok_or_else(wrong)?;
        if roles.contains(&role) {
            texts.push(text(MESSAGES, message.get("content").ok_or_else(wrong)?)?);
        }
    }
    Ok((!texts.is_empty()).then(|| (MESSAGES, texts.join("\n"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(row: Value) -> Result<(String, String), String> {
        let found = pair(row.as_object().expect("an object"));
        found.map(|pair| (pair.prompt, pair.response)).map_err(|problem| format!("{}: {}", problem.field, problem.text))
    }

    fn texts(prompt: &str, response: &str) -> Result<(String, String), String> {
        Ok((prompt.to_owned(), response.to_owned()))
    }

    #[test]
    fn prompts_and_responses_are_found_by_the_order_of_keys() {
        assert_eq!(of(json!({"context": "c", "prompt": "p", "answer": "a", "output": "o"})), texts("p", "o"));
        assert_eq!(of(json!({"instruction": "i", "input": "x", "output": "o"})), texts("i\nx", "o"));
        assert_eq!(of(json!({"instruction": "i", "input": "", "label": 3})), texts("i", "3"));
        assert_eq!(of(json!({"prompt": null, "text": "t", "target": true})), texts("t", "true"));
        let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
            {"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}]);
        assert_eq!(of(json!({"messages": messages})), texts("s\nu\nv", "a"));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(of(json!({"output": "o"})).expect_err("no prompt").contains("no prompt; name it one of prompt, "));
        assert!(of(json!({"prompt": "o"})).expect_err("no response").contains("no response; name it one of output, "));
        assert!(of(json!({"prompt": ["o"], "output": "a"})).expect_err("a list").starts_with("prompt: "));
        assert!(of(json!({"messages": "o", "output": "a"})).expect_err("a text").starts_with("messages: "));
    }
}
