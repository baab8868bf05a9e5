//! Options of engines, which mean the same as in `vcr play`.

use serde_json::{Map, Value, json};
use vcr_tests::{Serve, free_port, python_packages, shipped_guest, wait_until};
use vcr_text::Tokenizer;

/// Single characters of the built-in tokenizer, in the form of the guest's option.
fn characters() -> String {
    let tokenizer = Tokenizer::builtin();
    let id = |letter: char| {
        let tokens = tokenizer.encode(&letter.to_string(), false).expect("it has all characters");
        (letter.to_string(), json!(tokens[0]))
    };
    let vocabulary: Map<String, Value> = (' '..='~').chain(['\n']).map(id).collect();
    json!({"vocabulary": vocabulary}).to_string()
}

/// A WebAssembly token source writes the requested structure, like the native one.
#[test]
fn a_guest_chooses_the_tokens() {
    let Some(guest) = shipped_guest("json-tokens") else { return };
    let serve =
        Serve::start(&["--tokens", guest.to_str().expect("a path is a text"), "--tokens-config", &characters()]);
    let schema = json!({"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]});
    let body = json!({
        "messages": [{"role": "user", "content": "Who?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
    });
    let choice = serve.post("/v1/chat/completions", &body).body["choices"][0].clone();
    let content = choice["message"]["content"].as_str().unwrap_or_else(|| panic!("no text: {choice}"));
    let person: Value = serde_json::from_str(content).expect("it is JSON");
    assert!(person["age"].is_i64() && choice["finish_reason"] == "stop", "{choice}");
    // The guest refuses structures that it cannot follow.
    let lark = json!({"messages": body["messages"], "structured_outputs": {"json": {"type": "x"}}});
    assert_eq!(serve.post("/v1/chat/completions", &lark).status, 400);
}

/// The guest accepts two of three drafts, whatever the acceptance rate of the first one.
#[test]
fn a_guest_decides_how_many_drafts_are_accepted() {
    let Some(guest) = shipped_guest("json-tokens") else { return };
    let mut config: Value = serde_json::from_str(&characters()).expect("it is JSON");
    config["accepted_drafts"] = json!(2);
    let serve = Serve::start(&[
        "--tokens",
        guest.to_str().expect("a path is a text"),
        "--tokens-config",
        &config.to_string(),
        "--num-speculative-tokens",
        "3",
        "--acceptance-rates",
        "1",
    ]);
    let answer = serve.post("/v1/completions", &json!({"prompt": [1, 2], "max_tokens": 10, "ignore_eos": true}));
    assert_eq!((answer.status, &answer.body["usage"]["completion_tokens"]), (200, &json!(10)));
    wait_until("the last step is counted", || {
        let metrics = ureq::get(format!("http://{}/metrics", serve.address())).call().expect("it is served");
        let metrics = metrics.into_body().read_to_string().expect("it is text");
        let accepted = |position: u32| {
            let labels = format!(r#"{{model_name="sim",engine="0",position="{position}"}}"#);
            let name = format!("vllm:spec_decode_num_accepted_tokens_per_pos_total{labels} ");
            metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("0").to_owned()
        };
        [0, 1, 2].map(accepted) == ["3", "3", "0"]
    });
}

/// The engines' router looks at prompts: one engine computes those with a common beginning, even if the server
/// chose the engine with the fewest requests.
#[test]
fn a_router_gives_prompts_that_begin_alike_to_one_engine() {
    let serve = Serve::start(&[
        "--data-parallel-size",
        "2",
        "--router",
        "prefix-affinity",
        "--metrics-address",
        "127.0.0.1:0",
        "--enable-prompt-tokens-details",
    ]);
    let cached = |group: u32, turn: u32| {
        let prompt: Vec<u32> = (0..100).map(|place| (group * 31 + place) % 500).chain([turn]).collect();
        let answer = serve.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 2})).body;
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    };
    for turn in 0..3 {
        for group in 0..7 {
            assert_eq!(cached(group, turn), if turn == 0 { 0 } else { 96 }, "group {group}, turn {turn}");
        }
    }
    let line = serve.wait_for("metrics are at ");
    let url = line.rsplit("metrics are at ").next().expect("the line has an address").trim();
    let counts = || {
        let answer = ureq::get(url).call().expect("it is served").into_body().read_to_string().expect("it is text");
        let engines = answer.lines().filter(|line| line.starts_with("vcr_requests_routed_total{"));
        engines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect::<Vec<f64>>()
    };
    wait_until("all are counted", || counts().iter().sum::<f64>() == 21.0);
    assert!(counts().len() == 2 && !counts().contains(&0.0), "{:?}", counts());
}

/// A subscriber that shares no code with vcr reads the events of stored and of removed blocks.
#[test]
fn kv_events_reach_an_independent_subscriber() {
    let Some(python) = python_packages() else { return };
    let port = free_port();
    let endpoint = format!("tcp://*:{port}");
    let args =
        ["--enable-kv-cache-events", "--kv-events-endpoint", &endpoint, "--kv-events-topic", "kv@{engine}@{model}"];
    let serve = Serve::start(&[&args[..], &["--engine-id", "e0", "--served-model-name", "owl"]].concat());
    let complete = |prompt: Vec<u32>| {
        assert_eq!(serve.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).status, 200);
    };
    let mut subscriber = python.run("tests/frontends/kv_subscriber.py", &[&format!("tcp://127.0.0.1:{port}")]);
    let mut index = 0;
    wait_until("the subscriber hears nothing", || {
        index += 1;
        complete(vec![index % 500; 20]);
        !subscriber.lines().is_empty()
    });
    complete((1..=40).collect());
    let stored = |batch: &Value| batch["events"][0]["token_ids"] == json!((1..=32).collect::<Vec<_>>());
    wait_until("the subscriber has heard of the blocks", || subscriber.lines().iter().any(stored));
    let lines = subscriber.lines();
    let batch = lines.iter().rfind(|batch| stored(batch)).expect("it was just there");
    let event = &batch["events"][0];
    assert_eq!((&batch["topic"], &event["type"]), (&json!("kv@e0@owl"), &json!("BlockStored")));
    // vLLM's own hash of a block with the tokens 1 to 16, without a seed.
    assert_eq!(event["block_hashes"][0], json!(0x137b_b037_547f_4caf_u64));
    assert_eq!(serve.post("/reset_prefix_cache", &json!({})).status, 200);
    // The engine reports the reset with its next step.
    wait_until("the subscriber has heard of the end", || {
        index += 1;
        complete(vec![index % 500; 20]);
        let is_end = |event: &Value| event["type"] == "AllBlocksCleared";
        subscriber
            .lines()
            .iter()
            .any(|batch| batch["events"].as_array().is_some_and(|events| events.iter().any(is_end)))
    });
}
