//! Command lines of `vllm serve`.

use serde_json::{Value, json};
use vcr_tests::{Folder, Serve, frontend_model};

/// A typical command line: nothing in it is refused, and settings without effect are listed once.
#[test]
fn a_command_line_of_vllm_is_served() {
    let line = "--host 127.0.0.1 --enable-prefix-caching --max_model_len 8k --max-num-batched-tokens 2K -tp 2 \
                --gpu-memory-utilization 0.92 --enforce-eager --trust-remote-code --dtype auto --shutdown-timeout 5 -O3 \
                --tool-call-parser hermes --enable-auto-tool-choice --disable-log-requests-not --no-async-scheduling";
    let line = line.replace(" --disable-log-requests-not", "");
    let words: Vec<&str> = line.split_whitespace().collect();
    let serve = Serve::start(&words);
    let models = serve.get("/v1/models").body;
    assert_eq!(models["data"][0]["max_model_len"], 8_000, "{models}");
    let said = serve.wait_for("no effect of ");
    for flag in ["--enforce-eager", "--gpu-memory-utilization", "--trust-remote-code", "--optimization-level"] {
        assert!(said.contains(flag), "{said}");
    }
    for flag in ["--enable-prefix-caching", "--no-async-scheduling", "--dtype", "--max-model-len"] {
        assert!(!said.contains(flag), "{said}");
    }
    assert_eq!(serve.log().matches("no effect of").count(), 1);
}

#[test]
fn numbers_have_the_suffixes_of_vllm() {
    let length = |text: &str| {
        let serve = Serve::start(&["--max-model-len", text, "--num-gpu-blocks-override", "1k", "--block-size", "16"]);
        serve.get("/v1/models").body["data"][0]["max_model_len"].clone()
    };
    assert_eq!(length("1K"), 1_024);
    assert_eq!(length("2.5k"), 2_500);
    // The maximum length that fits into the KV blocks.
    assert_eq!(length("auto"), 999 * 16);
    assert_eq!(length("-1"), 999 * 16);
    let folder = Folder::new();
    let refused = folder.vcr(&["serve", "--max-model-len", "1.5K"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("1.5k counts by 1,000"), "{}", refused.stderr);
}

#[test]
fn drafts_are_those_of_the_speculative_config() {
    let config = r#"{"method": "ngram", "num_speculative_tokens": 3}"#;
    let serve = Serve::start(&["--speculative-config", config]);
    let body = json!({"prompt": "a", "max_tokens": 16, "ignore_eos": true});
    assert_eq!(serve.post("/v1/completions", &body).status, 200);
    let page = ureq::get(format!("http://{}/metrics", serve.address())).call().expect("it is served");
    let page = page.into_body().read_to_string().expect("it is text");
    let drafts = page.lines().find(|line| line.starts_with("vllm:spec_decode_num_draft_tokens_total{"));
    assert!(drafts.is_some_and(|line| !line.ends_with(" 0")), "{drafts:?}");
    assert!(!serve.log().contains("no effect"), "{}", serve.log());
    let refused = Folder::new().vcr(&["serve", "--speculative-config", "{"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("--speculative-config"), "{}", refused.stderr);
}

#[test]
fn each_stream_ends_with_its_usage_if_that_is_forced() {
    let serve = Serve::start(&["--enable-force-include-usage"]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 2})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2})),
    ] {
        for options in [Value::Null, json!({"include_usage": false})] {
            let mut body = body.clone();
            (body["stream"], body["stream_options"]) = (true.into(), options);
            let events: Vec<Value> = serve.stream(path, &body).into_iter().filter_map(Result::ok).collect();
            assert_eq!(events.last().map(|last| last["usage"]["completion_tokens"].clone()), Some(json!(2)), "{path}");
        }
    }
}

/// A custom chat template, as a file and as a text.
#[test]
fn chats_have_the_template_and_the_role_of_the_options() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("own.jinja");
    let text = "{% for message in messages %}<{{ message.content }}>{% endfor %}";
    std::fs::write(&path, text).expect("it is writable");
    let chat = json!({"messages": [{"role": "user", "content": "a b"}], "max_tokens": 2});
    for template in [path.to_str().expect("a path is a text"), text] {
        let serve = Serve::start(&["--chat-template", template, "--response-role", "bot"]);
        let tokens = serve.post("/tokenize", &chat).body["tokens"].clone();
        let prompt = serve.post("/detokenize", &json!({"tokens": tokens})).body;
        assert_eq!(prompt["prompt"], "<a b>");
        assert_eq!(serve.post("/v1/chat/completions", &chat).body["choices"][0]["message"]["role"], "bot");
    }
    for (template, said) in [("none.jinja", "expected a file or a template"), ("{% if %}", "invalid --chat-template")] {
        let refused = Folder::new().vcr(&["serve", "--chat-template", template]);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
}

/// A real model's folder as an option, and arguments in a `--config` file.
#[test]
fn the_model_is_an_option_too_and_arguments_may_stand_in_a_file() {
    let Some(model) = frontend_model() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("serve.yaml");
    std::fs::write(&path, "enforce-eager: true\nmax-model-len: 1k\nmax_num_seqs: 4\n").expect("it is writable");
    let model = model.to_str().expect("a path is a text");
    let config = path.to_str().expect("a path is a text");
    let serve = Serve::start(&["--served-model-name", "sim", "--model", model, "--config", config]);
    let models = serve.get("/v1/models").body;
    assert_eq!((&models["data"][0]["root"], &models["data"][0]["max_model_len"]), (&json!(model), &json!(1_000)));
    serve.wait_for("no effect of --enforce-eager");
}
