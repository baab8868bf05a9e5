//! Translates tools of the Responses API to function tools of a chat, and calls back.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::dialects::{InvalidRequest, copy, given, list, text};

/// Tools that models are not shown, because they run at OpenAI. vLLM drops them, too.
const DROPPED: &[&str] = &[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
];
/// The argument of the function that represents a custom tool.
const CUSTOM_INPUT: &str = "input";
/// Separates a namespace from a function name.
const SEPARATOR: &str = "__";

/// The tools of a request that are not plain functions.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolNames {
    /// Namespace and name, by the function name in the chat.
    namespaced: BTreeMap<String, (String, String)>,
    custom: BTreeSet<String>,
}

impl ToolNames {
    /// Reads the tools of a request, which [`chat_tools`] has checked.
    pub(super) fn of(request: &Value) -> Self {
        let mut names = Self::default();
        for tool in request["tools"].as_array().into_iter().flatten() {
            let Some(name) = tool["name"].as_str() else { continue };
            match tool["type"].as_str() {
                Some("custom") => _ = names.custom.insert(name.to_owned()),
                Some("namespace") => {
                    for local in functions_of(tool).filter_map(|function| function["name"].as_str()) {
                        names.namespaced.insert(flat_name(name, local), (name.to_owned(), local.to_owned()));
                    }
                }
                _ => {}
            }
        }
        names
    }

    /// Whether this is a custom tool, which takes a text instead of arguments.
    pub(super) fn is_custom(&self, name: &str) -> bool {
        self.custom.contains(name)
    }

    /// Splits a function name into namespace and name.
    pub(super) fn resolve<'a>(&'a self, name: &'a str) -> (Option<&'a str>, &'a str) {
        match self.namespaced.get(name) {
            Some((namespace, local)) => (Some(namespace), local),
            None => (None, name),
        }
    }
}

/// The name in the chat of a function in a namespace.
pub(super) fn flat_name(namespace: &str, name: &str) -> String {
    format!("{namespace}{SEPARATOR}{name}")
}

fn functions_of(namespace: &Value) -> impl Iterator<Item = &Value> {
    namespace["tools"].as_array().into_iter().flatten().filter(|tool| tool["type"] == "function")
}

/// Translates the tools to function tools of a chat.
pub(super) fn chat_tools(request: &Value) -> Result<Vec<Value>, InvalidRequest> {
    let mut out = Vec::new();
    let Some(tools) = given(request, "tools") else { return Ok(out) };
    for (index, tool) in list(tools, "tools")?.iter().enumerate() {
        let place = format!("tools[{index}]");
        match tool["type"].as_str() {
            Some("function") => out.push(function(tool, text(&tool["name"], &format!("{place}.name"))?)),
            Some("custom") => out.push(custom(tool, &place)?),
            Some("namespace") => {
                let namespace = text(&tool["name"], &format!("{place}.name"))?;
                for function_tool in functions_of(tool) {
                    let local = text(&function_tool["name"], &format!("{place}.tools[].name"))?;
                    out.push(function(function_tool, &flat_name(namespace, local)));
                }
            }
            Some(kind) if DROPPED.contains(&kind) => {}
            _ => {
                let problem = "expected `function`, `custom`, `namespace` or another type of tool that OpenAI has";
                return Err(InvalidRequest::new(format!("{place}.type"), problem));
            }
        }
    }
    Ok(out)
}

fn function(tool: &Value, name: &str) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(name));
    copy(tool, &["description", "parameters", "strict"], &mut function);
    json!({ "type": "function", "function": function })
}

/// Translates a custom tool to a function with one string argument.
fn custom(tool: &Value, place: &str) -> Result<Value, InvalidRequest> {
    if tool["format"]["type"] == "grammar" {
        let problem = "custom tools with a grammar are not supported; expected a format of type `text`";
        return Err(InvalidRequest::new(format!("{place}.format"), problem));
    }
    let parameters = json!({
        "type": "object",
        "properties": { CUSTOM_INPUT: { "type": "string", "description": "The freeform text payload for this tool." } },
        "required": [CUSTOM_INPUT],
        "additionalProperties": false,
    });
    let name = text(&tool["name"], &format!("{place}.name"))?;
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(name));
    copy(tool, &["description"], &mut function);
    function.insert("parameters".to_owned(), parameters);
    Ok(json!({ "type": "function", "function": function }))
}

/// Translates the tool choice. `tools` are the tools of the chat. None if there are no tools.
pub(super) fn tool_choice(request: &Value, tools: &[Value]) -> Result<Option<Value>, InvalidRequest> {
    let refused = |problem: &str| Err(InvalidRequest::new("tool_choice", problem));
    let Some(choice) = given(request, "tool_choice") else { return Ok((!tools.is_empty()).then(|| json!("auto"))) };
    let is_named = matches!(choice["type"].as_str(), Some("function" | "custom"));
    if tools.is_empty() {
        return match is_named || choice == "required" {
            true => refused("it requires a call, and `tools` has no tool that the model can call"),
            false => Ok(None),
        };
    }
    if choice.is_string() {
        return Ok(Some(choice.clone()));
    }
    if !is_named {
        // If the choice names tools that are dropped, the model may choose among the others.
        return match choice["type"].is_string() {
            true => Ok(Some(json!("auto"))),
            false => refused("expected `none`, `auto`, `required` or an object with a `type`"),
        };
    }
    let wanted = text(&choice["name"], "tool_choice.name")?;
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
    let named = |name: &str| Ok(Some(json!({ "type": "function", "function": { "name": name } })));
    if names.contains(&wanted) {
        return named(wanted);
    }
    let known = ToolNames::of(request);
    let mut within = known.namespaced.iter().filter(|(_, (_, local))| local == wanted).map(|(flat, _)| flat.as_str());
    match (within.next(), within.next()) {
        (Some(only), None) => named(only),
        (Some(_), Some(_)) => {
            refused(&format!("`{wanted}` is in several namespaces: expected NAMESPACE{SEPARATOR}NAME"))
        }
        (None, _) => refused(&format!("`{wanted}` is not one of the tools")),
    }
}

/// The arguments of the function that represents a custom tool.
pub(super) fn custom_arguments(input: &str) -> String {
    json!({ CUSTOM_INPUT: input }).to_string()
}

/// The input of a custom tool's call. Arguments in another format are used as they are.
pub(super) fn custom_input(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    let input = parsed.as_ref().and_then(|arguments| arguments[CUSTOM_INPUT].as_str());
    input.unwrap_or(arguments).to_owned()
}

/// The input of a custom tool's call whose arguments are incomplete. It ends with a complete character.
pub(super) fn custom_input_so_far(arguments: &str) -> String {
    let behind = |text: &str, prefix: &str| text.trim_start().strip_prefix(prefix).map(str::to_owned);
    let key = format!("\"{CUSTOM_INPUT}\"");
    let inside = behind(arguments, "{").and_then(|rest| behind(&rest, &key)).and_then(|rest| behind(&rest, ":"));
    let Some(escaped) = inside.and_then(|rest| behind(&rest, "\"")) else { return String::new() };
    let mut end = 0;
    // Find the end of the text, or of its last complete character.
    while let Some(length) = escaped_length(&escaped[end..]) {
        end += length;
    }
    serde_json::from_str(&format!("\"{}\"", &escaped[..end])).unwrap_or_default()
}

/// The length of the first character of an escaped text. None at the end of the text, or if the character is
/// incomplete.
fn escaped_length(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    match first {
        '"' => None,
        '\\' => {
            let kind = text[1..].chars().next()?;
            if kind != 'u' {
                return Some(1 + kind.len_utf8());
            }
            let unit = |at: usize| u16::from_str_radix(text.get(at..at + 4)?, 16).ok();
            match unit(2)? {
                // The first half of a surrogate pair.
                0xD800..=0xDBFF => unit(8).map(|_| 12),
                _ => Some(6),
            }
        }
        other => Some(other.len_utf8()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Value {
        let function = |name: &str| json!({ "type": "function", "name": name, "parameters": {}, "strict": false });
        json!({ "tools": [
            function("f"),
            { "type": "web_search", "search_context_size": "low" },
            { "type": "local_shell" },
            { "type": "custom", "name": "patch", "description": "of files", "format": { "type": "text" } },
            { "type": "namespace", "name": "a", "tools": [function("g"), function("h"), { "type": "custom", "name": "c" }] },
            { "type": "namespace", "name": "b", "tools": [function("h")] },
        ] })
    }

    #[test]
    fn tools_are_flattened_or_dropped() {
        let tools = chat_tools(&request()).expect("known tools");
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
        assert_eq!(names, ["f", "patch", "a__g", "a__h", "b__h"]);
        assert_eq!(tools[1]["function"]["parameters"]["required"], json!(["input"]));
        let names = ToolNames::of(&request());
        assert_eq!(names.resolve("a__h"), (Some("a"), "h"));
        assert_eq!(names.resolve("f"), (None, "f"));
        assert!(names.is_custom("patch") && !names.is_custom("c"));
        let refused = |tool: Value| chat_tools(&json!({ "tools": [tool] })).expect_err("it is refused").message;
        assert!(refused(json!({ "type": "functoin" })).starts_with("invalid tools[0].type: expected `function`"));
        let grammar = json!({ "type": "custom", "name": "c", "format": { "type": "grammar", "syntax": "lark" } });
        assert!(refused(grammar).starts_with("invalid tools[0].format: custom tools with a grammar"));
    }

    #[test]
    fn choices_name_tools_of_the_chat() {
        let tools = chat_tools(&request()).expect("known tools");
        let choose = |choice: Value| {
            let mut request = request();
            request["tool_choice"] = choice;
            tool_choice(&request, &tools).map(|choice| choice.unwrap_or_default())
        };
        let named = |kind: &str, name: &str| json!({ "type": kind, "name": name });
        let chosen = |name: &str| Ok(json!({ "type": "function", "function": { "name": name } }));
        assert_eq!(choose(json!("required")), Ok(json!("required")));
        assert_eq!(choose(named("function", "f")), chosen("f"));
        assert_eq!(choose(named("custom", "patch")), chosen("patch"));
        assert_eq!(choose(named("function", "g")), chosen("a__g"));
        assert_eq!(choose(named("function", "b__h")), chosen("b__h"));
        assert_eq!(choose(json!({ "type": "web_search" })), Ok(json!("auto")));
        assert!(choose(named("function", "h")).is_err_and(|error| error.message.contains("several namespaces")));
        assert!(choose(named("function", "x")).is_err());
        let nothing = |choice: &str| tool_choice(&json!({ "tool_choice": choice }), &[]);
        assert_eq!(nothing("auto"), Ok(None));
        assert!(nothing("required").is_err());
    }

    #[test]
    fn inputs_of_custom_tools_are_texts_at_any_time() {
        let input = "a \"b\"\n\u{1F600}\u{e9}";
        let arguments = custom_arguments(input);
        assert_eq!(custom_input(&arguments), input);
        assert_eq!(custom_input("bare"), "bare");
        for escaped in [arguments.clone(), r#"{ "input" : "a \"b\"\n\ud83d\ude00\u00e9" }"#.to_owned()] {
            for end in (0..=escaped.len()).filter(|end| escaped.is_char_boundary(*end)) {
                let so_far = custom_input_so_far(&escaped[..end]);
                assert!(input.starts_with(&so_far), "{so_far:?} of {:?}", &escaped[..end]);
            }
            assert_eq!(custom_input_so_far(&escaped), input);
        }
        assert_eq!(custom_input_so_far(r#"{"other": "a"}"#), "");
    }
}
