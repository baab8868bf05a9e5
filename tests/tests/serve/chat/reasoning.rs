//! Reasoning before answers.

use serde_json::{Value, json};
use vcr_tests::Serve;

const CHAT: &str = "/v1/chat/completions";
const QWEN3: &[&str] = &["--reasoning-parser", "qwen3"];

fn chat(further: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 300, "seed": 1});
    for (key, value) in further.as_object().expect("fields") {
        body[key] = value.clone();
    }
    body
}

fn texts(events: &[Value], path: &str) -> String {
    events.iter().filter_map(|event| event.pointer(path)?.as_str().map(str::to_owned)).collect()
}

#[test]
fn an_answer_has_its_reasoning_apart() {
    let serve = Serve::start(QWEN3);
    let body = serve.post(CHAT, &chat(&json!({}))).body;
    let message = &body["choices"][0]["message"];
    let reasoning = message["reasoning"].as_str().expect("a text");
    assert!(reasoning.ends_with('.') && !reasoning.contains("think>"), "{reasoning}");
    assert!(
        message["content"].as_str().is_some_and(|text| text.ends_with('.') && !text.contains("think>")),
        "{message}"
    );
    let tokens = body["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().expect("a count");
    assert!(tokens > 5 && tokens < body["usage"]["completion_tokens"].as_u64().expect("a count"), "{body}");

    let asked = chat(&json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events: Vec<Value> = serve.stream(CHAT, &asked).into_iter().flatten().collect();
    assert_eq!(texts(&events, "/choices/0/delta/reasoning"), reasoning);
    assert_eq!(texts(&events, "/choices/0/delta/content"), message["content"].as_str().expect("a text"));
    assert_eq!(events.last().expect("the usage")["usage"], body["usage"]);

    // Without a parser that extracts reasoning, the same tokens are plain text.
    let raw = serve.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 300})).body;
    assert!(raw["choices"][0]["text"].as_str().is_some_and(|text| text.starts_with("<think>\n")), "{raw}");
}

#[test]
fn a_budget_ends_the_reasoning() {
    let serve = Serve::start(QWEN3);
    let ask = |budget: Value| serve.post(CHAT, &chat(&json!({"thinking_token_budget": budget})));
    let whole = ask(json!(-1)).body;
    let reasoning = |body: &Value| body["choices"][0]["message"]["reasoning"].as_str().unwrap_or("").to_owned();
    let tokens = |body: &Value| body["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
    let short = ask(json!(5)).body;
    let (short_text, whole_text) = (reasoning(&short), reasoning(&whole));
    assert!(
        !short_text.is_empty() && whole_text.starts_with(&short_text),
        "{short_text} is not the start of {whole_text}"
    );
    assert!(tokens(&short) < tokens(&whole) && tokens(&short) <= Some(7), "{short}");
    assert_eq!(short["choices"][0]["message"]["content"], whole["choices"][0]["message"]["content"]);
    assert_eq!(reasoning(&ask(json!(0)).body), "");
    let refused = ask(json!(-2));
    let message = "`thinking_token_budget` must be a non-negative integer or -1 for unlimited. \
                   (parameter=thinking_token_budget, value=-2)";
    assert_eq!((refused.status, &refused.body["error"]["message"]), (400, &json!(message)));
    assert_eq!(ask(json!("many")).status, 400);
}

#[test]
fn reasoning_is_hidden_or_not_done_at_all() {
    let serve = Serve::start(QWEN3);
    let message = |further: Value| serve.post(CHAT, &chat(&further)).body;
    let hidden = message(json!({"include_reasoning": false, "return_token_ids": true}));
    let choice = &hidden["choices"][0];
    assert_eq!((&choice["message"]["reasoning"], &choice["token_ids"]), (&Value::Null, &Value::Null));
    assert!(hidden["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64() > Some(0), "{hidden}");
    for further in [json!({"chat_template_kwargs": {"enable_thinking": false}}), json!({"reasoning_effort": "none"})] {
        let body = message(further);
        assert_eq!(body["choices"][0]["message"]["reasoning"], Value::Null, "{body}");
        assert_eq!(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    }
    assert!(message(json!({"reasoning_effort": "high"}))["choices"][0]["message"]["reasoning"].is_string());
    let quiet = Serve::start(&[
        "--reasoning-parser",
        "qwen3",
        "--default-chat-template-kwargs",
        "{\"enable_thinking\": false}",
    ]);
    let reasoning =
        |further: Value| quiet.post(CHAT, &chat(&further)).body["choices"][0]["message"]["reasoning"].clone();
    assert_eq!(reasoning(json!({})), Value::Null);
    assert!(reasoning(json!({"chat_template_kwargs": {"enable_thinking": true}})).is_string());
}

#[test]
fn structured_answers_and_calls_come_after_reasoning() {
    let serve = Serve::start(&["--reasoning-parser", "deepseek_r1", "--reasoning-tokens", "20"]);
    let body = serve.post(CHAT, &chat(&json!({"structured_outputs": {"choice": ["because"]}}))).body;
    let message = &body["choices"][0]["message"];
    assert!(message["reasoning"].is_string() && message["content"] == "because", "{body}");
    let tokens = body["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
    assert!(tokens.is_some_and(|tokens| tokens > 0 && tokens <= 21), "{body}");
    let tools = json!([{"type": "function", "function": {"name": "look"}}]);
    let body = serve.post(CHAT, &chat(&json!({"tools": tools, "tool_choice": "required"}))).body;
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], "look", "{body}");
    assert!(choice["message"]["reasoning"].is_string() && choice["finish_reason"] == "tool_calls", "{body}");
}

#[test]
fn other_apis_have_their_own_items_for_it() {
    let serve = Serve::start(QWEN3);
    let turns = json!([{"role": "user", "content": "Why?"}]);
    let mut request = json!({"model": "sim", "max_tokens": 2000, "seed": 1, "messages": turns});
    let message = serve.post("/v1/messages", &request).body;
    let kinds: Vec<_> = message["content"].as_array().expect("blocks").iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text"], "{message}");
    request["thinking"] = json!({"type": "disabled"});
    assert_eq!(serve.post("/v1/messages", &request).body["content"][0]["type"], "text");
    request["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
    request["stream"] = json!(true);
    let events: Vec<Value> = serve.stream("/v1/messages", &request).into_iter().flatten().collect();
    assert_eq!(texts(&events, "/delta/thinking"), message["content"][0]["thinking"].as_str().expect("a text"));

    let mut request = json!({"model": "sim", "input": "Why?", "seed": 1});
    let response = serve.post("/v1/responses", &request).body;
    let kinds: Vec<_> = response["output"].as_array().expect("items").iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message"], "{response}");
    assert!(response["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0), "{response}");
    request["stream"] = json!(true);
    let events: Vec<Value> = serve.stream("/v1/responses", &request).into_iter().flatten().collect();
    let deltas: Vec<Value> =
        events.iter().filter(|event| event["type"] == "response.reasoning_text.delta").cloned().collect();
    assert_eq!(texts(&deltas, "/delta"), response["output"][0]["content"][0]["text"].as_str().expect("a text"));
    request["reasoning"] = json!({"effort": "none"});
    request["stream"] = json!(false);
    assert_eq!(serve.post("/v1/responses", &request).body["output"][0]["type"], "message");
}
