//! The names of the served model.

use serde_json::{Value, json};
use vcr_tests::Serve;

/// Requests of all APIs whose answers name the model.
fn requests() -> Vec<(&'static str, Value)> {
    let chat = json!([{"role": "user", "content": "a"}]);
    vec![
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 2})),
        ("/v1/chat/completions", json!({"messages": chat, "max_tokens": 2})),
        ("/v1/messages", json!({"messages": chat, "max_tokens": 2})),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 16})),
        ("/v1/embeddings", json!({"input": "a"})),
        ("/pooling", json!({"input": "a"})),
        ("/classify", json!({"input": "a"})),
        ("/score", json!({"text_1": "a", "text_2": "b"})),
        ("/rerank", json!({"query": "a", "documents": ["b"]})),
    ]
}

fn model_of(event: &Value) -> Option<&str> {
    ["/model", "/message/model", "/response/model"].iter().find_map(|at| event.pointer(at)?.as_str())
}

#[test]
fn answers_have_the_first_name_whatever_alias_was_asked_for() {
    let names = ["--served-model-name", "first", "second", "--lora-modules", "fine=/adapters/fine"];
    let serve = Serve::start(&names);
    for (path, mut body) in requests() {
        for (asked, answered) in [("first", "first"), ("second", "first"), ("fine", "fine")] {
            body["model"] = asked.into();
            let answer = serve.post(path, &body);
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            assert_eq!(answer.body["model"], answered, "{path} of {asked}");
        }
    }
    for (path, mut body) in requests().into_iter().take(4) {
        body["model"] = "second".into();
        body["stream"] = true.into();
        let events = serve.stream(path, &body);
        let events: Vec<Value> = events.into_iter().filter_map(Result::ok).collect();
        let named: Vec<&str> = events.iter().filter_map(model_of).collect();
        assert!(!named.is_empty() && named.iter().all(|name| *name == "first"), "{path}: {events:?}");
    }
    let unknown = serve.post("/v1/completions", &json!({"model": "third", "prompt": "a"}));
    assert_eq!(unknown.status, 404, "{}", unknown.body);
}

#[test]
fn names_are_those_of_the_command_line_of_vllm() {
    let names = |args: &[&str]| -> Vec<String> {
        let serve = Serve::start(args);
        let listed = serve.get("/v1/models").body["data"].as_array().cloned().unwrap_or_default();
        listed.iter().map(|model| model["id"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let line = "vllm serve org/model --max-num-seqs 8 --num-gpu-blocks-override 500";
    assert_eq!(names(&["--vllm-args", line]), ["org/model"]);
    let named = format!("{line} --served-model-name a b");
    assert_eq!(names(&["--vllm-args", &named]), ["a", "b"]);
    // `--served-model-name` overrides `--vllm-args`.
    assert_eq!(names(&["--vllm-args", &named, "--served-model-name", "c"]), ["c"]);
    assert_eq!(names(&[]), ["sim"]);
}
