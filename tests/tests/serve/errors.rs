//! Requests that cannot be served.

use serde_json::{Value, json};
use vcr_tests::{Folder, Serve, byte_tokenizer};

#[test]
fn errors_are_those_of_vllm() {
    let serve = Serve::start(&["--max-model-len", "100", "--frontend", "rust"]);
    let cases: [(&str, Value, u16, &str, &str); 12] = [
        (
            "/v1/completions",
            json!({"model": "x", "prompt": "a"}),
            404,
            "NotFoundError",
            "The model `x` does not exist.",
        ),
        ("/v1/completions", json!({"model": "sim"}), 400, "Bad Request", "missing field `prompt`"),
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": "b"}),
            400,
            "Bad Request",
            "max_tokens: invalid type: string",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "temperature": -1}),
            400,
            "BadRequestError",
            "temperature must be in [0, 2], got -1",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "top_p": 2}),
            400,
            "BadRequestError",
            "top_p must be in (0, 1], got 2",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 0}),
            400,
            "BadRequestError",
            "only supported when echo=true",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "min_tokens": 9, "max_tokens": 4}),
            400,
            "BadRequestError",
            "got min_tokens=9, max_tokens=4",
        ),
        ("/v1/completions", json!({"prompt": []}), 400, "BadRequestError", "must contain at least one prompt token ID"),
        ("/v1/completions", json!({"prompt": "a", "best_of": 2}), 400, "BadRequestError", "best_of is not supported"),
        (
            "/v1/completions",
            json!({"prompt": vec![1; 101]}),
            400,
            "BadRequestError",
            "your prompt contains 101 input tokens",
        ),
        ("/v1/chat/completions", json!({"messages": []}), 400, "BadRequestError", "messages cannot be empty"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}),
            400,
            "BadRequestError",
            "top_logprobs is only allowed",
        ),
    ];
    assert_errors(&serve, &cases);
    assert_eq!(serve.post_text("/v1/completions", "{\"prompt\"").status, 400);
    assert_eq!(serve.get("/nothing").status, 404);
    // More prompts or choices than the engines ever accept are an error of the request, not a full queue.
    for (path, body) in [
        ("/v1/completions", json!({"prompt": vec!["a"; 10_001]})),
        ("/v1/completions", json!({"prompt": vec!["a"; 101], "n": 100})),
        ("/v1/embeddings", json!({"input": vec!["a"; 10_001]})),
    ] {
        let reply = serve.post(path, &body);
        let message = reply.body["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        assert!(message.contains("answers at once") && message.contains("split it"), "{path}: {message}");
    }
    // None of the refused requests is left behind.
    assert_eq!(serve.get("/load").body["server_load"], 0);
    assert_eq!(serve.post("/v1/completions", &json!({"prompt": "a"})).status, 200);
}

fn assert_errors(serve: &Serve, cases: &[(&str, Value, u16, &str, &str)]) {
    for (path, body, status, kind, message) in cases {
        let reply = serve.post(path, body);
        let error = &reply.body["error"];
        assert_eq!(
            (reply.status, error["type"].as_str(), error["code"].as_u64()),
            (*status, Some(*kind), Some((*status).into())),
            "{body}"
        );
        assert!(error["message"].as_str().is_some_and(|text| text.contains(message)), "{body}: {error}");
    }
}

/// `serve_differential` compares all errors with the server itself.
#[test]
fn errors_are_those_of_the_python_server_by_default() {
    let serve = Serve::start(&["--max-model-len", "100"]);
    let messages = json!([{"role": "user", "content": "a"}]);
    assert_errors(
        &serve,
        &[
            ("/v1/completions", json!({"model": "x", "prompt": "a"}), 404, "NotFoundError", "Valid aliases: "),
            ("/v1/completions", json!({"model": "sim"}), 400, "BadRequestError", "Either prompt or prompt_embeds must"),
            (
                "/v1/completions",
                json!({"prompt": "a", "max_tokens": "b"}),
                400,
                "Bad Request",
                "1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', ",
            ),
            ("/v1/completions", json!({"prompt": "a", "n": null}), 400, "Bad Request", "'input': 'None'}"),
            (
                "/v1/completions",
                json!({"prompt": "a", "top_p": 2}),
                400,
                "BadRequestError",
                "top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)",
            ),
            ("/v1/chat/completions", json!({"messages": []}), 400, "BadRequestError", "to an empty conversation"),
            (
                "/v1/chat/completions",
                json!({"messages": messages, "tool_choice": "auto"}),
                400,
                "BadRequestError",
                "When using `tool_choice`, `tools` must be set.",
            ),
            (
                "/v1/chat/completions",
                json!({"messages": messages, "response_format": {"type": "xml"}}),
                400,
                "Bad Request",
                "6 validation errors:",
            ),
        ],
    );
    // Values are converted as Pydantic converts them.
    let converted = json!({"prompt": "a", "max_tokens": "3", "ignore_eos": 1, "n": true, "temperature": "0.5"});
    let reply = serve.post("/v1/completions", &converted);
    assert_eq!((reply.status, &reply.body["usage"]["completion_tokens"]), (200, &json!(3)), "{reply:?}");
}

#[test]
fn what_cannot_be_served_is_said_at_the_start() {
    let folder = Folder::new();
    let said = folder.vcr(&["serve", "Qwen/Qwen3-8B"]).ended(2).stderr;
    assert!(said.contains("invalid MODEL Qwen/Qwen3-8B: expected an existing folder of a model"), "{said}");
    assert!(said.contains("hint: nothing is downloaded") && !said.contains("os error"), "{said}");
    std::fs::create_dir(folder.path().join("model")).expect("a temporary folder is writable");
    for (file, text, wanted) in [
        ("tokenizer.json", "{", "invalid file `model/tokenizer.json`"),
        (
            "config.json",
            "{\"vocab_size\": 0}",
            "invalid file `model/config.json`: `vocab_size` is 0: expected at least 1",
        ),
        ("config.json", "{\"text_config\": {\"hidden_size\": 0}}", "`hidden_size` is 0: expected at least 1"),
        ("chat_template.jinja", "{% for %}", "invalid chat template: line 1"),
        ("chat_template.jinja", "{% if %}", "hint: correct chat_template.jinja"),
        ("chat_template.jinja", "{% for a in range(100000000) %}{% endfor %}", "loop forever"),
        (
            "chat_template.jinja",
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "loop forever",
        ),
        ("chat_template.jinja", "{% include '/etc/passwd' %}", "the template reads no files"),
    ] {
        folder.write("model/tokenizer.json", byte_tokenizer().to_string());
        folder.write(&format!("model/{file}"), text);
        folder.vcr(&["serve", "model", "--port", "0"]).failed(2, &["MODEL model: ", wanted]);
        std::fs::remove_file(folder.path().join("model").join(file)).expect("it was written");
    }
    let serve = Serve::start(&[]);
    let port = serve.address().rsplit(':').next().expect("a port").to_owned();
    let said = folder.vcr(&["serve", "--port", &port]).ended(2);
    assert!(said.stderr.contains("cannot listen on 127.0.0.1"), "{}", said.stderr);
}
