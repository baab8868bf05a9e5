//! SGLang's router in front of several servers.

use std::time::Duration;

use serde_json::{Value, json};
use vcr_tests::{Client, Running, Serve, client, free_port, free_ports, wait_until};

use crate::{metric, serve};

/// A prompt of English words that is different for each `number`.
fn text(number: u32, words: u32) -> String {
    (0..words)
        .map(|word| format!("{}{} ", ["alpha", "beta", "gamma", "delta"][(number % 4) as usize], word * 31 + number))
        .collect()
}

/// Starts a router and returns its port.
fn router(client: &Client, args: &[&str]) -> (Running, u16) {
    let (port, prometheus) = (free_port(), free_port());
    let mut command = client.python(&["-m", "sglang_router.launch_router", "--host", "127.0.0.1"]);
    command.args(["--port", &port.to_string(), "--prometheus-port", &prometheus.to_string()]).args(args);
    command.args(["--worker-startup-check-interval", "1", "--log-level", "info"]);
    let router = Running::of("sglang-router", command);
    wait_until("the router knows its workers", || {
        let answer = ureq::get(format!("http://127.0.0.1:{port}/health_generate")).call();
        answer.is_ok_and(|answer| answer.status() == 200)
    });
    (router, port)
}

fn ask(port: u16, path: &str, body: &Value) -> (u16, String) {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(60)));
    let request = ureq::Agent::from(agent.build()).post(format!("http://127.0.0.1:{port}{path}"));
    let mut answer = request.header("Content-Type", "application/json").send(body.to_string()).expect("it answers");
    (answer.status().as_u16(), answer.body_mut().read_to_string().expect("a text"))
}

#[test]
fn the_cache_aware_policy_finds_what_servers_have_cached() {
    let Some(client) = client("sglang") else { return };
    let servers: Vec<Serve> = (0..3).map(|_| serve(20_000, &[])).collect();
    let urls: Vec<String> = servers.iter().map(|server| format!("http://{}", server.address())).collect();
    let mut args = vec!["--policy", "cache_aware", "--worker-urls"];
    args.extend(urls.iter().map(String::as_str));
    let (_router, port) = router(&client, &args);
    wait_until("all workers are there", || {
        ureq::get(format!("http://127.0.0.1:{port}/workers")).call().is_ok_and(|mut answer| {
            answer.body_mut().read_to_string().is_ok_and(|text| text.matches("\"is_healthy\":true").count() == 3)
        })
    });
    let (mut prompt_tokens, mut cached_tokens, mut repeated_tokens) = (0, 0, 0);
    for round in 0..4 {
        for group in 0..3 {
            let body = json!({"text": text(group, 100), "sampling_params": {"max_new_tokens": 2, "ignore_eos": true}});
            let (status, answer) = ask(port, "/generate", &body);
            assert_eq!(status, 200, "{answer}");
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            let of = |name: &str| answer["meta_info"][name].as_u64().expect("a number");
            prompt_tokens += of("prompt_tokens");
            cached_tokens += of("cached_tokens");
            repeated_tokens += if round > 0 { of("prompt_tokens") - 1 } else { 0 };
        }
    }
    eprintln!("{cached_tokens} of {prompt_tokens} prompt tokens were cached, {repeated_tokens} had been sent before");
    assert!(cached_tokens >= repeated_tokens, "each prompt goes to where it was before");
    let sum: f64 = servers.iter().map(|server| metric(server.address(), "sglang:cached_tokens_total")).sum();
    assert_eq!(sum, cached_tokens as f64);
    // The router sends operators' calls to all workers.
    assert_eq!(ask(port, "/flush_cache", &json!({})).0, 200);
    let body = json!({"text": text(0, 100), "sampling_params": {"max_new_tokens": 1}});
    let (_, answer) = ask(port, "/generate", &body);
    assert!(answer.contains("\"cached_tokens\":0"), "{answer}");
}

#[test]
fn prefill_and_decode_meet_by_the_routers_rooms() {
    let Some(client) = client("sglang") else { return };
    let bootstrap = free_ports(1);
    // A server, and the address of its engine's own metrics. SGLang's metrics do not change while nothing is computed.
    let worker = |role: &str| {
        let (bootstrap, side_channel) = (bootstrap.to_string(), free_port().to_string());
        let metrics = format!("127.0.0.1:{}", free_port());
        let args = ["--kv-rendezvous", "sglang", "--kv-rendezvous-role", role, "--kv-rendezvous-port", &bootstrap];
        let more = ["--side-channel-port", &side_channel, "--metrics-address", &metrics];
        (serve(8000, &[&args[..], &more, &["--kv-cache-transfer-latency", "30ms"]].concat()), metrics)
    };
    let ((prefill, of_prefill), (decode, of_decode)) = (worker("prefill"), worker("decode"));
    assert_eq!(decode.get("/server_info").body["disaggregation_mode"], "decode");
    for server in [&prefill, &decode] {
        for (path, body) in [("/generate", json!({"text": "a"})), ("/v1/completions", json!({"prompt": "a"}))] {
            let refused = server.post(path, &body);
            let message = refused.body.to_string();
            assert!(refused.status == 400 && message.contains("without bootstrap room id"), "{path}: {message}");
        }
        assert_eq!(server.get("/health_generate").status, 200, "probes need no room");
    }
    let urls = [&prefill, &decode].map(|server| format!("http://{}", server.address()));
    let port = bootstrap.to_string();
    let (_router, port) = router(
        &client,
        &["--pd-disaggregation", "--prefill", &urls[0], &port, "--decode", &urls[1], "--policy", "round_robin"],
    );
    let sampling_params = json!({"max_new_tokens": 8, "ignore_eos": true});
    wait_until("a pair is there", || {
        ask(port, "/generate", &json!({"text": "Hello", "sampling_params": sampling_params})).0 == 200
    });
    let before = metric(prefill.address(), "sglang:num_requests_total");
    let (status, answer) = ask(port, "/generate", &json!({"text": text(1, 60), "sampling_params": sampling_params}));
    let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{status} {answer}"));
    assert_eq!(answer["meta_info"]["completion_tokens"], 8, "{answer}");
    let stream = json!({"text": text(2, 60), "sampling_params": sampling_params, "stream": true});
    let (status, events) = ask(port, "/generate", &stream);
    assert!(status == 200 && events.contains("\"completion_tokens\":8") && events.contains("[DONE]"), "{events}");
    let body = json!({"model": "sim", "prompt": text(3, 60), "max_tokens": 8, "ignore_eos": true});
    let (status, answer) = ask(port, "/v1/completions", &body);
    assert!(status == 200 && answer.contains("\"completion_tokens\":8"), "{answer}");
    // Each prompt of a list has its own room.
    let rooms = metric(&of_decode, "vcr_kv_rooms_total");
    let body = json!({"model": "sim", "prompt": [text(4, 60), text(5, 60)], "max_tokens": 8, "ignore_eos": true});
    let (status, answer) = ask(port, "/v1/completions", &body);
    assert!(status == 200 && answer.contains("\"completion_tokens\":16"), "{answer}");
    wait_until("all have met", || metric(&of_decode, "vcr_kv_rooms_total") >= rooms + 2.0);
    assert_eq!(metric(&of_decode, "vcr_kv_rooms_missed_total"), 0.0);
    wait_until("the prefill engine has done its part", || {
        metric(prefill.address(), "sglang:num_requests_total") >= before + 5.0
    });
    for metrics in [of_prefill, of_decode] {
        wait_until("all pages are free", || metric(&metrics, "vcr_kv_cache_usage_ratio") == 0.0);
    }
}
