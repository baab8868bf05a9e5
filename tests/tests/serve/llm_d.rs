//! Options, headers and fields of llm-d-inference-sim that vLLM does not have.

use std::io::Read as _;

use serde_json::{Value, json};
use vcr_tests::{Serve, wait_until};

const UNCACHED: &str = "cache_threshold";

fn prompt(seed: u32) -> Vec<u32> {
    (0..64).map(|place| 300 + (seed * 64 + place) % 200).collect()
}

fn ask(serve: &Serve, body: &Value) -> (Value, Value) {
    let reply = serve.post("/v1/completions", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    (reply.body["choices"][0]["finish_reason"].clone(), reply.body["usage"]["completion_tokens"].clone())
}

/// Only a prompt of which enough is cached has an answer; the engine has forgotten the others.
#[test]
fn prompts_below_the_threshold_have_no_answer() {
    let serve = Serve::start(&["--tokens", "random", "--global-cache-hit-threshold", "0.5"]);
    let body = json!({"prompt": prompt(1), "max_tokens": 3, "ignore_eos": true});
    assert_eq!(ask(&serve, &body), (json!(UNCACHED), json!(0)));
    // Its prefill has cached it.
    assert_eq!(ask(&serve, &body), (json!("length"), json!(3)));
    let with = |seed: u32, threshold: f64| json!({"prompt": prompt(seed), "max_tokens": 3, "ignore_eos": true, "cache_hit_threshold": threshold});
    assert_eq!(ask(&serve, &with(2, 0.0)), (json!("length"), json!(3)));
    assert_eq!(ask(&serve, &with(1, 1.0)), (json!(UNCACHED), json!(0)));
    let refused = serve.post("/v1/completions", &with(1, 1.5));
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("cache_hit_threshold")));
}

#[test]
fn the_header_asks_for_the_finish_reason() {
    let serve = Serve::start(&[]);
    let header = "X-Cache-Threshold-Finish-Reason: true";
    let chat = json!({"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 5});
    for _ in 0..2 {
        let choice = &serve.post_with("/v1/chat/completions", header, &chat).body["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!(UNCACHED), &json!(null)));
    }
    let answered = serve.post_with("/v1/chat/completions", "X-Cache-Threshold-Finish-Reason: no", &chat).body;
    assert_ne!(answered["choices"][0]["finish_reason"], UNCACHED);
    let tokens = json!({"token_ids": prompt(1), "sampling_params": {"max_tokens": 2}});
    let generated = serve.post_with("/inference/v1/generate", header, &tokens).body;
    assert_eq!(generated["choices"][0]["finish_reason"], UNCACHED);
    let mut stream = serve.begin_with(
        "/v1/completions",
        ("X-Cache-Threshold-Finish-Reason", "true"),
        &json!({"prompt": prompt(1), "stream": true, "stream_options": {"include_usage": true}}),
    );
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it ends");
    assert!(answer.contains("\"finish_reason\":\"cache_threshold\""), "{answer}");
    assert!(answer.contains("\"completion_tokens\":0") && answer.contains("[DONE]"), "{answer}");
}

/// One runs, one waits, and a third is refused until one of them has ended.
#[test]
fn a_full_queue_refuses_requests() {
    let args = ["--max-num-seqs", "1", "--max-waiting-queue-length", "1", "--inter-token-latency", "20ms"];
    let serve = Serve::start(&[&args[..], &["--tokens", "random"]].concat());
    let body = json!({"prompt": prompt(1), "max_tokens": 3000, "ignore_eos": true, "stream": true});
    let queue = || {
        let answer = ureq::get(format!("http://{}/metrics", serve.address())).call().expect("it is served");
        let text = answer.into_body().read_to_string().expect("it is text");
        ["running", "waiting"].map(|name| {
            let series = format!(r#"vllm:num_requests_{name}{{model_name="sim",engine="0"}} "#);
            text.lines().find_map(|line| line.strip_prefix(&series)).unwrap_or("none").to_owned()
        })
    };
    let first = serve.begin("/v1/completions", &body);
    wait_until("one runs", || queue() == ["1", "0"]);
    let second = serve.begin("/v1/completions", &body);
    wait_until("one waits", || queue() == ["1", "1"]);
    let refused = serve.post("/v1/completions", &body);
    assert_eq!((refused.status, &refused.body["error"]["type"]), (429, &json!("RateLimitError")), "{}", refused.body);
    drop(first);
    wait_until("the second runs", || queue() == ["1", "0"]);
    let third = serve.begin("/v1/completions", &body);
    wait_until("the third waits", || queue() == ["1", "1"]);
    drop((second, third));
}
