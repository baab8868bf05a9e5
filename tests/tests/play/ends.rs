//! Early ends of requests, guests, frontends and engines.

use serde_json::json;
use vcr_tests::{Frontend, FrontendOptions, free_port, hostile_guest, releases, wait_until};

use crate::{scraped, served, with_each};

#[test]
fn a_client_that_goes_away_aborts_its_request() {
    with_each(&FrontendOptions::default(), &["--inter-token-latency", "5ms"], |_, frontend, play| {
        let body = json!({"prompt": "Hello world", "max_tokens": 4000, "ignore_eos": true});
        let mut events = frontend.stream("/v1/completions", &body);
        assert!(events.next().is_some());
        drop(events);
        let ended = play.wait_for("reason=Abort");
        assert!(ended.contains("ended"), "{ended}");
        frontend.wait_for_metric("vllm:num_requests_running", 0.0);
        assert_eq!(frontend.complete(&json!("Next"), &json!({"max_tokens": 2}))["usage"]["completion_tokens"], 2);
    });
}

#[test]
fn what_fails_in_the_engine_is_an_error_for_the_client() {
    let faults = ["--fault", "error:prompt=7", "--fault", "error:prompt=8,after=3", "--fault", "dead:prompt=9,after=2"];
    with_each(&FrontendOptions::default(), &faults, |version, frontend, play| {
        let ask = |len: u32| {
            frontend.post("/v1/completions", &json!({"prompt": (100..100 + len).collect::<Vec<_>>(), "max_tokens": 6}))
        };
        assert_eq!(ask(6).status, 200);
        for len in [7, 8] {
            let failed = ask(len);
            assert_eq!(failed.status, 500, "{}", failed.body);
        }
        // The prompt is too long for this engine, and the answer says so.
        let long = frontend.post("/v1/completions", &json!({"prompt": vec![5; 4096], "max_tokens": 6}));
        assert_eq!(long.status, 400, "{version}: {}", long.body);
        assert_eq!(ask(6).status, 200, "others are not concerned");
        assert_eq!(frontend.get("/health").status, 200);
        assert_eq!(ask(9).status, 500);
        play.wait_for("a fault ends the engine");
        wait_until("the frontend knows that its engine is dead", || frontend.get("/health").status == 503);
    });
}

/// If a guest fails in the middle of an answer and is replaced, the metrics show it, but the client does not notice.
#[test]
fn a_fallback_goes_on_where_a_guest_fails() {
    let Some(guest) = hostile_guest() else { return };
    let guest = guest.to_str().expect("a path in text");
    let metrics = format!("127.0.0.1:{}", free_port());
    let args = ["--latency", guest, "--latency-config", r#"{"wrong": "loop", "after": 3}"#]
        .into_iter()
        .chain(["--latency-fallback", "fixed(#{ step: \"1ms\" })", "--metrics-address", &metrics])
        .collect::<Vec<_>>();
    with_each(&FrontendOptions::default(), &args, |_, frontend, play| {
        assert!(play.log().contains("guest hostile: a latency model, sha256 "), "{}", play.log());
        let answer = frontend.post("/v1/completions", &json!({"prompt": [1, 2, 3], "max_tokens": 8}));
        assert_eq!(answer.status, 200, "{}", answer.body);
        play.wait_for("guest hostile of engine 0 failed, its fallback continues: ");
        let text = scraped(&metrics);
        assert!(text.contains(r#"vcr_guest_failures_total{guest="hostile",engine="0"} 1"#), "{text}");
    });
}

#[test]
fn a_restarted_frontend_gets_its_engine_back() {
    for version in releases() {
        let port = free_port();
        let options = FrontendOptions { handshake_port: Some(port), ..FrontendOptions::default() };
        let Some((frontend, play)) = served(version, &options, &["--inter-token-latency", "5ms"]) else { return };
        let body = json!({"prompt": "Hello world", "max_tokens": 4000, "ignore_eos": true});
        let mut events = frontend.stream("/v1/completions", &body);
        assert!(events.next().is_some());
        drop(frontend);
        play.wait_for("waiting for a frontend to come back");
        let Some(mut again) = Frontend::start(version, &options) else { return };
        again.wait_until_it_serves();
        assert_eq!(again.complete(&json!("Next"), &json!({"max_tokens": 2}))["usage"]["completion_tokens"], 2);
        again.wait_for_metric("vllm:num_requests_running", 0.0);
    }
}

#[test]
fn a_stop_signal_drains_or_aborts() {
    for version in releases() {
        for (timeout, reason) in [("30s", "length"), ("0s", "abort")] {
            let args = ["--inter-token-latency", "10ms", "--shutdown-timeout", timeout];
            let Some((frontend, mut play)) = served(version, &FrontendOptions::default(), &args) else { return };
            let body = json!({"prompt": "Hello world", "max_tokens": 60, "ignore_eos": true});
            let mut events = frontend.stream("/v1/completions", &body);
            assert!(events.next().is_some());
            play.terminate();
            let reasons: Vec<_> =
                events.filter_map(|event| event["choices"][0]["finish_reason"].as_str().map(str::to_owned)).collect();
            assert_eq!(reasons, [reason], "vLLM {version}");
            assert!(play.wait().success(), "a signal is not a failure");
        }
    }
}

/// All requests fail, running and later ones, and none of them hangs.
#[test]
fn a_strict_playback_tells_the_frontend_that_it_is_over() {
    let folder = vcr_tests::Folder::new();
    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "a.jsonl", "--requests", "3"]).ended(0);
    let capture = folder.path().join("a.jsonl");
    let capture = capture.to_str().expect("a path in text");
    for version in releases() {
        let args = ["--playback", capture, "--strict"];
        let Some((frontend, mut play)) = served(version, &FrontendOptions::default(), &args) else { return };
        let ask = || frontend.post("/v1/completions", &json!({"prompt": [1, 2, 3], "max_tokens": 8}));
        let failed = ask();
        assert!(failed.status >= 500, "{version}: {}", failed.body);
        play.wait_for("the playback is strict: this ends it");
        assert_eq!(play.wait().code(), Some(1), "vLLM {version}");
        wait_until("the frontend knows that its engine is dead", || frontend.get("/health").status == 503);
        assert!(ask().status >= 500, "vLLM {version}");
    }
}
