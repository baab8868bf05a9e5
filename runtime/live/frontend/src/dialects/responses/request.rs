//! Translates requests of the Responses API to chat completions.

use serde_json::{Map, Value, json};

use super::tools::{chat_tools, custom_arguments, flat_name, tool_choice};
use crate::dialects::{InvalidRequest, copy, given, list, text};

/// Input items that models never see: they belong to OpenAI's hosted tools.
const DROPPED: &[&str] = &[
    "additional_tools",
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "item_reference",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    // Reasoning of earlier turns is not part of the prompt.
    "reasoning",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

/// Translates a request to a chat completion. `earlier` contains the messages up to the response that
/// `previous_response_id` names, including that response.
pub(crate) fn chat_request(request: &Value, earlier: &[Value]) -> Result<Value, InvalidRequest> {
    if !request.is_object() {
        return Err(InvalidRequest::new("request", "expected an object"));
    }
    let mut chat = Map::new();
    copy(request, &["model", "stream", "temperature", "top_p", "top_k", "seed", "priority", "cache_salt"], &mut chat);
    copy(request, &["kv_transfer_params", "ignore_eos", "min_tokens", "user", "parallel_tool_calls"], &mut chat);
    if let Some(max_tokens) = given(request, "max_output_tokens") {
        chat.insert("max_completion_tokens".to_owned(), max_tokens.clone());
    }
    if let Some(effort) = request.pointer("/reasoning/effort").filter(|effort| !effort.is_null()) {
        chat.insert("reasoning_effort".to_owned(), effort.clone());
    }
    if let Some(format) = request.pointer("/text/format").and_then(response_format) {
        chat.insert("response_format".to_owned(), format);
    }
    let mut messages = Vec::new();
    if let Some(instructions) = given(request, "instructions") {
        messages.push(json!({ "role": "system", "content": text(instructions, "instructions")? }));
    }
    messages.extend(earlier.iter().cloned());
    messages.extend(input_messages(request)?);
    chat.insert("messages".to_owned(), Value::Array(messages));
    let tools = chat_tools(request)?;
    if let Some(choice) = tool_choice(request, &tools)? {
        chat.insert("tools".to_owned(), Value::Array(tools));
        chat.insert("tool_choice".to_owned(), choice);
    }
    if includes_logprobs(request) {
        chat.insert("logprobs".to_owned(), json!(true));
        copy(request, &["top_logprobs"], &mut chat);
    }
    if request["stream"] == true {
        chat.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    }
    Ok(Value::Object(chat))
}

fn includes_logprobs(request: &Value) -> bool {
    let include = request["include"].as_array();
    include.is_some_and(|include| include.iter().any(|part| part == "message.output_text.logprobs"))
}

/// Translates a request's `input` to chat messages.
pub(crate) fn input_messages(request: &Value) -> Result<Vec<Value>, InvalidRequest> {
    let input =
        given(request, "input").ok_or_else(|| InvalidRequest::new("input", "expected a string or a list of items"))?;
    if let Some(text) = input.as_str() {
        return Ok(vec![json!({ "role": "user", "content": text })]);
    }
    let mut out: Vec<Value> = Vec::new();
    for (index, item) in list(input, "input")?.iter().enumerate() {
        let place = format!("input[{index}]");
        match item["type"].as_str().unwrap_or("message") {
            "message" => out.push(message(item, &place)?),
            "function_call" => {
                let name = text(&item["name"], &format!("{place}.name"))?;
                let name = item["namespace"].as_str().map_or_else(|| name.to_owned(), |space| flat_name(space, name));
                call(item, &place, &name, text(&item["arguments"], &format!("{place}.arguments"))?, &mut out)?;
            }
            "custom_tool_call" => {
                let name = text(&item["name"], &format!("{place}.name"))?;
                let arguments = custom_arguments(item["input"].as_str().unwrap_or_default());
                call(item, &place, name, &arguments, &mut out)?;
            }
            "function_call_output" | "custom_tool_call_output" => out.push(json!({
                "role": "tool",
                "tool_call_id": output_id(item, &place)?,
                "content": call_output(&item["output"]),
            })),
            kind if DROPPED.contains(&kind) => {}
            _ => {
                let expected = "expected `message`, `function_call`, `function_call_output` or another type of item that \
                                OpenAI has";
                return Err(InvalidRequest::new(format!("{place}.type"), expected));
            }
        }
    }
    Ok(out)
}

fn message(item: &Value, place: &str) -> Result<Value, InvalidRequest> {
    let role = match item["role"].as_str() {
        Some("developer") => "system",
        Some(role @ ("user" | "assistant" | "system")) => role,
        _ => {
            let expected = "expected `user`, `assistant`, `system` or `developer`";
            return Err(InvalidRequest::new(format!("{place}.role"), expected));
        }
    };
    if item["content"].is_string() {
        return Ok(json!({ "role": role, "content": item["content"] }));
    }
    let parts = list(&item["content"], &format!("{place}.content"))?;
    let parts: Result<Vec<Value>, _> = parts.iter().enumerate().map(|part| content_part(part, place)).collect();
    let parts = parts?;
    let content = match parts.as_slice() {
        [only] if only["type"] == "text" => only["text"].clone(),
        _ => Value::Array(parts),
    };
    Ok(json!({ "role": role, "content": content }))
}

fn content_part((index, part): (usize, &Value), place: &str) -> Result<Value, InvalidRequest> {
    let param = format!("{place}.content[{index}]");
    match part["type"].as_str() {
        Some("input_text" | "output_text" | "text") => {
            Ok(json!({ "type": "text", "text": text(&part["text"], &format!("{param}.text"))? }))
        }
        Some("refusal") => Ok(json!({ "type": "text", "text": text(&part["refusal"], &format!("{param}.refusal"))? })),
        Some("input_image") => {
            let url = text(&part["image_url"], &format!("{param}.image_url"))?;
            Ok(json!({ "type": "image_url", "image_url": { "url": url } }))
        }
        Some("input_audio") => Ok(json!({ "type": "input_audio", "input_audio": part["input_audio"] })),
        _ => {
            let expected = "expected `input_text`, `output_text`, `input_image` or `input_audio`";
            Err(InvalidRequest::new(format!("{param}.type"), expected))
        }
    }
}

/// Adds a call of an earlier turn. Consecutive calls form one assistant message.
fn call(item: &Value, place: &str, name: &str, arguments: &str, out: &mut Vec<Value>) -> Result<(), InvalidRequest> {
    let call = json!({
        "id": text(&item["call_id"], &format!("{place}.call_id"))?,
        "type": "function",
        "function": { "name": name, "arguments": arguments },
    });
    if let Some(Value::Array(calls)) = out.last_mut().and_then(|message| message.get_mut("tool_calls")) {
        calls.push(call);
    } else {
        out.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
    }
    Ok(())
}

/// The id of the call that an output belongs to. Codex also sends outputs without a call.
fn output_id<'a>(item: &'a Value, place: &str) -> Result<&'a str, InvalidRequest> {
    given(item, "call_id").map_or(Ok(""), |id| text(id, &format!("{place}.call_id")))
}

fn call_output(output: &Value) -> String {
    match output {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        other => other.to_string(),
    }
}

fn response_format(format: &Value) -> Option<Value> {
    match format["type"].as_str()? {
        "json_object" => Some(json!({ "type": "json_object" })),
        "json_schema" => {
            let mut schema = Map::new();
            copy(format, &["name", "schema", "strict", "description"], &mut schema);
            Some(json!({ "type": "json_schema", "json_schema": schema }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_message_behind_the_instructions() {
        let request = json!({
            "model": "sim", "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 8, "stream": true,
            "reasoning": { "effort": "low" },
            "text": { "format": { "type": "json_schema", "name": "n", "schema": { "type": "object" }, "strict": true } },
        });
        let earlier = [json!({ "role": "user", "content": "before" })];
        let expected = json!({
            "model": "sim", "stream": true, "max_completion_tokens": 8, "reasoning_effort": "low",
            "stream_options": { "include_usage": true },
            "response_format": {
                "type": "json_schema", "json_schema": { "name": "n", "schema": { "type": "object" }, "strict": true },
            },
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": "before" },
                { "role": "user", "content": "Hi" },
            ],
        });
        assert_eq!(chat_request(&request, &earlier).expect("translatable"), expected);
    }

    #[test]
    fn calls_in_a_row_are_one_message_and_their_outputs_follow() {
        let call = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "f", "arguments": "{}" });
        let request = json!({
            "input": [
                { "role": "developer", "content": "Be brief." },
                { "role": "user", "content": [
                    { "type": "input_text", "text": "Look" }, { "type": "input_image", "image_url": "http://a/b.png" },
                ] },
                { "type": "reasoning", "summary": [] },
                call("1"), call("2"),
                { "type": "function_call_output", "call_id": "1", "output": "one" },
                { "type": "function_call_output", "call_id": "2", "output": [{ "type": "input_text", "text": "two" }] },
            ],
            "tools": [{ "type": "function", "name": "f", "parameters": {} }],
            "tool_choice": { "type": "function", "name": "f" },
        });
        let chat = chat_request(&request, &[]).expect("translatable");
        let roles: Vec<_> = chat["messages"].as_array().expect("a list").iter().map(|one| &one["role"]).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
        assert_eq!(chat["messages"][2]["tool_calls"].as_array().map(Vec::len), Some(2));
        assert_eq!(chat["messages"][1]["content"][1]["type"], "image_url");
        assert_eq!(chat["messages"][4]["content"], "two");
        assert_eq!(chat["tool_choice"]["function"]["name"], "f");
    }

    #[test]
    fn items_of_other_tools_are_calls_or_dropped() {
        let request = json!({ "input": [
            { "type": "web_search_call", "id": "ws_1", "status": "completed", "action": {} },
            { "type": "item_reference", "id": "msg_1" },
            { "type": "local_shell_call", "id": "ls_1", "call_id": "1", "action": {}, "status": "completed" },
            { "type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "a \"b\"" },
            { "type": "custom_tool_call_output", "call_id": "2", "output": "done" },
            { "type": "function_call_output", "name": "goal", "namespace": "agent", "output": "more" },
            { "type": "function_call", "call_id": "3", "name": "f", "namespace": "n", "arguments": "{}" },
        ], "include": ["message.output_text.logprobs"], "top_logprobs": 2 });
        let chat = chat_request(&request, &[]).expect("translatable");
        let messages = chat["messages"].as_array().expect("a list");
        let roles: Vec<_> = messages.iter().map(|one| &one["role"]).collect();
        assert_eq!(roles, ["assistant", "tool", "tool", "assistant"]);
        let function = &messages[0]["tool_calls"][0]["function"];
        assert_eq!((&function["name"], &function["arguments"]), (&json!("patch"), &json!(r#"{"input":"a \"b\""}"#)));
        assert_eq!(messages[3]["tool_calls"][0]["function"]["name"], "n__f");
        assert_eq!((&chat["logprobs"], &chat["top_logprobs"]), (&json!(true), &json!(2)));
    }

    #[test]
    fn what_cannot_be_translated_is_named() {
        let message_of = |request: Value| chat_request(&request, &[]).expect_err("invalid").message;
        assert_eq!(message_of(json!({})), "invalid input: expected a string or a list of items");
        let file = json!({ "input": [{ "role": "user", "content": [{ "type": "input_file" }] }] });
        assert!(message_of(file).starts_with("invalid input[0].content[0].type: expected `input_text`"));
        let item = json!({ "input": [{ "type": "function_cal" }] });
        assert!(message_of(item).starts_with("invalid input[0].type: expected `message`"));
    }
}
