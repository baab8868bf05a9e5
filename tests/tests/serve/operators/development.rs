//! Routes of vLLM's development mode, and features that are not simulated.

use std::io::Read;

use serde_json::{Value, json};
use vcr_tests::{Serve, wait_until};

#[test]
fn requests_are_aborted_by_name() {
    let serve = Serve::start(&["--inter-token-latency", "20ms"]);
    let request = |name: &str| json!({"prompt": "a", "max_tokens": 5000, "ignore_eos": true, "request_id": name});
    let mut one = serve.begin("/v1/completions", &request("one"));
    let mut other = serve.begin("/v1/completions", &request("other"));
    wait_until("both run", || serve.get("/load").body["server_load"] == 2);
    assert_eq!(serve.post("/abort_requests", &json!({"request_ids": ["cmpl-one", "cmpl-none"]})).status, 200);
    let mut answer = String::new();
    one.read_to_string(&mut answer).expect("it ends");
    assert!(answer.contains("\"finish_reason\":\"abort\""), "{answer}");
    assert_eq!(serve.get("/load").body["server_load"], 1);
    assert_eq!(serve.post("/abort_requests", &json!({})).status, 200);
    answer.clear();
    other.read_to_string(&mut answer).expect("it ends");
    assert!(answer.contains("\"finish_reason\":\"abort\""), "{answer}");
    assert_eq!(serve.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).status, 200);
}

#[test]
fn engines_and_settings_are_told() {
    let args = ["--data-parallel-size", "2", "--engine-id", "e", "--enable-kv-cache-events", "--kv-events-endpoint"];
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let address = format!("ipc://{}/events", folder.path().display());
    let serve = Serve::start(&[&args[..], &[&address]].concat());
    let engines = serve.get("/query").body;
    assert_eq!((&engines["0"]["engine_id"], &engines["1"]["engine_id"]), (&json!("e_dp0"), &json!("e_dp1")));
    assert_eq!(serve.get("/get_world_size").body["world_size"], 2);
    assert_eq!(serve.get("/get_world_size?include_dp=false").body["world_size"], 1);
    let sources = serve.get("/kv_event_sources").body;
    assert!(sources["1"]["endpoint"].as_str().is_some_and(|endpoint| endpoint.starts_with(&address)), "{sources}");
    let info = serve.get("/server_info?config_format=json").body;
    assert_eq!((&info["vllm_config"]["model"], &info["vllm_config"]["data_parallel_size"]), (&json!("sim"), &json!(2)));
    let text = serve.get("/server_info").body["vllm_config"].clone();
    assert!(text.as_str().is_some_and(|text| text.lines().any(|line| line == "block_size=16")), "{text}");
    assert_eq!(serve.get("/server_info?config_format=xml").status, 400);
    let results = serve.post("/collective_rpc", &json!({"method": "x"})).body["results"].clone();
    assert_eq!(results, json!([null, null]));
    let incomplete = serve.post("/collective_rpc", &json!({}));
    assert_eq!((incomplete.status, &incomplete.body["error"]["param"]), (400, &json!("method")));
}

#[test]
fn weights_have_a_name_and_caches_are_reset() {
    let serve = Serve::start(&[]);
    let version = || serve.get("/weight_info").body["weight_version"].clone();
    assert_eq!(version(), "default");
    assert_eq!(serve.post("/update_weight_version", &json!({"new_version": "v2"})).body["success"], true);
    assert_eq!(version(), "v2");
    assert_eq!(serve.post("/init_weight_transfer_engine", &json!({"init_info": {}})).status, 200);
    assert_eq!(serve.post("/init_weight_transfer_engine", &json!({})).status, 400);
    assert_eq!(serve.post_text("/start_weight_update", "").body["message"], "Weight update started");
    assert_eq!(serve.post("/update_weights", &json!({"update_info": [{}]})).status, 200);
    assert_eq!(serve.post("/finish_weight_update", &json!({"weight_version": "v3"})).status, 200);
    assert_eq!(version(), "v3");
    for path in ["/reset_mm_cache", "/reset_encoder_cache"] {
        let reply = serve.post_text(path, "");
        assert_eq!((reply.status, reply.body), (200, Value::Null), "{path}");
    }
    let refused = serve.post_text("/release_kv_cache_memory", "");
    let message = refused.body["error"]["message"].as_str().unwrap_or_default();
    assert!(refused.status == 500 && message.contains("requires a completed pause first"), "{}", refused.body);
    assert_eq!(serve.post("/pause", &json!({})).status, 200);
    assert_eq!(serve.post_text("/release_kv_cache_memory", "").body["status"], "kv_cache_released");
}

#[test]
fn what_is_not_simulated_is_told() {
    let serve = Serve::start(&[]);
    for path in [
        "/v1/chat/completions/batch",
        "/v1/decisions",
        "/scale_elastic_ep",
        "/v1/completions/derender",
        "/weight_checker",
    ] {
        let reply = serve.post(path, &json!({}));
        let expected = json!({
            "message": format!("POST {path} is not simulated."), "type": "NotImplementedError", "param": null, "code": 501,
        });
        assert_eq!((reply.status, &reply.body["error"]), (501, &expected));
    }
    // vLLM, too, has no such route unless an option enables it.
    for path in ["/tokenizer_info", "/v1/models/sim"] {
        assert_eq!(serve.get(path).status, 404, "{path}");
    }
    assert_eq!(serve.post("/start_profile", &json!({})).status, 404);
}
