//! Answers to requests.

use serde_json::{Value, json};
use vcr_tests::Serve;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A server that gives equal answers to equal requests.
fn random() -> Serve {
    Serve::start(&["--tokens", "random"])
}

fn chat(further: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6});
    for (key, value) in further.as_object().expect("fields") {
        body[key] = value.clone();
    }
    body
}

fn texts(events: &[Result<Value, String>], path: &str) -> String {
    events.iter().flatten().filter_map(|event| event.pointer(path)?.as_str().map(str::to_owned)).collect()
}

#[test]
fn a_completion_has_its_text_its_reason_and_its_usage() {
    let serve = random();
    let reply = serve.post(COMPLETIONS, &json!({"model": "sim", "prompt": [1, 2, 3], "max_tokens": 4}));
    assert_eq!(reply.status, 200);
    let body = reply.body;
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["model"], "sim");
    assert!(body["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")), "{body}");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let usage = json!({"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4, "prompt_tokens_details": null,
                       "completion_tokens_details": {"reasoning_tokens": 0}});
    assert_eq!(body["usage"], usage);
    // The same request as a stream.
    let request =
        json!({"prompt": [1, 2, 3], "max_tokens": 4, "stream": true, "stream_options": {"include_usage": true}});
    let events = serve.stream(COMPLETIONS, &request);
    assert_eq!(texts(&events, "/choices/0/text"), body["choices"][0]["text"]);
    assert_eq!(events.last(), Some(&Err("[DONE]".to_owned())));
    let [.., Ok(end), Ok(usage), Err(_)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(end["choices"][0], json!({"index": 0, "text": "", "finish_reason": "length"}));
    assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &body["usage"]));
}

#[test]
fn a_chat_streams_its_role_its_text_and_its_end() {
    let serve = random();
    let whole = serve.post(CHAT, &chat(json!({}))).body;
    assert_eq!(whole["object"], "chat.completion");
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    let events = serve.stream(CHAT, &chat(json!({"stream": true})));
    let Ok(first) = &events[0] else { panic!("{events:?}") };
    assert_eq!(first["choices"][0], json!({"index": 0, "delta": {"role": "assistant"}}));
    assert_eq!(texts(&events, "/choices/0/delta/content"), message["content"]);
    let [.., Ok(end), Err(done)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((end["choices"][0]["finish_reason"].as_str(), done.as_str()), (Some("length"), "[DONE]"));
    assert!(events.iter().flatten().all(|event| event.get("usage").is_none()));
}

#[test]
fn several_prompts_have_several_answers_each() {
    let serve = random();
    let request = json!({"prompt": [[1, 2], [3, 4, 5]], "n": 2, "max_tokens": 3, "return_token_ids": true});
    let body = serve.post(COMPLETIONS, &request).body;
    let choices = body["choices"].as_array().expect("choices");
    let indices: Vec<u64> = choices.iter().filter_map(|choice| choice["index"].as_u64()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(choices[1]["prompt_token_ids"], json!([1, 2]));
    assert_eq!(choices[2]["prompt_token_ids"], json!([3, 4, 5]));
    assert_ne!(choices[0]["token_ids"], choices[1]["token_ids"], "completions of one prompt differ");
    assert_eq!(body["usage"]["prompt_tokens"], 5);
    assert_eq!(body["usage"]["completion_tokens"], 12);
    let n = serve.post(CHAT, &chat(json!({"n": 3}))).body;
    assert_eq!(n["choices"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let serve = random();
    let request = json!({"prompt": [5, 6], "max_tokens": 40});
    let whole = serve.post(COMPLETIONS, &request).body["choices"][0]["text"].as_str().expect("a text").to_owned();
    let chars: Vec<char> = whole.chars().collect();
    let stop: String = chars[chars.len() / 2..chars.len() / 2 + 2].iter().collect();
    let request = json!({"prompt": [5, 6], "max_tokens": 40, "stop": [stop]});
    let stopped = serve.post(COMPLETIONS, &request).body;
    let choice = &stopped["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
    assert_eq!(choice["text"], whole[..whole.find(&stop).expect("it is there")]);
    let request =
        json!({"prompt": [5, 6], "max_tokens": 40, "stop": stop, "include_stop_str_in_output": true, "stream": true});
    let events = serve.stream(COMPLETIONS, &request);
    assert!(texts(&events, "/choices/0/text").ends_with(&stop));
    // Engines do not know why the text ended, but must have forgotten the request.
    vcr_tests::wait_until("no request is left", || serve.get("/load").body["server_load"] == 0);
}

#[test]
fn a_stop_token_ends_the_text_and_min_tokens_holds_it_back() {
    let serve = random();
    let tokens = |further: Value| {
        let mut request = json!({"prompt": [7], "max_tokens": 12, "return_token_ids": true});
        for (key, value) in further.as_object().expect("fields") {
            request[key] = value.clone();
        }
        serve.post(COMPLETIONS, &request).body["choices"][0].clone()
    };
    let all = tokens(json!({}));
    let third = all["token_ids"][2].clone();
    let stopped = tokens(json!({"stop_token_ids": [third]}));
    assert_eq!((&stopped["finish_reason"], &stopped["stop_reason"]), (&json!("stop"), &third));
    assert_eq!(stopped["token_ids"].as_array().map(Vec::len), Some(3));
    let held = tokens(json!({"stop_token_ids": [third], "min_tokens": 6}));
    assert!(held["token_ids"].as_array().is_some_and(|tokens| tokens.len() > 3), "{held}");
}

#[test]
fn logprobs_stand_beside_the_tokens() {
    let serve = random();
    let request = json!({"prompt": [1, 2, 3], "max_tokens": 2, "logprobs": 2, "echo": true});
    let body = serve.post(COMPLETIONS, &request).body;
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().map(Vec::len), Some(5), "{body}");
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    assert_eq!(logprobs["text_offset"][0], 0);
    assert_eq!(body["choices"][0]["prompt_logprobs"].as_array().map(Vec::len), Some(3));
    let body = serve.post(CHAT, &chat(json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 1}))).body;
    let content = &body["choices"][0]["logprobs"]["content"];
    assert_eq!(content.as_array().map(Vec::len), Some(1), "{body}");
    assert_eq!(content[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
    assert!(content[0]["bytes"].is_array());
}

#[test]
fn tokens_go_in_and_out() {
    let serve = random();
    let reply =
        serve.post("/inference/v1/generate", &json!({"token_ids": [1, 2], "sampling_params": {"max_tokens": 3}}));
    assert_eq!(reply.body["choices"][0]["token_ids"].as_array().map(Vec::len), Some(3), "{}", reply.body);
    let tokens = serve.post("/tokenize", &json!({"prompt": "Hello there"})).body;
    assert_eq!(tokens["count"].as_u64(), tokens["tokens"].as_array().map(|tokens| tokens.len() as u64));
    let text = serve.post("/detokenize", &json!({"tokens": tokens["tokens"]})).body;
    assert_eq!(text["prompt"], "Hello there");
}

/// Answers are readable by default, and can be made repeatable.
#[test]
fn answers_are_english_unless_asked_otherwise() {
    let serve = Serve::start(&[]);
    let text = |further: Value| {
        let body = serve.post(CHAT, &chat(further)).body;
        body["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
    };
    let fixed = json!({"max_tokens": 30, "seed": 1});
    assert_eq!(text(fixed.clone()), text(fixed));
    let greedy = json!({"max_tokens": 30, "temperature": 0});
    assert_eq!(text(greedy.clone()), text(greedy));
    let varied: std::collections::BTreeSet<String> = (0..4).map(|_| text(json!({"max_tokens": 30}))).collect();
    assert!(varied.len() > 1, "{varied:?}");
    let long = text(json!({"max_tokens": 2000}));
    assert!(long.is_ascii() && long.contains(' ') && long.ends_with(['.', '!', '?']), "{long}");
}

#[test]
fn models_version_and_health_are_told() {
    let serve = Serve::start(&["--served-model-name", "one", "two", "--lora-modules", "fine=/adapters/fine"]);
    let models = serve.get("/v1/models").body;
    let names: Vec<_> =
        models["data"].as_array().expect("models").iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(names, ["one", "two", "fine"]);
    for path in ["/health", "/ping", "/ready"] {
        assert_eq!(serve.get(path).status, 200, "{path}");
    }
    assert_eq!(serve.get("/version").body["version"], "0.33.0");
    let adapted = serve.post(COMPLETIONS, &json!({"model": "fine", "prompt": "x", "max_tokens": 1}));
    assert_eq!((adapted.status, &adapted.body["model"]), (200, &json!("fine")));
}

#[test]
fn engines_sleep_and_pause() {
    let serve = random();
    let says = |path: &str, key: &str| serve.get(path).body[key].clone();
    assert_eq!(serve.post("/sleep", &json!({})).body, json!({"status": "sleeping", "level": 1}));
    assert_eq!(says("/is_sleeping", "is_sleeping"), true);
    assert_eq!(serve.post("/wake_up", &json!({})).body["status"], "awake");
    assert_eq!(says("/is_sleeping", "is_sleeping"), false);
    assert_eq!(serve.post("/pause", &json!({})).body["status"], "paused");
    assert_eq!(says("/is_paused", "is_paused"), true);
    let refused = serve.post(COMPLETIONS, &json!({"prompt": "x"}));
    assert_eq!((refused.status, &refused.body["error"]["type"]), (503, &json!("ServiceUnavailableError")));
    assert_eq!(serve.post("/resume", &json!({})).body["status"], "resumed");
    assert_eq!(serve.post(COMPLETIONS, &json!({"prompt": "x"})).status, 200);
    assert_eq!(serve.post("/reset_prefix_cache", &json!({})).body["success"], true);
}
