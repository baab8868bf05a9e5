//! Routes with facts of SGLang's server, routes that change its engines, and its forms of OpenAI's API.

use serde_json::{Value, json};
use vcr_tests::{Folder, read_answer, wait_until};

use crate::{generate, get, metric, prompt, serve};

#[test]
fn the_server_tells_its_settings() {
    let more =
        ["--page-size", "4", "--max-running-requests", "9", "--schedule-policy", "lpm", "--context-length", "300"];
    let serve = serve(4000, &more);
    let address = serve.address();
    for path in ["/model_info", "/get_model_info"] {
        let info = serve.get(path).body;
        assert_eq!((&info["served_model_name"], &info["is_generation"]), (&json!("sim"), &json!(true)), "{info}");
    }
    for path in ["/server_info", "/get_server_info"] {
        let info = serve.get(path).body;
        let facts = ["page_size", "max_total_num_tokens", "max_running_requests", "context_length", "dp_size"];
        assert_eq!(facts.map(|name| info[name].as_u64()), [4, 4000, 9, 300, 1].map(Some), "{info}");
        assert_eq!((&info["schedule_policy"], &info["disaggregation_mode"]), (&json!("lpm"), &json!("null")));
        assert!(info["internal_states"].is_array());
    }
    assert_eq!(serve.get("/get_load").body, json!([{"dp_rank": 0, "num_reqs": 0}]));
    for path in ["/health", "/health_generate", "/ping"] {
        assert_eq!(get(address, "GET", path).0, 200, "{path}");
    }
    assert_eq!(metric(address, "sglang:generation_tokens_total"), 1.0, "/health_generate makes a token");
    assert_eq!(serve.get("/reset_prefix_cache").body, json!({"detail": "Not Found"}), "vLLM's endpoints are not there");
}

#[test]
fn the_radix_cache_is_flushed_unless_a_request_is_under_way() {
    let serve = serve(4000, &["--decode-step-time", "20ms"]);
    let address = serve.address();
    let cached = || generate(&serve, &prompt(1, 100), 1)["meta_info"]["cached_tokens"].clone();
    assert_eq!([cached(), cached()], [0, 99], "pages have one token, and the last is computed");
    let (status, text) = get(address, "POST", "/flush_cache");
    assert!(status == 200 && text.starts_with("Cache flushed."), "{status} {text}");
    assert_eq!([cached(), cached()], [0, 99]);
    let long = serve.begin(
        "/generate",
        &json!({"text": "a", "rid": "long", "sampling_params": {
            "max_new_tokens": 900, "ignore_eos": true,
        }}),
    );
    wait_until("it runs", || metric(address, "sglang:num_running_reqs") == 1.0);
    assert_eq!(get(address, "GET", "/flush_cache"), (400, "Flush cache failed.\n".to_owned()));
    assert_eq!(serve.post("/abort_request", &json!({"rid": "other"})).status, 200);
    assert_eq!(serve.post("/abort_request", &json!({"rid": "long"})).status, 200);
    let answer = read_answer(long);
    let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let reason = json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null});
    assert_eq!(answer["meta_info"]["finish_reason"], reason, "{answer}");
    wait_until("it has gone", || metric(address, "sglang:num_running_reqs") == 0.0);
    assert_eq!(metric(address, "sglang:num_used_tokens"), 0.0);
    let other =
        serve.begin("/generate", &json!({"text": "a", "sampling_params": {"max_new_tokens": 900, "ignore_eos": true}}));
    wait_until("it runs", || metric(address, "sglang:num_running_reqs") == 1.0);
    assert_eq!(serve.post("/abort_request", &json!({"abort_all": true})).status, 200);
    assert!(read_answer(other).text().contains("\"abort\""));
}

#[test]
fn openais_api_has_sglangs_fields() {
    let serve = serve(4000, &[]);
    let keys =
        |value: &Value| value.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let body = json!({"model": "sim", "prompt": "Tell me", "max_tokens": 4, "ignore_eos": true});
    let completion = serve.post("/v1/completions", &body).body;
    let mut top = keys(&completion);
    top.sort_unstable();
    assert_eq!(top, ["choices", "created", "id", "metadata", "model", "object", "usage"]);
    let mut choice = keys(&completion["choices"][0]);
    choice.sort_unstable();
    assert_eq!(choice, ["finish_reason", "index", "logprobs", "matched_stop", "text"]);
    assert_eq!(completion["usage"]["reasoning_tokens"], 0);
    assert_eq!(completion["metadata"], json!({"weight_version": "default"}));

    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chat = serve.post("/v1/chat/completions", &json!({"model": "sim", "messages": messages, "max_tokens": 4})).body;
    let mut message = keys(&chat["choices"][0]["message"]);
    message.sort_unstable();
    assert_eq!(message, ["content", "reasoning_content", "role"], "{chat}");
    let body = json!({"model": "sim", "messages": messages, "max_tokens": 4, "ignore_eos": true, "stream": true});
    let events = serve.stream("/v1/chat/completions", &body);
    let events: Vec<&Value> = events.iter().filter_map(|event| event.as_ref().ok()).collect();
    assert_eq!(events[0]["choices"][0]["delta"]["content"], "");
    for event in &events {
        assert!(event["usage"].is_null() && event.get("metadata").is_none(), "{event}");
        assert!(event["choices"][0].get("matched_stop").is_some_and(Value::is_null), "{event}");
    }
    assert_eq!(events.last().map(|event| &event["choices"][0]["finish_reason"]), Some(&json!("length")));

    let models = serve.get("/v1/models").body;
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["owned_by"]), (&json!("sim"), &json!("sglang")));
    let error = serve.post("/v1/completions", &json!({"model": "sim", "prompt": "a", "max_tokens": 90000}));
    assert_eq!((error.status, &error.body["object"], &error.body["code"]), (400, &json!("error"), &json!(400)));
    assert!(error.body["message"].is_string(), "{}", error.body);
}

#[test]
fn metrics_have_sglangs_names() {
    let serve = serve(4000, &[]);
    let address = serve.address();
    let _ = [generate(&serve, &prompt(1, 100), 5), generate(&serve, &prompt(1, 100), 5)];
    wait_until("both have ended", || metric(address, "sglang:num_requests_total") == 2.0);
    for (name, value) in [
        ("sglang:prompt_tokens_total", 200.0),
        ("sglang:generation_tokens_total", 10.0),
        ("sglang:cached_tokens_total", 99.0),
        ("sglang:max_total_num_tokens", 4000.0),
        ("sglang:time_to_first_token_seconds_count", 2.0),
        ("sglang:e2e_request_latency_seconds_count", 2.0),
        ("sglang:cache_hit_rate", 0.99),
    ] {
        assert_eq!(metric(address, name), value, "{name}");
    }
    let (_, text) = get(address, "GET", "/metrics");
    assert!(!text.contains("vllm:"), "{text}");
    assert!(text.contains("engine_type=\"unified\""), "{text}");
}

#[test]
fn what_sglangs_engine_does_not_have_is_refused_by_name() {
    let folder = Folder::new();
    for (args, needle) in [
        (&["--async-scheduling"][..], "--async-scheduling: SGLang's engine does not have this option"),
        (&["--max-num-batched-tokens", "100"], "--max-num-batched-tokens: SGLang's engine does not have"),
        (&["--scheduling-policy", "priority"], "--scheduling-policy: SGLang's engine does not have"),
        (&["--time-to-first-token", "5ms"], "times of single requests: not with --backend sglang"),
        (&["--frontend", "rust"], "--frontend rust: not with --backend sglang"),
        (
            &["--num-gpu-blocks", "9", "--max-total-tokens", "9"],
            "--max-total-tokens: expected without --num-gpu-blocks",
        ),
        (
            &["--page-size", "16", "--chunked-prefill-size", "40"],
            "invalid `chunked_prefill_size` (40): expected a multiple",
        ),
        (&["--enable-lora"], "--enable-lora: not with --backend sglang"),
        (
            &["--max-num-seqs", "1", "--max-running-requests=4"],
            "the argument '--max-num-seqs' cannot be used with '--max-running-requests'",
        ),
        (&["--max-num-seqs", "1", "--max-num-seqs", "4"], "cannot be used multiple times"),
        (&["--kv-transfer", "tcp"], "--kv-transfer: expected none with --backend sglang"),
    ] {
        folder.vcr(&[&["serve", "--port", "0", "--backend", "sglang"], args].concat()).failed(2, &[needle]);
    }
    folder.vcr(&["serve", "--port", "0", "--schedule-policy", "lpm"]).failed(2, &["expected with --backend sglang"]);
}
