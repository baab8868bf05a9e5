//! Differences between vLLM's Python and Rust frontends in the server.

use serde_json::{Value, json};
use vcr_tests::{Serve, frontend_model};

/// The metrics page for a client that accepts `accept`, with its content type.
fn page(serve: &Serve, accept: Option<&str>) -> (String, String) {
    let request = ureq::get(format!("http://{}/metrics", serve.address()));
    let request = accept.into_iter().fold(request, |request, accept| request.header("accept", accept));
    let answer = request.call().expect("it is served");
    let kind = answer.headers()["content-type"].to_str().expect("it is text").to_owned();
    (kind, answer.into_body().read_to_string().expect("it is text"))
}

/// Value of the series that begins with `name` and has all of `labels`.
fn value(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let is_it = |line: &&str| line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label));
    page.lines().find(is_it)?.rsplit(' ').next()?.parse().ok()
}

#[test]
fn the_format_of_metrics_is_what_the_client_accepts() {
    let serve = Serve::start(&[]);
    let (kind, text) = page(&serve, None);
    assert_eq!(kind, "text/plain; version=1.0.0; charset=utf-8");
    assert!(text.contains("# TYPE vllm:prompt_tokens_total counter") && !text.contains("# EOF"), "{text}");
    let (kind, text) = page(&serve, Some("application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"));
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(text.contains("# TYPE vllm:prompt_tokens counter") && text.ends_with("# EOF\n"), "{text}");
    let rust = Serve::start(&["--frontend", "rust"]);
    assert_eq!(page(&rust, None).0, "application/openmetrics-text; version=1.0.0; charset=utf-8");
}

#[test]
fn metrics_of_the_python_frontend_are_there_by_default() {
    let serve = Serve::start(&["--block-size", "32", "--num-gpu-blocks", "500", "--no-enable-prefix-caching"]);
    let (_, text) = page(&serve, None);
    let cache = ["block_size=\"32\"", "num_gpu_blocks=\"500\"", "enable_prefix_caching=\"False\"", "engine=\"0\""];
    assert_eq!(value(&text, "vllm:cache_config_info", &cache), Some(1.0), "{text}");
    for name in ["vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total", "vllm:e2e_request_latency_seconds_count"] {
        assert_eq!(value(&text, name, &["engine=\"0\"", "model_name=\"sim\""]), Some(0.0), "{name}");
    }
    assert_eq!(value(&text, "vllm:request_success_total", &["finished_reason=\"repetition\""]), Some(0.0));
    assert!(!text.contains("vllm:sleep_mode_operation"), "{text}");
    let (_, text) = page(&Serve::start(&["--frontend", "rust"]), None);
    for name in ["cache_config_info", "mm_cache", "engine_sleep_state"] {
        assert!(!text.contains(&format!("vllm:{name}")), "{name}");
    }
    assert!(!text.contains("http_request_size_bytes") && text.contains("vllm:sleep_mode_operation"), "{text}");
}

#[test]
fn sleep_shows_in_the_metrics() {
    let serve = Serve::start(&[]);
    let states = || {
        let (_, text) = page(&serve, None);
        ["awake", "weights_offloaded", "discard_all"].map(|state| {
            let label = format!("sleep_state=\"{state}\"");
            value(&text, "vllm:engine_sleep_state", &[&label]).expect("it is there")
        })
    };
    assert_eq!(states(), [1.0, 0.0, 0.0]);
    for (level, shown) in [(1, [0.0, 1.0, 0.0]), (2, [0.0, 0.0, 1.0])] {
        assert_eq!(serve.post(&format!("/sleep?level={level}"), &json!({})).status, 200);
        assert_eq!(states(), shown);
        assert_eq!(serve.post("/wake_up", &json!({})).status, 200);
        assert_eq!(states(), [1.0, 0.0, 0.0]);
    }
}

/// The second request with the same image finds it in the cache.
#[test]
fn media_are_looked_up_in_the_cache_of_the_frontend() {
    let serve = Serve::start(&[]);
    let image = |name: &str| {
        let url = format!("http://example.com/{name}.png");
        let parts = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]);
        let body = json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 2});
        assert_eq!(serve.post("/v1/chat/completions", &body).status, 200);
    };
    for name in ["a", "b", "a"] {
        image(name);
    }
    let (_, text) = page(&serve, None);
    let count = |name: &str| value(&text, name, &["engine=\"0\""]);
    assert_eq!([count("vllm:mm_cache_queries_total"), count("vllm:mm_cache_hits_total")], [Some(3.0), Some(1.0)]);
}

#[test]
fn adapters_have_their_number_and_requests_their_sizes() {
    let serve =
        Serve::start(&["--lora-modules", "fine=/adapters/fine", "--max-loras", "3", "--inter-token-latency", "20ms"]);
    let body = json!({"model": "fine", "prompt": "a", "max_tokens": 200, "ignore_eos": true});
    let running = serve.begin("/v1/completions", &body);
    vcr_tests::wait_until("the adapter runs", || {
        let (_, text) = page(&serve, None);
        value(&text, "vllm:lora_requests_info", &["running_lora_adapters=\"fine\"", "max_lora=\"3\""]).is_some()
    });
    drop(running);
    let body = json!({"prompt": "a", "max_tokens": 2});
    assert_eq!(serve.post("/tokenize", &body).status, 200);
    let (_, text) = page(&serve, None);
    let handler = ["handler=\"/tokenize\""];
    assert_eq!(value(&text, "http_request_size_bytes_count", &handler), Some(1.0), "{text}");
    assert_eq!(value(&text, "http_request_size_bytes_sum", &handler), Some(body.to_string().len() as f64), "{text}");
    assert!(value(&text, "http_response_size_bytes_sum", &handler).is_some_and(|bytes| bytes > 10.0), "{text}");
    assert!(text.contains("# TYPE http_request_size_bytes summary"), "{text}");
}

#[test]
fn the_routes_have_a_document() {
    let serve = Serve::start(&[]);
    let document = serve.get("/openapi.json");
    assert_eq!((document.status, &document.body["openapi"]), (200, &json!("3.1.0")));
    let methods = |path: &str| -> Vec<String> {
        document.body["paths"][path].as_object().into_iter().flatten().map(|(method, _)| method.clone()).collect()
    };
    assert_eq!(methods("/v1/chat/completions"), ["post"]);
    assert_eq!(methods("/v1/models"), ["get"]);
    assert_eq!(methods("/v1/responses/{id}"), ["delete", "get"]);
    for args in [&["--disable-fastapi-docs"][..], &["--frontend", "rust"]] {
        assert_eq!(Serve::start(args).get("/openapi.json").status, 404, "{args:?}");
    }
}

#[test]
fn the_configuration_of_the_tokenizer_is_shown_where_that_is_enabled() {
    let Some(model) = frontend_model() else { return };
    let model = model.to_str().expect("a path is a text");
    assert_eq!(Serve::start(&[model]).get("/tokenizer_info").status, 404);
    let serve = Serve::start(&[model, "--enable-tokenizer-info-endpoint"]);
    let info = serve.get("/tokenizer_info");
    assert_eq!(info.status, 200, "{}", info.body);
    assert!(info.body["tokenizer_class"].is_string(), "{}", info.body);
    assert!(matches!(&info.body["chat_template"], Value::String(text) if text.contains("messages")), "{}", info.body);
}

/// The Python frontend's two limits, set too low for any request, and the metric that counts refusals.
#[test]
fn calls_beyond_the_limits_of_admission_are_refused_and_counted() {
    let limits = [("--max-num-queued-reqs", "currently busy"), ("--max-num-queued-tokens", "token backlog limit")];
    for (option, text) in limits {
        let serve = Serve::start(&[option, "0"]);
        for stream in [false, true] {
            let body = json!({"prompt": "a", "max_tokens": 2, "stream": stream});
            let refused = serve.post("/v1/completions", &body);
            assert_eq!((refused.status, &refused.body["error"]["type"]), (503, &json!("Service Unavailable")));
            let message = refused.body["error"]["message"].as_str().expect("a message");
            assert!(message.contains(text), "{message}");
        }
        let (_, page) = page(&serve, None);
        let count = |reason: &str| {
            let label = format!("reason=\"{reason}\"");
            value(&page, "vllm:admission_rejections_total", &["model_name=\"sim\"", &label])
        };
        let own = option.trim_start_matches("--").replace('-', "_");
        let counts = ["max_num_queued_reqs", "max_num_queued_tokens"].map(|reason| (reason == own, count(reason)));
        assert!(counts.iter().all(|(is_own, count)| *count == Some(if *is_own { 2.0 } else { 0.0 })), "{counts:?}");
    }
    // The Rust frontend has neither the limits nor the metric.
    let rust = Serve::start(&["--frontend", "rust", "--max-num-queued-reqs", "0"]);
    assert_eq!(rust.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 2})).status, 200);
    assert!(!page(&rust, None).1.contains("admission_rejections"));
}

#[test]
fn an_interval_of_no_tokens_is_refused() {
    let serve = Serve::start(&[]);
    let refused = serve.post("/v1/completions", &json!({"prompt": "a", "stream_interval": 0}));
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("body.stream_interval")));
}

/// A search is counted once for each answer, and once for each part of a stream.
#[test]
fn texts_that_are_searched_for_calls_are_counted() {
    let serve = Serve::start(&["--tool-call-probability", "1"]);
    let function = json!({"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}});
    let ask = |choice: &str, stream: bool| {
        let messages = json!([{"role": "user", "content": "a"}]);
        let body = json!({"messages": messages, "tools": [{"type": "function", "function": function}], "n": 2,
            "tool_choice": choice, "stream": stream, "max_tokens": 200});
        match stream {
            true => assert!(!serve.stream("/v1/chat/completions", &body).is_empty()),
            false => assert_eq!(serve.post("/v1/chat/completions", &body).status, 200),
        }
    };
    let count = |mode: &str, outcome: &str| {
        let (_, text) = page(&serve, None);
        let labels = [format!("mode=\"{mode}\""), format!("outcome=\"{outcome}\"")];
        let labels = ["request_type=\"chat_completions\"", &labels[0], &labels[1]];
        value(&text, "vllm:tool_call_parser_invocations_total", &labels).expect("it is there from the start")
    };
    ask("none", false);
    ask("required", false);
    assert_eq!((count("non_streaming", "tool_call"), count("non_streaming", "no_tool_call")), (0.0, 0.0));
    ask("auto", false);
    assert_eq!((count("non_streaming", "tool_call"), count("streaming", "tool_call")), (2.0, 0.0));
    ask("auto", true);
    assert!(count("streaming", "tool_call") >= 2.0 && count("non_streaming", "tool_call") == 2.0);
}

#[test]
fn each_frontend_refuses_the_schemas_of_its_backend() {
    let unique = json!({"type": "array", "uniqueItems": true, "items": {"type": "integer"}});
    let multiple = json!({"type": "integer", "multipleOf": 3});
    let answer = |serve: &Serve, schema: &Value| {
        let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
        let body = json!({"messages": [{"role": "user", "content": "a"}], "response_format": format, "max_tokens": 40});
        let answer = serve.post("/v1/chat/completions", &body);
        (answer.status, answer.body["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    let guidance = "Grammar error: Unimplemented keys: [\"uniqueItems\"]";
    let xgrammar = "The provided JSON schema contains features not supported by xgrammar.";
    let python = Serve::start(&[]);
    assert_eq!(answer(&python, &unique), (400, guidance.to_owned()));
    assert_eq!(answer(&python, &multiple).0, 200);
    let rust = Serve::start(&["--frontend", "rust"]);
    for schema in [&unique, &multiple] {
        assert_eq!(answer(&rust, schema), (400, format!("invalid structured outputs params: {xgrammar}")));
    }
    let strict = Serve::start(&["--structured-outputs-config", r#"{"backend": "xgrammar"}"#]);
    assert_eq!(answer(&strict, &multiple), (400, xgrammar.to_owned()));
    let other = Serve::start(&["--structured-outputs-config", r#"{"backend": "outlines"}"#]);
    assert_eq!(answer(&other, &unique).0, 200);
}
