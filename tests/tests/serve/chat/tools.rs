//! Calls of tools, in all three APIs.

use serde_json::{Value, json};
use vcr_tests::{Folder, Serve};

const CHAT: &str = "/v1/chat/completions";

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "place": {"type": "string"},
            "unit": {"enum": ["c", "f"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
        },
        "required": ["place", "unit", "days"],
        "additionalProperties": false,
    })
}

fn tools() -> Value {
    let weather = json!({"name": "weather", "description": "of a place", "parameters": schema()});
    json!([{"type": "function", "function": weather}, {"type": "function", "function": {"name": "clock"}}])
}

fn chat(further: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Rain?"}], "tools": tools(), "max_tokens": 300});
    for (key, value) in further.as_object().expect("fields") {
        body[key] = value.clone();
    }
    body
}

/// Fails unless the arguments fit the tool.
fn check_arguments(name: &Value, arguments: &str) {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
    if name == "weather" {
        let unit = arguments["unit"].as_str().expect("a text");
        assert!(arguments["place"].is_string() && ["c", "f"].contains(&unit), "{arguments}");
        assert!((1..=7).contains(&arguments["days"].as_i64().expect("a number")), "{arguments}");
    } else {
        assert!(name == "clock" && arguments.is_object(), "{name}: {arguments}");
    }
}

#[test]
fn a_required_call_has_its_fields_and_counts_its_tokens() {
    let serve = Serve::start(&[]);
    let mut called = std::collections::BTreeSet::new();
    let mut most = 0;
    for seed in 0..40 {
        let asked = chat(&json!({"tool_choice": "required", "seed": seed, "return_token_ids": true}));
        let body = serve.post(CHAT, &asked).body;
        let choice = &body["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{body}");
        assert_eq!((&choice["message"]["content"], &choice["message"]["reasoning"]), (&Value::Null, &Value::Null));
        let calls = choice["message"]["tool_calls"].as_array().expect("calls");
        most = most.max(calls.len());
        for call in calls {
            let id = call["id"].as_str().and_then(|id| id.strip_prefix("call_")).expect("an id");
            assert!(id.len() == 24 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{call}");
            assert_eq!(call["type"], "function");
            check_arguments(&call["function"]["name"], call["function"]["arguments"].as_str().expect("a text"));
            called.insert(call["function"]["name"].to_string());
        }
        // The engine's tokens are the call as the model writes it.
        let tokens = choice["token_ids"].as_array().expect("tokens");
        assert_eq!(body["usage"]["completion_tokens"].as_u64(), Some(tokens.len() as u64));
        let text = serve.post("/detokenize", &json!({"tokens": tokens})).body["prompt"].clone();
        assert!(text.as_str().is_some_and(|text| text.starts_with("<tool_call>\n{\"name\": ")), "{text}");
    }
    assert_eq!((called.len(), most), (2, 2), "each tool is called, and now and then both at once");
    let alone = chat(&json!({"tool_choice": "required", "parallel_tool_calls": false}));
    for _ in 0..20 {
        let body = serve.post(CHAT, &alone).body;
        assert_eq!(body["choices"][0]["message"]["tool_calls"].as_array().map(Vec::len), Some(1), "{body}");
    }
}

#[test]
fn a_stream_has_the_call_in_pieces() {
    let serve = Serve::start(&[]);
    let asked = |stream: bool| {
        chat(&json!({"tool_choice": "required", "seed": 5, "parallel_tool_calls": false, "stream": stream}))
    };
    let whole = serve.post(CHAT, &asked(false)).body["choices"][0]["message"]["tool_calls"][0].clone();
    let events: Vec<Value> = serve.stream(CHAT, &asked(true)).into_iter().flatten().collect();
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(deltas[0], &json!({"role": "assistant"}));
    let first = &deltas[1]["tool_calls"][0];
    assert!(first["id"].as_str().is_some_and(|id| id.starts_with("call_")), "{first}");
    assert_eq!((&first["index"], &first["type"]), (&json!(0), &json!("function")));
    assert_eq!(first["function"], json!({"name": whole["function"]["name"]}));
    let rest = &deltas[2..deltas.len() - 1];
    assert!(rest.len() > 3 && rest.iter().all(|delta| delta["tool_calls"][0].get("id").is_none()), "{rest:?}");
    let arguments: String =
        rest.iter().filter_map(|delta| delta["tool_calls"][0]["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, whole["function"]["arguments"].as_str().expect("a text"));
    let last = &events.last().expect("an end")["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("tool_calls")));
}

#[test]
fn the_choice_decides_whether_and_what_is_called() {
    let serve = Serve::start(&["--tool-call-probability", "1"]);
    let message = |further: Value| {
        let body = serve.post(CHAT, &chat(&further)).body;
        (body["choices"][0]["message"].clone(), body["choices"][0]["finish_reason"].clone())
    };
    let named = json!({"tool_choice": {"type": "function", "function": {"name": "clock"}}});
    for _ in 0..10 {
        let (message, reason) = message(named.clone());
        assert_eq!(message["tool_calls"][0]["function"]["name"], "clock");
        assert_eq!((message["tool_calls"].as_array().map(Vec::len), reason), (Some(1), json!("stop")), "as vLLM says");
    }
    let (none, reason) = message(json!({"tool_choice": "none"}));
    assert!(none.get("tool_calls").is_none() && none["content"].is_string(), "{none}");
    // With an unlucky seed, the text may reach the limit of tokens.
    assert_ne!(reason, "tool_calls");
    assert!(message(json!({})).0["tool_calls"].is_array(), "the model may call, and here always does");
    // An agent's loop ends: a tool's result is answered with text.
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}});
    let turns = json!([
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]);
    assert!(message(json!({"messages": turns})).0["content"].is_string());
    assert!(message(json!({"messages": turns, "tool_choice": "required"})).0["tool_calls"].is_array());
}

#[test]
fn an_automatic_call_has_the_stated_probability_and_repeats_itself() {
    let serve = Serve::start(&["--tool-call-probability", "0.3"]);
    let calls = |seed: u64| {
        let message = serve.post(CHAT, &chat(&json!({"seed": seed}))).body["choices"][0]["message"].clone();
        message["tool_calls"][0]["function"].clone()
    };
    let all: Vec<Value> = (0..200).map(calls).collect();
    let count = all.iter().filter(|call| call.is_object()).count();
    assert!((35..90).contains(&count), "{count} of 200");
    assert_eq!((0..20).map(calls).collect::<Vec<_>>(), all[..20]);
    let never = Serve::start(&["--tool-call-probability", "0"]);
    for seed in 0..20 {
        let message = never.post(CHAT, &chat(&json!({"seed": seed}))).body["choices"][0]["message"].clone();
        assert!(message["content"].is_string() && message.get("tool_calls").is_none(), "{message}");
    }
}

#[test]
fn a_call_that_is_cut_is_incomplete() {
    let serve = Serve::start(&[]);
    let body = serve.post(CHAT, &chat(&json!({"tool_choice": "required", "seed": 1, "max_tokens": 14}))).body;
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "length", "{body}");
    assert!(serde_json::from_str::<Value>(choice["message"].to_string().as_str()).is_ok());
}

/// Settings in the form of llm-d-inference-sim.
#[test]
fn arguments_are_chosen_by_settings() {
    let file = "min-tool-call-integer-param: 7\nmax-tool-call-integer-param: 9\nmin-tool-call-array-param-length: 4\n\
                max-tool-call-array-param-length: 4\nmin-tool-call-number-param: -2\nmax-tool-call-number-param: -1\n\
                tool-call-not-required-param-probability: 100\nobject-tool-call-not-required-field-probability: 0\n\
                tool-call-extra-call-probability: 100\n";
    let folder = Folder::new();
    let path = folder.path().join("peer.yaml");
    std::fs::write(&path, file).expect("it is written");
    let serve = Serve::start(&["--llm-d-config", path.to_str().expect("a path is a text")]);
    let parameters = json!({"type": "object", "required": ["n"], "properties": {
        "n": {"type": "integer"}, "x": {"type": "number"}, "bound": {"type": "integer", "minimum": 50, "maximum": 50},
        "list": {"type": "array", "items": {"type": "boolean"}},
        "inner": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["a"]},
    }});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    let body = serve.post(CHAT, &chat(&json!({"tools": tools, "tool_choice": "required", "max_tokens": 4000}))).body;
    let calls = body["choices"][0]["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{body}")).clone();
    assert_eq!(calls.len(), 16, "each call is followed by one, up to a limit");
    for call in calls {
        let text = call["function"]["arguments"].as_str().expect("a text");
        let arguments: Value = serde_json::from_str(text).expect("JSON");
        assert!((7..=9).contains(&arguments["n"].as_i64().expect("a number")), "{arguments}");
        assert!((-2.0..=-1.0).contains(&arguments["x"].as_f64().expect("a number")), "{arguments}");
        assert_eq!((&arguments["bound"], &arguments["inner"]), (&json!(50), &json!({"a": null})));
        assert_eq!(arguments["list"].as_array().map(Vec::len), Some(4), "{arguments}");
    }
    let refused = folder.vcr(&["serve", "--port", "0", "--min-tool-call-integer-param", "200"]).ended(2).stderr;
    assert!(refused.contains("expected at most --max-tool-call-integer-param, 100"), "{refused}");
}

/// The simulated model writes each form, and the server parses it.
#[test]
fn each_form_of_calls_is_written_and_read() {
    for (form, start) in [
        ("qwen3_coder", "<tool_call>\n<function="),
        ("seed_oss", "<seed:tool_call>\n<function="),
        ("minimax_m2", "<minimax:tool_call>\n<invoke name=\""),
        ("glm45", "<tool_call>"),
        ("llama3_json", "{\"name\": \""),
        ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"),
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions."),
        ("pythonic", "["),
        ("llama4_pythonic", "["),
    ] {
        let serve = Serve::start(&["--tool-call-parser", form]);
        for seed in 0..10 {
            let further = json!({"tool_choice": "required", "seed": seed, "return_token_ids": true, "max_tokens": 600});
            let body = serve.post(CHAT, &chat(&further)).body;
            let choice = &body["choices"][0];
            let calls = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{form}: {body}"));
            assert_eq!(choice["message"]["content"], Value::Null, "{form}: {body}");
            for call in calls {
                check_arguments(&call["function"]["name"], call["function"]["arguments"].as_str().expect("a text"));
            }
            let text = serve.post("/detokenize", &json!({"tokens": choice["token_ids"]})).body["prompt"].clone();
            assert!(text.as_str().is_some_and(|text| text.starts_with(start)), "{form}: {text}");
        }
    }
}

#[test]
fn a_server_without_a_parser_refuses_tools() {
    let serve = Serve::start(&["--tool-call-parser", "none"]);
    let reply = serve.post(CHAT, &chat(&json!({})));
    let message = "failed to submit chat request: tool parsing is disabled by frontend configuration";
    assert_eq!((reply.status, &reply.body["error"]["message"]), (500, &json!(message)));
    assert_eq!(serve.post(CHAT, &chat(&json!({"tool_choice": "none"}))).status, 200);
}

#[test]
fn messages_of_anthropic_use_tools() {
    let serve = Serve::start(&[]);
    let tools = json!([{"name": "weather", "description": "of a place", "input_schema": schema()}]);
    let mut request = json!({"model": "sim", "max_tokens": 300, "tools": tools, "tool_choice": {"type": "any"}, "seed": 3,
                             "messages": [{"role": "user", "content": "Rain?"}]});
    let message = serve.post("/v1/messages", &request).body;
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    let used = &message["content"][0];
    assert_eq!((&used["type"], &used["name"]), (&json!("tool_use"), &json!("weather")));
    check_arguments(&used["name"], &used["input"].to_string());
    request["stream"] = json!(true);
    let events: Vec<Value> = serve.stream("/v1/messages", &request).into_iter().flatten().collect();
    let started = events.iter().find(|event| event["type"] == "content_block_start").expect("a block");
    assert_eq!(started["content_block"]["type"], "tool_use");
    let of_first = events.iter().filter(|event| event["index"] == 0);
    let input: String = of_first.filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&input).expect("it is JSON"), used["input"]);
    // The model answers the tool's result.
    let used = json!([{"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}]);
    let result = json!([{"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}]);
    let turns = json!([{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": used},
                       {"role": "user", "content": result}]);
    let request = json!({"model": "sim", "max_tokens": 300, "tools": tools, "messages": turns});
    let message = serve.post("/v1/messages", &request).body;
    assert_eq!((&message["stop_reason"], &message["content"][0]["type"]), (&json!("end_turn"), &json!("text")));
}

#[test]
fn images_of_tools_count() {
    let serve = Serve::start(&["--image-tokens", "50"]);
    let tokens = |parts: Value| {
        let result = json!([{"type": "tool_result", "tool_use_id": "toolu_1", "content": parts}]);
        let used = json!([{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]);
        let turns = json!([{"role": "user", "content": "See."}, {"role": "assistant", "content": used},
                           {"role": "user", "content": result}]);
        let reply = serve.post("/v1/messages", &json!({"model": "sim", "max_tokens": 2, "messages": turns}));
        reply.body["usage"]["input_tokens"].as_u64().unwrap_or_else(|| panic!("{}", reply.body))
    };
    let text = json!({"type": "text", "text": "done"});
    let image = json!({"type": "image", "source": {"type": "url", "url": "http://a/b.png"}});
    let (without, with) = (tokens(json!([text])), tokens(json!([text, image])));
    assert!((without + 50..without + 70).contains(&with), "{without} and {with}");
}

#[test]
fn responses_call_functions() {
    let serve = Serve::start(&[]);
    let tools = json!([{"type": "function", "name": "weather", "parameters": schema()}]);
    let mut request = json!({"model": "sim", "input": "Rain?", "tools": tools, "tool_choice": "required", "seed": 3,
                             "parallel_tool_calls": false});
    let response = serve.post("/v1/responses", &request).body;
    let call = &response["output"][0];
    assert_eq!((&call["type"], &call["status"]), (&json!("function_call"), &json!("completed")), "{response}");
    check_arguments(&call["name"], call["arguments"].as_str().expect("a text"));
    request["stream"] = json!(true);
    let events: Vec<Value> = serve.stream("/v1/responses", &request).into_iter().flatten().collect();
    let mut kinds: Vec<_> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    kinds.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds, expected);
    let deltas = events.iter().filter(|event| event["type"] == "response.function_call_arguments.delta");
    let arguments: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(arguments, call["arguments"].as_str().expect("a text"));
}
