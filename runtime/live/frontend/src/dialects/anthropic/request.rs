//! Translates requests of the Messages API to chat completions.

use serde_json::{Map, Value, json};

use crate::dialects::{InvalidRequest, copy, given, list, text};

/// The efforts that vLLM supports.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
/// The minimum thinking budget, in tokens.
const MIN_THINKING_TOKENS: u64 = 1024;

/// Translates a request to a chat completion.
pub(crate) fn chat_request(request: &Value) -> Result<Value, InvalidRequest> {
    let mut chat = prompt_fields(request)?;
    let max_tokens = request["max_tokens"].as_u64().filter(|tokens| *tokens > 0);
    let max_tokens = max_tokens.ok_or_else(|| InvalidRequest::new("max_tokens", "expected a number above 0"))?;
    // A request whose decode runs elsewhere generates only one token.
    let is_prefill = request["kv_transfer_params"]["do_remote_decode"] == true;
    if let Some(budget) = thinking_tokens(request)?.filter(|budget| !is_prefill && *budget >= max_tokens) {
        let problem = format!("expected less than `max_tokens`, which is {max_tokens}, got {budget}");
        return Err(InvalidRequest::new("thinking.budget_tokens", problem));
    }
    chat.insert("max_completion_tokens".to_owned(), json!(max_tokens));
    copy(request, &["stream", "temperature", "top_p", "top_k", "seed", "priority", "ignore_eos"], &mut chat);
    copy(request, &["kv_transfer_params", "min_tokens"], &mut chat);
    if let Some(stop) = given(request, "stop_sequences") {
        chat.insert("stop".to_owned(), stop.clone());
    }
    if let Some(format) = response_format(request)? {
        chat.insert("response_format".to_owned(), format);
    }
    if request["stream"] == true {
        chat.insert("stream_options".to_owned(), json!({ "include_usage": true, "continuous_usage_stats": true }));
    }
    Ok(Value::Object(chat))
}

/// Translates only the prompt, to count its tokens.
pub(crate) fn prompt_request(request: &Value) -> Result<Value, InvalidRequest> {
    prompt_fields(request).map(Value::Object)
}

/// The fields of a chat that affect its prompt.
fn prompt_fields(request: &Value) -> Result<Map<String, Value>, InvalidRequest> {
    if !request.is_object() {
        return Err(InvalidRequest::new("request", "expected an object"));
    }
    if request["model"].as_str().is_none_or(str::is_empty) {
        return Err(InvalidRequest::new("model", "expected the name of a model"));
    }
    let mut chat = Map::new();
    copy(request, &["model", "cache_salt", "chat_template_kwargs"], &mut chat);
    chat.insert("messages".to_owned(), Value::Array(messages(request)?));
    if let Some(tools) = given(request, "tools") {
        let tools: Result<Vec<Value>, _> = list(tools, "tools")?.iter().enumerate().map(tool).collect();
        chat.insert("tools".to_owned(), Value::Array(tools?));
        chat.insert("tool_choice".to_owned(), tool_choice(given(request, "tool_choice"))?);
        if request["tool_choice"]["disable_parallel_tool_use"] == true {
            chat.insert("parallel_tool_calls".to_owned(), json!(false));
        }
    }
    let thinks = thinking(request)?;
    thinking_tokens(request)?;
    if let Some(effort) = effort(request)?.filter(|_| thinks != Some(false)) {
        chat.insert("reasoning_effort".to_owned(), json!(effort));
    }
    if let Some(is_on) = thinks {
        let kwargs = chat.entry("chat_template_kwargs").or_insert_with(|| json!({}));
        if let Value::Object(kwargs) = kwargs {
            kwargs.entry("enable_thinking").or_insert(json!(is_on));
        }
    }
    Ok(chat)
}

/// The JSON schema of the answer, if the request has one.
fn response_format(request: &Value) -> Result<Option<Value>, InvalidRequest> {
    let Some(format) = given(&request["output_config"], "format") else { return Ok(None) };
    let kind = given(format, "type").map_or(Some("json_schema"), Value::as_str);
    if kind != Some("json_schema") {
        return Err(InvalidRequest::new("output_config.format.type", "expected `json_schema`"));
    }
    match given(format, "schema") {
        None => Ok(None),
        Some(schema) if schema.is_object() => {
            Ok(Some(json!({ "type": "json_schema", "json_schema": { "name": "json_schema", "schema": schema } })))
        }
        Some(_) => Err(InvalidRequest::new("output_config.format.schema", "expected an object")),
    }
}

fn effort(request: &Value) -> Result<Option<&str>, InvalidRequest> {
    let Some(effort) = given(&request["output_config"], "effort") else { return Ok(None) };
    match effort.as_str().filter(|effort| EFFORTS.contains(effort)) {
        Some(effort) => Ok(Some(effort)),
        None => Err(InvalidRequest::new("output_config.effort", format!("expected one of {}", EFFORTS.join(", ")))),
    }
}

/// The thinking budget in tokens. None unless thinking is enabled.
fn thinking_tokens(request: &Value) -> Result<Option<u64>, InvalidRequest> {
    if request["thinking"]["type"] != "enabled" {
        return Ok(None);
    }
    match request["thinking"]["budget_tokens"].as_u64() {
        Some(budget) if budget >= MIN_THINKING_TOKENS => Ok(Some(budget)),
        _ => {
            let problem = format!("expected a number of at least {MIN_THINKING_TOKENS}");
            Err(InvalidRequest::new("thinking.budget_tokens", problem))
        }
    }
}

/// Whether the answer should contain reasoning, if the request states it.
fn thinking(request: &Value) -> Result<Option<bool>, InvalidRequest> {
    let Some(thinking) = given(request, "thinking") else { return Ok(None) };
    match thinking["type"].as_str() {
        Some("enabled" | "adaptive") => Ok(Some(true)),
        Some("disabled") => Ok(Some(false)),
        _ => Err(InvalidRequest::new("thinking.type", "expected `enabled`, `adaptive` or `disabled`")),
    }
}

fn messages(request: &Value) -> Result<Vec<Value>, InvalidRequest> {
    let mut out = Vec::new();
    if let Some(system) = given(request, "system") {
        out.push(json!({ "role": "system", "content": system_text(system)? }));
    }
    let messages =
        given(request, "messages").ok_or_else(|| InvalidRequest::new("messages", "expected a list of messages"))?;
    for (index, message) in list(messages, "messages")?.iter().enumerate() {
        let place = format!("messages[{index}]");
        let role = message["role"].as_str().unwrap_or_default();
        let content = &message["content"];
        match (role, content) {
            ("user" | "assistant" | "system", Value::String(_)) => {
                out.push(json!({ "role": role, "content": content }));
            }
            ("user" | "system", _) => user(list(content, &format!("{place}.content"))?, role, &place, &mut out)?,
            ("assistant", _) => out.push(assistant(list(content, &format!("{place}.content"))?, &place)?),
            _ => return Err(InvalidRequest::new(format!("{place}.role"), "expected `user` or `assistant`")),
        }
    }
    Ok(out)
}

fn system_text(system: &Value) -> Result<String, InvalidRequest> {
    if let Some(text) = system.as_str() {
        return Ok(text.to_owned());
    }
    let blocks = list(system, "system")?;
    let texts: Result<Vec<&str>, _> = blocks.iter().map(|block| text(&block["text"], "system[].text")).collect();
    Ok(texts?.join(""))
}

/// Translates the blocks of a user's turn. Tool results become separate messages before the user's text.
fn user(blocks: &[Value], role: &str, place: &str, out: &mut Vec<Value>) -> Result<(), InvalidRequest> {
    let mut parts = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let param = format!("{place}.content[{index}]");
        match block["type"].as_str() {
            Some("text") => {
                parts.push(json!({ "type": "text", "text": text(&block["text"], &format!("{param}.text"))? }));
            }
            Some("image") => parts.push(image(block, &param)?),
            Some("tool_result") => tool_result(block, &param, out)?,
            _ => return Err(InvalidRequest::new(format!("{param}.type"), "expected `text`, `image` or `tool_result`")),
        }
    }
    match parts.as_slice() {
        [] => {}
        [only] if only["type"] == "text" => out.push(json!({ "role": role, "content": only["text"] })),
        _ => out.push(json!({ "role": role, "content": parts })),
    }
    Ok(())
}

fn image_url(source: &Value, param: &str) -> Result<String, InvalidRequest> {
    match source["type"].as_str() {
        Some("url") => Ok(text(&source["url"], &format!("{param}.source.url"))?.to_owned()),
        Some("base64") => {
            let media = source["media_type"].as_str().unwrap_or("image/png");
            Ok(format!("data:{media};base64,{}", text(&source["data"], &format!("{param}.source.data"))?))
        }
        _ => Err(InvalidRequest::new(format!("{param}.source.type"), "expected `url` or `base64`")),
    }
}

fn image(block: &Value, param: &str) -> Result<Value, InvalidRequest> {
    Ok(json!({ "type": "image_url", "image_url": { "url": image_url(&block["source"], param)? } }))
}

/// Translates a tool result to a tool message with the texts and a user message with the images. As in vLLM, images
/// cannot stay in the tool message, because chat templates do not support them there.
fn tool_result(block: &Value, param: &str, out: &mut Vec<Value>) -> Result<(), InvalidRequest> {
    let place = format!("{param}.content");
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    match &block["content"] {
        Value::Null => {}
        Value::String(text) => texts.push(text.as_str()),
        blocks => {
            for (index, part) in list(blocks, &place)?.iter().enumerate() {
                match part["type"].as_str() {
                    Some("image") => images.push(image(part, &format!("{place}[{index}]"))?),
                    _ => texts.extend(part["text"].as_str()),
                }
            }
        }
    }
    let id = text(&block["tool_use_id"], &format!("{param}.tool_use_id"))?;
    out.push(json!({ "role": "tool", "tool_call_id": id, "content": texts.join("\n") }));
    if !images.is_empty() {
        out.push(json!({ "role": "user", "content": images }));
    }
    Ok(())
}

fn assistant(blocks: &[Value], place: &str) -> Result<Value, InvalidRequest> {
    let (mut said, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let param = format!("{place}.content[{index}]");
        match block["type"].as_str() {
            Some("text") => said.push_str(text(&block["text"], &format!("{param}.text"))?),
            Some("thinking") => reasoning.push_str(text(&block["thinking"], &format!("{param}.thinking"))?),
            Some("redacted_thinking") => {}
            Some("tool_use") => calls.push(json!({
                "id": text(&block["id"], &format!("{param}.id"))?,
                "type": "function",
                "function": {
                    "name": text(&block["name"], &format!("{param}.name"))?,
                    "arguments": block["input"].to_string(),
                },
            })),
            _ => return Err(InvalidRequest::new(format!("{param}.type"), "expected `text`, `thinking` or `tool_use`")),
        }
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    message.insert("content".to_owned(), if said.is_empty() && !calls.is_empty() { Value::Null } else { json!(said) });
    if !reasoning.is_empty() {
        message.insert("reasoning".to_owned(), json!(reasoning));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Ok(Value::Object(message))
}

fn tool((index, tool): (usize, &Value)) -> Result<Value, InvalidRequest> {
    let place = format!("tools[{index}]");
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(text(&tool["name"], &format!("{place}.name"))?));
    copy(tool, &["description", "strict"], &mut function);
    let Value::Object(mut schema) = tool["input_schema"].clone() else {
        return Err(InvalidRequest::new(format!("{place}.input_schema"), "expected an object"));
    };
    schema.entry("type").or_insert_with(|| json!("object"));
    function.insert("parameters".to_owned(), Value::Object(schema));
    Ok(json!({ "type": "function", "function": function }))
}

fn tool_choice(choice: Option<&Value>) -> Result<Value, InvalidRequest> {
    let Some(choice) = choice else { return Ok(json!("auto")) };
    match choice["type"].as_str() {
        Some("auto") => Ok(json!("auto")),
        Some("any") => Ok(json!("required")),
        Some("none") => Ok(json!("none")),
        Some("tool") => {
            let name = text(&choice["name"], "tool_choice.name")?;
            Ok(json!({ "type": "function", "function": { "name": name } }))
        }
        _ => Err(InvalidRequest::new("tool_choice.type", "expected `auto`, `any`, `tool` or `none`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_with_tools_becomes_chat_messages() {
        let request = json!({
            "model": "sim", "max_tokens": 50, "stream": true, "system": [{ "type": "text", "text": "Be brief." }],
            "stop_sequences": ["END"],
            "messages": [
                { "role": "user", "content": "Weather?" },
                { "role": "assistant", "content": [
                    { "type": "text", "text": "Let me look." },
                    { "type": "tool_use", "id": "toolu_1", "name": "weather", "input": { "city": "Bonn" } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "toolu_1", "content": [{ "type": "text", "text": "rain" }] },
                    { "type": "text", "text": "And tomorrow?" },
                ] },
            ],
            "tools": [{ "name": "weather", "description": "of a city", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "any" },
        });
        let expected = json!({
            "model": "sim", "max_completion_tokens": 50, "stream": true, "stop": ["END"],
            "stream_options": { "include_usage": true, "continuous_usage_stats": true },
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": "Weather?" },
                { "role": "assistant", "content": "Let me look.", "tool_calls": [{
                    "id": "toolu_1", "type": "function",
                    "function": { "name": "weather", "arguments": "{\"city\":\"Bonn\"}" },
                }] },
                { "role": "tool", "tool_call_id": "toolu_1", "content": "rain" },
                { "role": "user", "content": "And tomorrow?" },
            ],
            "tools": [{ "type": "function", "function": {
                "name": "weather", "description": "of a city", "parameters": { "type": "object" },
            } }],
            "tool_choice": "required",
        });
        assert_eq!(chat_request(&request).expect("translatable"), expected);
    }

    #[test]
    fn thinking_is_a_variable_of_the_template() {
        let kwargs = |thinking: Value| {
            let messages = json!([{ "role": "user", "content": "Hi" }]);
            let request = json!({ "model": "sim", "max_tokens": 2000, "messages": messages, "thinking": thinking });
            chat_request(&request).map(|chat| chat["chat_template_kwargs"].clone())
        };
        let enabled = json!({ "type": "enabled", "budget_tokens": 1024 });
        assert_eq!(kwargs(enabled), Ok(json!({ "enable_thinking": true })));
        assert_eq!(kwargs(json!({ "type": "disabled" })), Ok(json!({ "enable_thinking": false })));
        assert_eq!(kwargs(Value::Null), Ok(Value::Null));
        assert!(kwargs(json!({ "type": "x" })).is_err());
    }

    #[test]
    fn images_become_urls() {
        let block = |source: Value| {
            let content = json!([{ "type": "text", "text": "What?" }, { "type": "image", "source": source }]);
            let request =
                json!({ "model": "sim", "max_tokens": 1, "messages": [{ "role": "user", "content": content }] });
            chat_request(&request).map(|chat| chat["messages"][0]["content"][1]["image_url"]["url"].clone())
        };
        let data = json!({ "type": "base64", "media_type": "image/jpeg", "data": "AAAA" });
        assert_eq!(block(data).expect("an image"), "data:image/jpeg;base64,AAAA");
        assert_eq!(block(json!({ "type": "url", "url": "http://a/b.png" })).expect("an image"), "http://a/b.png");
        let error = block(json!({ "type": "file" })).expect_err("files are not supported");
        assert_eq!(error.param.as_deref(), Some("messages[0].content[1].source.type"));
    }

    #[test]
    fn images_of_tools_follow_as_those_of_the_user() {
        let chat = |source: Value| {
            let parts = json!([{ "type": "text", "text": "done" }, { "type": "image", "source": source }]);
            let result = json!([{ "type": "tool_result", "tool_use_id": "toolu_1", "content": parts }]);
            chat_request(
                &json!({ "model": "sim", "max_tokens": 1, "messages": [{ "role": "user", "content": result }] }),
            )
        };
        let expected = json!([
            { "role": "tool", "tool_call_id": "toolu_1", "content": "done" },
            { "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "http://a/b.png" } }] },
        ]);
        assert_eq!(
            chat(json!({ "type": "url", "url": "http://a/b.png" })).expect("translatable")["messages"],
            expected
        );
        let error = chat(json!({ "type": "file" })).expect_err("files are not supported");
        assert_eq!(error.param.as_deref(), Some("messages[0].content[0].content[1].source.type"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let message_of = |request: Value| chat_request(&request).expect_err("incomplete").message;
        let sim = |fields: Value| {
            let mut request = json!({ "model": "sim", "messages": [] });
            for (name, value) in fields.as_object().expect("fields") {
                request[name] = value.clone();
            }
            request
        };
        assert_eq!(message_of(sim(json!({}))), "invalid max_tokens: expected a number above 0");
        assert_eq!(message_of(sim(json!({ "max_tokens": 0 }))), "invalid max_tokens: expected a number above 0");
        assert_eq!(message_of(sim(json!({ "model": "" }))), "invalid model: expected the name of a model");
        assert_eq!(message_of(sim(json!({ "messages": null }))), "invalid messages: expected a list of messages");
        let role = json!({ "messages": [{ "role": "robot", "content": "" }] });
        assert_eq!(message_of(sim(role)), "invalid messages[0].role: expected `user` or `assistant`");
        assert_eq!(message_of(json!([])), "invalid request: expected an object");
    }
    fn request(fields: Value) -> Value {
        let mut request =
            json!({ "model": "sim", "max_tokens": 2000, "messages": [{ "role": "user", "content": "Hi" }] });
        for (name, value) in fields.as_object().expect("fields") {
            request[name] = value.clone();
        }
        request
    }

    #[test]
    fn what_the_protocol_refuses_is_refused() {
        let refused = |fields: Value| chat_request(&request(fields)).expect_err("it is refused").message;
        assert_eq!(refused(json!({ "tools": [{ "name": "f" }] })), "invalid tools[0].input_schema: expected an object");
        assert_eq!(refused(json!({ "tools": [{ "input_schema": {} }] })), "invalid tools[0].name: expected a string");
        let thinking = |budget: u64| json!({ "thinking": { "type": "enabled", "budget_tokens": budget } });
        let least = "invalid thinking.budget_tokens: expected a number of at least 1024";
        assert_eq!(refused(thinking(1023)), least);
        assert_eq!(refused(json!({ "thinking": { "type": "enabled" } })), least);
        let most = "invalid thinking.budget_tokens: expected less than `max_tokens`, which is 2000, got 2000";
        assert_eq!(refused(thinking(2000)), most);
        assert!(chat_request(&request(thinking(1999))).is_ok());
        let effort = |effort: &str| json!({ "output_config": { "effort": effort } });
        assert!(refused(effort("huge")).starts_with("invalid output_config.effort: expected one of low, medium"));
        let format = |format: Value| json!({ "output_config": { "format": format } });
        assert!(refused(format(json!({ "type": "xml" }))).starts_with("invalid output_config.format.type"));
        assert!(refused(format(json!({ "type": "json_schema", "schema": [] }))).starts_with("invalid output_config"));
    }

    #[test]
    fn output_settings_are_those_of_a_chat() {
        let schema = json!({ "type": "object", "properties": {} });
        let config = json!({ "effort": "high", "format": { "type": "json_schema", "schema": schema } });
        let chat = chat_request(&request(json!({ "output_config": config }))).expect("translatable");
        assert_eq!(chat["reasoning_effort"], "high");
        assert_eq!(chat["response_format"]["json_schema"]["schema"], schema);
        let tool = json!({ "name": "f", "input_schema": { "properties": {} } });
        let chat = chat_request(&request(json!({ "tools": [tool] }))).expect("translatable");
        assert_eq!(chat["tools"][0]["function"]["parameters"]["type"], "object");
        let counted = prompt_request(&request(json!({ "max_tokens": null }))).expect("an answer needs no limit");
        assert!(counted.get("max_completion_tokens").is_none());
    }
}
