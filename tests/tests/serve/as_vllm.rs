//! Tokens of the same engine behind vLLM's own frontend and behind `vcr serve`: both make the same messages, chunks
//! and errors from them.

use std::io::Write as _;

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use vcr_tests::{Frontend, FrontendOptions, Play, Serve, frontend_model};

const CHAT: &str = "/v1/chat/completions";
const PARSERS: [&str; 4] = ["--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"];

/// Both servers, with the same answer to every request.
fn both(answer: &str) -> Option<(Frontend, Play, Serve, NamedTempFile)> {
    both_with(&PARSERS, answer)
}

/// Like [`both`], but with other parsers.
fn both_with(parsers: &[&str], answer: &str) -> Option<(Frontend, Play, Serve, NamedTempFile)> {
    let model = frontend_model()?;
    let tokenizer = vcr_text::Tokenizer::from_folder(&model).expect("it has a tokenizer");
    let tokens = tokenizer.encode(answer, false).expect("it has tokens");
    let mut file = NamedTempFile::with_suffix(".jsonl").expect("a temporary file");
    writeln!(file, "{}", json!({ "output_token_ids": tokens })).expect("it is written");
    let path = file.path().to_str().expect("a path is a text").to_owned();
    let options =
        FrontendOptions { args: parsers.iter().map(|&word| word.to_owned()).collect(), ..FrontendOptions::default() };
    let mut frontend = Frontend::start("0.33.0", &options)?;
    let play = Play::start(&frontend.handshake_address(), &["--max-model-len", "4096", "--tokens", &path]);
    frontend.wait_until_it_serves();
    let model = model.to_str().expect("a path is a text").to_owned();
    let args =
        [&model, "--served-model-name", "sim", "--max-model-len", "4096", "--frontend", "rust", "--tokens", &path];
    let serve = Serve::start(&[&args[..], parsers].concat());
    Some((frontend, play, serve, file))
}

/// An answer without the fields that differ between calls.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| {
                let is_own = key == "id" || key == "created";
                (key.clone(), if is_own { Value::Null } else { plain(value) })
            };
            Value::Object(fields.iter().map(field).collect())
        }
        Value::Array(values) => values.iter().map(plain).collect(),
        value => value.clone(),
    }
}

/// A stream without its division into chunks: a busy server sends several tokens in one chunk.
fn folded(events: &[Value]) -> Value {
    let mut parts: Vec<(String, String)> = Vec::new();
    let mut add = |kind: String, text: &Value| {
        let Some(text) = text.as_str() else { return };
        match parts.last_mut() {
            Some((last, all)) if *last == kind => all.push_str(text),
            _ => parts.push((kind, text.to_owned())),
        }
    };
    let mut ids = Vec::new();
    for choice in events.iter().map(|event| &event["choices"][0]) {
        let delta = &choice["delta"];
        for kind in ["role", "reasoning", "content"] {
            add(kind.to_owned(), &delta[kind]);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = &call["index"];
            add(format!("{index} {} {}", call["type"], call.get("id").is_some()), &call["function"]["name"]);
            add(format!("{index} {}", call.get("id").is_some()), &call["function"]["arguments"]);
        }
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
    }
    let is_end = |event: &&Value| !event["choices"][0]["finish_reason"].is_null();
    let end = events.iter().find(is_end).map(plain);
    json!({"parts": parts, "ids": ids, "end": end, "usage": events.last().map(|event| event["usage"].clone())})
}

fn chat(further: &Value) -> Value {
    let mut body = json!({"model": "sim", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60});
    for (key, value) in further.as_object().expect("fields") {
        body[key] = value.clone();
    }
    body
}

fn tool() -> Value {
    let parameters = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    json!({"type": "function", "function": {"name": "f", "description": "does it", "parameters": parameters}})
}

#[test]
fn reasoning_text_and_calls_are_told_apart_as_by_vllm() {
    let answer = "<think>\nLet me see.\n</think>\n\nI ask.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n\
                  </tool_call><tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>";
    let Some((frontend, _play, serve, _file)) = both(answer) else { return };
    let named = json!({"type": "function", "function": {"name": "f"}});
    let choices = [
        json!({}),
        json!({"tools": [tool()]}),
        json!({"tools": [tool()], "include_reasoning": false}),
        json!({"tools": [tool()], "parallel_tool_calls": false}),
        json!({"tools": [tool()], "tool_choice": "none"}),
        json!({"tools": [tool()], "tool_choice": "required"}),
        json!({"tools": [tool()], "tool_choice": named}),
        json!({"tools": [tool()], "stop": ["ask"]}),
        json!({"stop": ["see"]}),
        json!({"stop": ["</think>"]}),
        json!({"stop": ["not there at all"], "tools": [tool()]}),
        json!({"reasoning_effort": "none"}),
    ];
    for choice in choices {
        for max_tokens in [80, 30, 21, 9, 4] {
            for ids in [false, true] {
                let mut body = chat(&choice);
                body["max_tokens"] = json!(max_tokens);
                body["return_token_ids"] = json!(ids);
                let (theirs, ours) = (frontend.post(CHAT, &body), serve.post(CHAT, &body));
                assert_eq!(ours.status, theirs.status, "{body}");
                assert_eq!(plain(&ours.body), plain(&theirs.body), "{body}");
                for usage in [false, true] {
                    body["stream"] = json!(true);
                    body["stream_options"] = json!({"include_usage": usage, "continuous_usage_stats": usage});
                    let theirs: Vec<Value> = frontend.stream(CHAT, &body).collect();
                    let ours: Vec<Value> = serve.stream(CHAT, &body).into_iter().flatten().collect();
                    assert_eq!(folded(&ours), folded(&theirs), "{body}");
                }
            }
        }
    }
}

/// For each parser, answers with two calls in its form, and one that only looks like a call.
const FORMS: &[(&str, &[&str])] = &[
    (
        "qwen3_coder",
        &[
            "Well.\n<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\n2\n</parameter>\n\
             </function>\n</tool_call>\n<tool_call>\n<function=f>\n<parameter=z>\n{\"a\": [true, null]}\n</parameter>\n\
             </function>\n</tool_call>",
            "<tool_call>\n<function=f>\n</function>\n</tool_call>\n\nSo.",
        ],
    ),
    (
        "qwen3_xml",
        &["<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\nsome\nlines\n</parameter>\n\
           </function>\n</tool_call>"],
    ),
    ("seed_oss", &["<seed:tool_call>\n<function=f>\n<parameter=x>1</parameter>\n</function>\n</seed:tool_call>"]),
    (
        "minimax_m2",
        &["<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"x\">1</parameter>\n\
             <parameter name=\"y\">2</parameter>\n</invoke>\n</minimax:tool_call>"],
    ),
    (
        "glm45",
        &["<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n<arg_key>y</arg_key>\n\
           <arg_value>2</arg_value>\n</tool_call>"],
    ),
    ("llama3_json", &["{\"name\": \"f\", \"parameters\": {\"x\": 1}}", "See {\"name\": \"f\", \"parameters\": {}}"]),
    ("llama4_json", &["{\"name\": \"f\", \"parameters\": {\"x\": 1}}; {\"name\": \"f\", \"parameters\": {}}"]),
    (
        "deepseek_v3",
        &["Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": 1}\n```\
             <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜>"],
    ),
    (
        "deepseek_v31",
        &["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜>\
             <｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"],
    ),
    (
        "kimi_k2",
        &["<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x\": 1}\
             <|tool_call_end|><|tool_calls_section_end|>"],
    ),
];

/// vcr's parser reads each form of calls, and each truncated form, as vLLM's own parser does.
#[test]
fn calls_of_each_form_are_read_as_by_vllm() {
    let parameters = json!({"type": "object", "properties": {
        "x": {"type": "integer"}, "y": {"type": "string"}, "z": {"type": "object"}
    }});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    let mut different = Vec::new();
    for (form, answers) in FORMS {
        for answer in *answers {
            let Some((frontend, _play, serve, _file)) =
                both_with(&["--tool-call-parser", form], &format!("{answer}<|im_end|>"))
            else {
                return;
            };
            for max_tokens in [300, 18, 11] {
                let mut body = chat(&json!({"tools": tools, "max_tokens": max_tokens}));
                let (theirs, ours) = (frontend.post(CHAT, &body), serve.post(CHAT, &body));
                if (ours.status, plain(&ours.body)) != (theirs.status, plain(&theirs.body)) {
                    different.push(format!(
                        "{form} {answer:?} to {max_tokens}\n  vLLM {}\n  ours {}",
                        theirs.body, ours.body
                    ));
                }
                body["stream"] = json!(true);
                let theirs: Vec<Value> = frontend.stream(CHAT, &body).collect();
                let ours: Vec<Value> = serve.stream(CHAT, &body).into_iter().flatten().collect();
                let (theirs, ours) = (folded(&theirs), folded(&ours));
                if theirs != ours {
                    different.push(format!("{form} {answer:?} to {max_tokens}\n  vLLM {theirs}\n  ours {ours}"));
                }
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn what_is_invalid_has_the_errors_of_vllm() {
    let Some((frontend, _play, serve, _file)) = both("<|im_end|>") else { return };
    let format = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let mut deep = json!({});
    for _ in 0..70 {
        deep = json!({ "items": deep });
    }
    let both_ways = [
        json!({"structured_outputs": {}}),
        json!({"structured_outputs": {"json": {}, "regex": "a"}}),
        json!({"structured_outputs": {"choice": []}}),
        json!({"structured_outputs": {"choice": "a"}}),
        json!({"structured_outputs": {"json": ""}}),
        json!({"structured_outputs": {"json": "{"}}),
        json!({"structured_outputs": {"json": deep}}),
        json!({"structured_outputs": {"json_object": false}}),
        json!({"structured_outputs": {"grammar": " "}}),
        json!({"structured_outputs": {"structural_tag": "{"}}),
        json!({"structured_outputs": {"regex": "\0"}}),
        json!({"structured_outputs": "x"}),
        json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
        json!({"response_format": format(json!(" "))}),
        json!({"response_format": {"type": "x"}}),
        json!({"response_format": {"type": "json_schema"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
        json!({"response_format": {}}),
        json!({"response_format": "json"}),
    ];
    let of_chats = [
        json!({"tools": []}),
        json!({"tools": "x"}),
        json!({"tools": [{"type": "x", "function": {"name": "f"}}]}),
        json!({"tools": [{"type": "function"}]}),
        json!({"tools": [{"type": "function", "function": {"name": 1}}]}),
        json!({"tools": [tool(), tool()]}),
        json!({"tool_choice": "auto"}),
        json!({"tool_choice": "required"}),
        json!({"tool_choice": "maybe"}),
        json!({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
        json!({"tools": [tool()], "tool_choice": {"type": "x", "function": {"name": "f"}}}),
        json!({"tools": [tool()], "tool_choice": {"type": "function"}}),
        json!({"tools": [tool()], "tool_choice": {"type": "allowed_tools", "mode": "auto",
                                                  "tools": [{"type": "function", "name": "f"}]}}),
        json!({"reasoning_effort": "x"}),
        json!({"parallel_tool_calls": "x"}),
        json!({"include_reasoning": null}),
    ];
    let completion = |further: &Value| {
        let mut body = chat(further);
        body.as_object_mut().expect("an object").remove("messages");
        body["prompt"] = json!("a");
        body
    };
    let chats = both_ways.iter().chain(&of_chats).map(|further| (CHAT, chat(further)));
    let texts = both_ways.iter().map(|further| ("/v1/completions", completion(further)));
    for (path, body) in chats.chain(texts) {
        let (theirs, ours) = (frontend.post(path, &body), serve.post(path, &body));
        assert_eq!((ours.status, plain(&ours.body)), (theirs.status, plain(&theirs.body)), "{path} {body}");
    }
}
