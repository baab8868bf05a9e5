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

/// Schemas that clients send: integers of zod, records, tuples, and additions of OpenAPI and pydantic.
#[test]
fn schemas_of_clients_are_followed() {
    let serve = Serve::start(&[]);
    let schema = json!({
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": -9_007_199_254_740_991_i64, "maximum": 9_007_199_254_740_991_i64},
            "size": {"type": "number", "format": "double", "multipleOf": 0.5},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}], "items": false},
            "name": {"type": "string", "nullable": true, "x-order": 1, "pattern": "^[a-z]+$", "maxLength": 5},
            "same": {"$ref": "#/properties/name"},
            "both": {"allOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}, {"required": ["b"]}]},
            "any": true
        },
        "required": ["count", "size", "pair", "name", "same", "both", "any"]
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    for seed in 0..10 {
        let body = serve.post(CHAT, &chat(&json!({"response_format": format, "seed": seed}))).body;
        let text = body["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{body}"));
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(value["count"].is_i64() && value["pair"][1].is_boolean() && value["both"]["a"].is_null(), "{value}");
        assert!(
            value["both"].get("b").is_some() && value["same"].as_str().is_some_and(|text| text.len() <= 5),
            "{value}"
        );
    }
    // llguidance, which follows the schema above, does not support `propertyNames`.
    let record =
        json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": record}});
    assert_eq!(serve.post(CHAT, &chat(&json!({"response_format": format}))).status, 200);
}

/// A structure that takes too much work is refused before an engine gets it, in every form of request.
#[test]
fn large_structures_are_refused() {
    let serve = Serve::start(&[]);
    let names: Vec<String> = (0..100_000).map(|index| format!("p{index}")).collect();
    let properties: serde_json::Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!({"type": "string"}))).collect();
    let definitions: serde_json::Map<String, Value> =
        names[..40_000].iter().map(|name| (name.clone(), json!({"$ref": "#/$defs/p0"}))).collect();
    let constants: Vec<Value> = (0..100_000).map(|index| json!({"const": index})).collect();
    let references: Vec<Value> =
        names[..40_000].iter().map(|name| json!({"$ref": format!("#/$defs/{name}")})).collect();
    for structure in [
        json!({"json": {"type": "object", "properties": properties, "required": names}}),
        json!({"json": {"type": "array", "items": {"anyOf": constants}, "minItems": 5_000}}),
        json!({"json": {"$defs": definitions, "anyOf": references}}),
        json!({"choice": names.iter().map(|name| format!("{name}{name}")).collect::<Vec<_>>()}),
    ] {
        for stream in [false, true] {
            let body = json!({"prompt": "x", "n": 128, "structured_outputs": structure, "stream": stream});
            let reply = serve.post("/v1/completions", &body);
            let message = reply.body["error"]["message"].as_str().unwrap_or_default();
            let is_named = message.contains(" may have ") || message.contains(" more than ");
            assert!(reply.status == 400 && is_named, "{}", reply.body);
        }
    }
}

#[test]
fn no_schema_of_a_tool_is_refused() {
    let serve = Serve::start(&["--tool-call-probability", "1"]);
    for schema in [
        json!({"type": "object", "properties": {"a": {"type": "integer", "format": "int64", "nullable": true}}}),
        json!({"type": "object", "propertyNames": {"pattern": "^x"}, "x-own": {}, "patternProperties": {"(": {}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true, "prefixItems": [{}]}}}),
        json!({"type": "object", "properties": {"a": {"enum": [], "enumDescriptions": ["b"]}}, "required": ["a"]}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a", "b"]}),
        json!({"type": "nonsense", "minimum": "x"}),
    ] {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
        for (choice, seed) in [("auto", 1), ("auto", 2), ("required", 3)] {
            let further = json!({"tools": [tool], "tool_choice": choice, "seed": seed});
            let reply = serve.post(CHAT, &chat(&further));
            let arguments = reply.body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].clone();
            let arguments: Value = serde_json::from_str(arguments.as_str().unwrap_or_default())
                .unwrap_or_else(|error| panic!("{error}: {}", reply.body));
            assert!(arguments.is_object(), "{arguments}");
        }
    }
}

/// Forms that vLLM accepts and this engine cannot follow give an error that names them.
#[test]
fn what_cannot_be_followed_is_refused_by_name() {
    let serve = Serve::start(&[]);
    for (structure, named) in [
        (json!({"grammar": "start: \"a\""}), "grammar"),
        (json!({"regex": "(?<=a)b"}), "regular expression `(?<=a)b`"),
        (json!({"json": {"$ref": "#/nowhere"}}), "`#/nowhere`"),
        (json!({"structural_tag": "{\"format\": {\"type\": \"odd\"}}"}), "`odd`"),
    ] {
        let reply = serve.post(CHAT, &chat(&json!({ "structured_outputs": structure })));
        let message = reply.body["error"]["message"].as_str().expect("a message");
        assert!(reply.status == 400 && message.contains(named), "{}", reply.body);
    }
}
