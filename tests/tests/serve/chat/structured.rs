//! Structured outputs.

use serde_json::{Value, json};
use vcr_tests::Serve;

const CHAT: &str = "/v1/chat/completions";

fn chat(further: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 300});
    for (key, value) in further.as_object().expect("fields") {
        body[key] = value.clone();
    }
    body
}

fn trip() -> Value {
    json!({
        "type": "object",
        "properties": {"when": {"type": "string", "format": "date"}, "days": {"type": "integer"}},
        "required": ["when", "days"],
        "additionalProperties": false,
    })
}

#[test]
fn answers_have_the_structure_that_is_asked_for() {
    let serve = Serve::start(&[]);
    let content = |further: Value| {
        let body = serve.post(CHAT, &chat(&further)).body;
        assert_eq!(body["choices"][0]["finish_reason"], "stop", "{body}");
        body["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
    };
    let json_of =
        |text: &str| -> Value { serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")) };
    let schema = json!({"type": "json_schema", "json_schema": {"name": "trip", "schema": trip(), "strict": true}});
    for seed in 0..10 {
        let trip = json_of(&content(json!({"response_format": schema, "seed": seed})));
        assert!(trip["when"].as_str().is_some_and(|when| when.len() == 10) && trip["days"].is_i64(), "{trip}");
        assert!(json_of(&content(json!({"response_format": {"type": "json_object"}, "seed": seed}))).is_object());
        let text = content(json!({"structured_outputs": {"regex": "[ab]{2}-[0-9]"}, "seed": seed}));
        assert!(text.len() == 4 && text.as_bytes()[2] == b'-', "{text}");
        let text = content(json!({"structured_outputs": {"choice": ["yes", "no"]}, "seed": seed}));
        assert!(["yes", "no"].contains(&text.as_str()), "{text}");
        let text = content(json!({"structured_outputs": {"grammar": "root ::= \"a\" [0-9] \"z\""}, "seed": seed}));
        assert!(text.len() == 3 && text.starts_with('a') && text.ends_with('z'), "{text}");
    }
    let tag = json!({"type": "tag", "begin": "<t>", "content": {"type": "json_schema", "json_schema": trip()}, "end": "</t>"});
    let text = content(json!({"response_format": {"type": "structural_tag", "format": tag}}));
    let inner = text.strip_prefix("<t>").and_then(|text| text.strip_suffix("</t>")).expect("it is tagged");
    assert!(json_of(inner)["days"].is_i64(), "{text}");
}

#[test]
fn keys_come_in_the_order_of_the_schema() {
    let serve = Serve::start(&[]);
    let schema =
        r#"{"type": "object", "properties": {"z": {"type": "null"}, "a": {"type": "null"}}, "required": ["z", "a"]}"#;
    let body = format!(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hi\"}}], \"max_tokens\": 50, \"response_format\": \
         {{\"type\": \"json_schema\", \"json_schema\": {{\"name\": \"n\", \"schema\": {schema}}}}}}}"
    );
    let reply = serve.post_text(CHAT, &body);
    assert_eq!(reply.body["choices"][0]["message"]["content"], r#"{"z": null, "a": null}"#, "{}", reply.body);
}

#[test]
fn text_completions_and_other_apis_have_them_too() {
    let serve = Serve::start(&[]);
    let only = json!({"choice": ["only"]});
    let request = json!({"prompt": "x", "max_tokens": 20, "structured_outputs": only});
    assert_eq!(serve.post("/v1/completions", &request).body["choices"][0]["text"], "only");
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 7}}});
    let request = json!({"prompt": "x", "max_tokens": 20, "response_format": format});
    assert_eq!(serve.post("/v1/completions", &request).body["choices"][0]["text"], "7");
    let format = json!({"type": "json_schema", "name": "trip", "schema": trip()});
    let request = json!({"model": "sim", "input": "Where?", "text": {"format": format}});
    let response = serve.post("/v1/responses", &request).body;
    let text = response["output"][0]["content"][0]["text"].as_str().expect("a text");
    assert!(serde_json::from_str::<Value>(text).expect("it is JSON")["days"].is_i64(), "{text}");
    let request = json!({"token_ids": [1], "sampling_params": {"max_tokens": 20, "structured_outputs": only}});
    let tokens = serve.post("/inference/v1/generate", &request).body["choices"][0]["token_ids"].clone();
    let text = serve.post("/detokenize", &json!({"tokens": tokens})).body["prompt"].clone();
    assert!(text.as_str().is_some_and(|text| text.starts_with("only")), "{text}");
}

/// Forms that vLLM takes and this engine cannot follow are an error that names them.
#[test]
fn what_cannot_be_followed_is_refused_by_name() {
    let serve = Serve::start(&[]);
    for (structure, named) in [
        (json!({"grammar": "start: \"a\""}), "grammar"),
        (json!({"regex": "(?<=a)b"}), "regular expression `(?<=a)b`"),
        (json!({"json": {"not": {}}}), "`not`"),
        (json!({"structural_tag": "{\"format\": {\"type\": \"odd\"}}"}), "`odd`"),
    ] {
        let reply = serve.post(CHAT, &chat(&json!({ "structured_outputs": structure })));
        let message = reply.body["error"]["message"].as_str().expect("a message");
        assert!(reply.status == 400 && message.contains(named), "{}", reply.body);
    }
}
