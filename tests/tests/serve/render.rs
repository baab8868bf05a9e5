//! Requests in tokens, compared with vLLM's own renderer.

use serde_json::{Value, json};
use vcr_tests::{Renderer, Serve, frontend_model};

const CHAT: &str = "/v1/chat/completions/render";
const COMPLETIONS: &str = "/v1/completions/render";

#[test]
fn requests_are_rendered_as_vllm_renders_them() {
    let (Some(renderer), Some(model)) = (Renderer::start("0.33.0"), frontend_model()) else { return };
    let serve =
        Serve::start(&[model.to_str().expect("a path is a text"), "--served-model-name", "sim", "--frontend", "rust"]);
    let hello = json!([{"role": "user", "content": "hello"}]);
    let cases = [
        (COMPLETIONS, json!({"prompt": "hello"})),
        (COMPLETIONS, json!({"prompt": [1, 2], "max_tokens": 800_000, "return_token_ids": true})),
        (
            COMPLETIONS,
            json!({
                "prompt": "hello", "temperature": 0.7, "max_tokens": 8, "seed": 3, "logprobs": 2, "top_p": 0.5,
                "frequency_penalty": 0.1, "logit_bias": {"5": 1}, "min_tokens": 2, "ignore_eos": true, "priority": 3,
                "cache_salt": "s", "kv_transfer_params": {"do_remote_decode": true}, "vllm_xargs": {"a": 1},
                "stream": true, "stream_options": {"include_usage": true}, "top_k": 5, "allowed_token_ids": [1, 2],
                "repetition_penalty": 1.1, "presence_penalty": -0.5,
            }),
        ),
        (COMPLETIONS, json!({"prompt": "a", "model": "zz"})),
        (CHAT, json!({"messages": hello})),
        (CHAT, json!({"messages": []})),
        (
            CHAT,
            json!({
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
                "max_tokens": 5, "logprobs": true, "top_logprobs": 3, "temperature": 0, "stop_token_ids": [4],
                "min_p": 0.1, "response_format": {"type": "json_object"}, "bad_words": ["x"],
            }),
        ),
        (CHAT, json!({"messages": hello, "chat_template_kwargs": {"enable_thinking": false}})),
        (CHAT, json!({"messages": hello, "add_generation_prompt": false})),
    ];
    for (path, mut body) in cases {
        body["request_id"] = json!("same");
        let (status, mut theirs) = renderer.post(path, &body);
        let ours = serve.post(path, &body);
        // Only the engine's parsers use this field, and there are none.
        for rendered in theirs.as_array_mut().into_iter().flatten() {
            rendered.as_object_mut().expect("an object").remove("reasoning_ended");
        }
        if let Some(rendered) = theirs.as_object_mut() {
            rendered.remove("reasoning_ended");
        }
        assert_eq!((ours.status, ours.body), (status, theirs), "{path} {body}");
    }
}

/// A rendered request gets the same answer as the request itself.
#[test]
fn a_rendered_request_can_be_submitted() {
    let serve = Serve::start(&["--tokens", "random"]);
    let request = json!({
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "return_token_ids": true, "seed": 4,
    });
    let rendered = serve.post(CHAT, &request).body;
    let whole = serve.post("/v1/chat/completions", &request).body;
    assert_eq!(rendered["token_ids"], whole["prompt_token_ids"]);
    let generated = serve.post("/inference/v1/generate", &rendered);
    assert_eq!(generated.status, 200, "{}", generated.body);
    assert_eq!(generated.body["choices"][0]["token_ids"], whole["choices"][0]["token_ids"]);

    let several = serve.post(COMPLETIONS, &json!({"prompt": ["a", "b c"], "request_id": "x"})).body;
    let ids: Vec<_> = several.as_array().expect("two").iter().filter_map(|one| one["request_id"].as_str()).collect();
    assert_eq!(ids, ["cmpl-x-0", "cmpl-x-1"]);
    let metrics = format!("http://{}/metrics", serve.address());
    let told = ureq::get(metrics).call().expect("it is served").into_body().read_to_string().expect("it is text");
    let finished = r#"vllm:request_success_total{model_name="sim",engine="0",finished_reason="length"} 2"#;
    assert!(told.contains(finished), "rendering reaches no engine: {told}");
}

#[test]
fn other_apis_are_rendered_as_the_chats_that_they_are() {
    let serve = Serve::start(&[]);
    let hello = json!([{"role": "user", "content": "hello"}]);
    let chat = serve.post(CHAT, &json!({"messages": hello})).body["token_ids"].clone();
    assert!(chat.as_array().is_some_and(|tokens| !tokens.is_empty()));
    let messages = serve.post("/v1/messages/render", &json!({"model": "sim", "messages": hello, "max_tokens": 3})).body;
    assert_eq!((&messages["token_ids"], &messages["sampling_params"]["max_tokens"]), (&chat, &json!(3)));
    let response = serve.post("/v1/responses/render", &json!({"input": "hello"})).body;
    assert_eq!(response["token_ids"], chat);
    let earlier = serve.post("/v1/responses/render", &json!({"input": "a", "previous_response_id": "resp_1"}));
    assert_eq!((earlier.status, &earlier.body["error"]["param"]), (400, &json!("previous_response_id")));
    for body in [json!({}), Value::Null] {
        assert_eq!(serve.post("/v1/responses/render", &body).status, 400);
    }
}
