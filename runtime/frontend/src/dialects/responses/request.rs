//! Responses requests as chat-completion requests.

use serde_json::{Map, Value, json};

use crate::dialects::{InvalidRequest, copy, given, list, text};

/// The chat-completion request that has the same meaning. `earlier` are the messages of
/// the response that `previous_response_id` names, its answer included.
///
/// # Errors
/// When a field is missing or of another shape.
pub fn chat_request(request: &Value, earlier: &[Value]) -> Result<Value, InvalidRequest> {
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
    if let Some(tools) = given(request, "tools") {
        let tools: Result<Vec<Value>, _> = list(tools, "tools")?.iter().enumerate().map(tool).collect();
        let tools = tools?;
        if !tools.is_empty() {
            chat.insert("tools".to_owned(), Value::Array(tools));
            chat.insert("tool_choice".to_owned(), tool_choice(given(request, "tool_choice"))?);
        }
    }
    if request["stream"] == true {
        chat.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    }
    Ok(Value::Object(chat))
}

/// The chat messages of a request's `input`.
///
/// # Errors
/// When it is missing or an item has another shape.
pub fn input_messages(request: &Value) -> Result<Vec<Value>, InvalidRequest> {
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
            "function_call" => call(item, &place, &mut out)?,
            "function_call_output" => out.push(json!({
                "role": "tool",
                "tool_call_id": text(&item["call_id"], &format!("{place}.call_id"))?,
                "content": call_output(&item["output"]),
            })),
            // Reasoning of earlier turns is not part of the prompt.
            "reasoning" => {}
            _ => {
                let expected = "expected `message`, `function_call`, `function_call_output` or `reasoning`";
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

/// A call of an earlier turn. Calls in a row are one message of the assistant.
fn call(item: &Value, place: &str, out: &mut Vec<Value>) -> Result<(), InvalidRequest> {
    let call = json!({
        "id": text(&item["call_id"], &format!("{place}.call_id"))?,
        "type": "function",
        "function": {
            "name": text(&item["name"], &format!("{place}.name"))?,
            "arguments": text(&item["arguments"], &format!("{place}.arguments"))?,
        },
    });
    if let Some(Value::Array(calls)) = out.last_mut().and_then(|message| message.get_mut("tool_calls")) {
        calls.push(call);
    } else {
        out.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
    }
    Ok(())
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

fn tool((index, tool): (usize, &Value)) -> Result<Value, InvalidRequest> {
    if tool["type"] != "function" {
        return Err(InvalidRequest::new(format!("tools[{index}].type"), "expected `function`"));
    }
    let mut function = Map::new();
    copy(tool, &["name", "description", "parameters", "strict"], &mut function);
    Ok(json!({ "type": "function", "function": function }))
}

fn tool_choice(choice: Option<&Value>) -> Result<Value, InvalidRequest> {
    match choice {
        None => Ok(json!("auto")),
        Some(Value::String(_)) => Ok(choice.cloned().unwrap_or_default()),
        Some(choice) => {
            let name = text(&choice["name"], "tool_choice.name")?;
            Ok(json!({ "type": "function", "function": { "name": name } }))
        }
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
    fn what_cannot_be_translated_is_named() {
        let message_of = |request: Value| chat_request(&request, &[]).expect_err("invalid").message;
        assert_eq!(message_of(json!({})), "invalid input: expected a string or a list of items");
        let file = json!({ "input": [{ "role": "user", "content": [{ "type": "input_file" }] }] });
        assert!(message_of(file).starts_with("invalid input[0].content[0].type: expected `input_text`"));
        let tool = json!({ "input": "x", "tools": [{ "type": "web_search" }] });
        assert_eq!(message_of(tool), "invalid tools[0].type: expected `function`");
    }
}
