//! State that engines keep and take over (prefixes, adapters, KV, sleep), and several engines behind one frontend.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use vcr_tests::{FrontendOptions, Play, free_port, releases, skip, wait_until};
use vcr_wire::{DataAddress, FrontendConfig, FrontendListener, Transport};

use crate::{dev, is_from, served, text, with_each};

#[test]
fn a_prefix_is_found_again() {
    with_each(&FrontendOptions::default(), &["--block-size", "16"], |_, frontend, _| {
        let prompt: Vec<u32> = (1000..1100).collect();
        frontend.complete(&json!(prompt), &json!({"max_tokens": 1}));
        frontend.complete(&json!(prompt), &json!({"max_tokens": 1}));
        frontend.wait_for_metric("vllm:prefix_cache_hits_total", 96.0);
        frontend.complete(&json!(prompt), &json!({"max_tokens": 1, "cache_salt": "mine"}));
        frontend.wait_for_metric("vllm:prefix_cache_queries_total", 300.0);
        assert_eq!(frontend.metric("vllm:prefix_cache_hits_total"), 96.0, "a salt keeps others out");
    });
}

#[test]
fn adapters_are_loaded_and_used() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("a path in text");
    let mut options = dev();
    options.env.push(("VLLM_ALLOW_RUNTIME_LORA_UPDATING".to_owned(), "1".to_owned()));
    options.env.push(("VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES".to_owned(), path.to_owned()));
    with_each(&options, &["--max-loras", "2"], |_, frontend, _| {
        let load = json!({"lora_name": "mine", "lora_path": path});
        let answer = frontend.post("/v1/load_lora_adapter", &load);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let plain = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 5}));
        let adapted = frontend.complete(&json!("Hello world"), &json!({"max_tokens": 5, "model": "mine"}));
        assert_ne!(text(&plain), text(&adapted));
        assert_eq!(frontend.post("/v1/unload_lora_adapter", &json!({"lora_name": "mine"})).status, 200);
        let unknown = frontend.post("/v1/completions", &json!({"prompt": "Hi", "model": "mine"}));
        assert_eq!(unknown.status, 404, "{}", unknown.body);
    });
}

#[test]
fn sleeping_pausing_and_resetting() {
    for version in releases() {
        // Set the version, because no earlier request shows it.
        let minor = version.rsplit_once('.').expect("a version has parts").0;
        let Some((frontend, play)) = served(version, &dev(), &["--vllm-minor", minor]) else { return };
        let post = |path: &str| frontend.post(path, &json!({}));
        assert_eq!(post("/reset_prefix_cache").status, 200);
        assert_eq!(post("/sleep?level=1").status, 200);
        assert_eq!(frontend.get("/is_sleeping").ok()["is_sleeping"], true);
        assert_eq!(post("/wake_up").status, 200, "what it returns is a matter of the version");
        assert_eq!(frontend.get("/is_sleeping").ok()["is_sleeping"], false);
        assert_eq!(post("/pause?mode=keep").status, 200);
        assert_eq!(frontend.get("/is_paused").ok()["is_paused"], true);
        assert_eq!(post("/resume").status, 200);
        assert_eq!(frontend.get("/is_paused").ok()["is_paused"], false);
        assert_eq!(post("/reset_mm_cache").status, 200);
        let called = frontend.post("/collective_rpc", &json!({"method": "anything"})).ok();
        assert_eq!(called["results"], json!([null]));
        if is_from(version, 33) {
            assert_eq!(post("/pause?mode=abort").status, 200);
            let refused = frontend.post("/v1/completions", &json!({"prompt": "Hi", "max_tokens": 2}));
            assert_eq!(refused.status, 503, "{}", refused.body);
            assert_eq!(post("/resume").status, 200);
        }
        assert_eq!(frontend.complete(&json!("Next"), &json!({"max_tokens": 2}))["usage"]["completion_tokens"], 2);
        assert!(!play.log().contains("WARN") || is_from(version, 33), "{}", play.log());
        let response = frontend.get("/version").ok();
        assert_eq!(response["version"], format!("{minor}.0"));
    }
}

#[test]
fn prefill_on_one_engine_and_decode_on_another() {
    for version in releases() {
        let port = free_port().to_string();
        let options = FrontendOptions::default();
        // Set the version, because 0.31 and later cannot be distinguished.
        let minor = version.rsplit_once('.').expect("a version has parts").0;
        let args = ["--vllm-minor", minor, "--side-channel-port", &port];
        let Some((prefill, _prefill_engine)) = served(version, &options, &args) else {
            return;
        };
        let Some((decode, decode_engine)) = served(version, &options, &["--kv-cache-transfer-latency", "20ms"]) else {
            return;
        };
        let prompt: Vec<u32> = (1000..1100).collect();
        let ask = json!({"do_remote_decode": true, "do_remote_prefill": false});
        let computed = prefill.complete(&json!(prompt), &json!({"max_tokens": 1, "kv_transfer_params": ask}));
        let params = &computed["kv_transfer_params"];
        assert_eq!(
            (&params["do_remote_prefill"], &params["remote_port"]),
            (&json!(true), &json!(port.parse::<u16>().expect("it is one")))
        );
        assert_eq!(params["remote_registration_generation"].is_u64(), is_from(version, 33));
        wait_until("the blocks are held", || prefill.metric("vllm:kv_cache_usage_perc") > 0.0);
        let answer = decode.complete(&json!(prompt), &json!({"max_tokens": 5, "kv_transfer_params": params}));
        assert_eq!(answer["usage"]["completion_tokens"], 5);
        decode.wait_for_metric("vllm:prompt_tokens_total", 100.0);
        assert!(text(&answer).starts_with(text(&computed)), "the same content gives the same text");
        // The frontend learns of the freed blocks only with an event after the notice to the prefill engine.
        wait_until("the blocks are free", || {
            prefill.complete(&json!("Next"), &json!({"max_tokens": 1}));
            prefill.metric("vllm:kv_cache_usage_perc") == 0.0
        });
        assert!(!decode_engine.log().contains("WARN"), "{}", decode_engine.log());
    }
}

#[test]
fn two_engines_and_waves() {
    for is_moe in [false, true] {
        let options = FrontendOptions { engines: 2, is_moe, ..dev() };
        with_each(&options, &["--inter-token-latency", "5ms"], |_, frontend, play| {
            // Send the requests in several waves, with idle time in between.
            for _ in 0..2 {
                std::thread::scope(|scope| {
                    let ask = |index: u32| {
                        move || {
                            let answer = frontend.complete(&json!([7, 8, index]), &json!({"max_tokens": 40}));
                            assert_eq!(answer["usage"]["completion_tokens"], 40);
                        }
                    };
                    for index in 0..6 {
                        scope.spawn(ask(index));
                    }
                });
                std::thread::sleep(Duration::from_millis(50));
            }
            let started = |rank: &str| {
                play.log()
                    .lines()
                    .filter(|line| line.contains("started") && line.contains(&format!("rank={rank} ")))
                    .count()
            };
            assert_eq!(started("0") + started("1"), 12);
            assert!(started("0") >= 2 && started("1") >= 2, "both get some: {}", play.log());
            let called = frontend.post("/collective_rpc", &json!({"method": "anything"})).ok();
            assert_eq!(called["results"].as_array().map(Vec::len), Some(2), "each engine answers");
        });
    }
}

/// A subscriber that shares no code with vcr reads the events.
#[test]
fn kv_events_reach_an_independent_subscriber() {
    let Some(python) = vcr_tests::python_packages() else { return };
    for version in releases() {
        let port = free_port();
        let endpoint = format!("tcp://*:{port}");
        let topic = ["--kv-events-topic", "kv@{engine}@{model}", "--engine-id", "e0", "--model-name", "sim"];
        let args = ["--enable-kv-cache-events", "--kv-events-endpoint", &endpoint, "--num-gpu-blocks", "300"];
        let args = [&args[..], &topic[..]].concat();
        let Some((frontend, _play)) = served(version, &FrontendOptions::default(), &args) else { return };
        let mut subscriber = python.run("tests/frontends/kv_subscriber.py", &[&format!("tcp://127.0.0.1:{port}")]);
        // The subscriber prints a line for each message.
        let mut index = 0;
        wait_until("the subscriber hears nothing", || {
            index += 1;
            frontend.complete(&json!(vec![index; 20]), &json!({"max_tokens": 1}));
            !subscriber.lines().is_empty()
        });
        frontend.complete(&json!((1..=40).collect::<Vec<_>>()), &json!({"max_tokens": 1}));
        wait_until("the subscriber has heard of the blocks", || {
            subscriber.lines().iter().any(|batch| {
                let event = &batch["events"][0];
                event["type"] == "BlockStored" && event["token_ids"] == json!((1..=32).collect::<Vec<_>>())
            })
        });
        let lines = subscriber.lines();
        let batch = lines.iter().rfind(|batch| batch["events"][0]["token_ids"][0] == 1).expect("it was just there");
        let event = &batch["events"][0];
        assert_eq!(batch["topic"], "kv@e0@sim");
        assert_eq!((&event["block_size"], &event["medium"], &batch["rank"]), (&json!(16), &json!("GPU"), &json!(0)));
        if is_from(version, 29) {
            // vLLM's own hash of a block with tokens 1 to 16, without a seed.
            assert_eq!(event["block_hashes"][0], json!(0x137b_b037_547f_4caf_u64));
        }
    }
}

/// More engines than a single libzmq context has sockets for.
#[test]
fn a_thousand_engines_start_in_one_process() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("up to the hard limit");
    let room = limit.maximum.unwrap_or(u64::MAX).saturating_sub(200) / 20;
    let engines = room.min(1000) as u16;
    if engines < 300 {
        return skip(&format!("a process may open {:?} files, which is too few for 300 engines", limit.maximum));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = FrontendConfig {
        handshake_address: format!("ipc://{}/handshake", folder.path().display()),
        data: DataAddress::Ipc { folder: folder.path().to_owned() },
        clients: 1,
        engines,
        coordinator: false,
    };
    let listener = FrontendListener::bind(&Transport::new(), config).expect("the addresses are free");
    let address = listener.handshake_address().to_owned();
    let mut play = Play::start(&address, &["--data-parallel-size", &engines.to_string(), "--num-gpu-blocks", "100"]);
    let frontend = listener.accept(Duration::from_secs(120)).expect("all of them come");
    assert_eq!(frontend.engines.len(), usize::from(engines));
    play.terminate();
    assert!(play.wait().success(), "a signal is not a failure");
}
