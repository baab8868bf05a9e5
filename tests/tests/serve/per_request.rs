//! Times of requests that do not depend on other requests.

use std::time::{Duration, Instant};

use serde_json::json;
use vcr_tests::Serve;

/// Time that a request takes for this number of tokens.
fn took(serve: &Serve, max_tokens: u32) -> Duration {
    let start = Instant::now();
    let body = json!({"prompt": "a b c", "max_tokens": max_tokens, "ignore_eos": true, "stream": true});
    let events = serve.stream("/v1/completions", &body);
    assert!(events.len() as u32 > max_tokens / 2, "{events:?}");
    start.elapsed()
}

/// A prompt takes a second. With times per step, a decoding request would wait for it.
#[test]
fn a_prompt_does_not_hold_up_those_that_decode() {
    let serve = Serve::start(&["--time-to-first-token", "1s", "--inter-token-latency", "20ms"]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| took(&serve, 30));
        // Start the second request in the middle of the first one's tokens.
        std::thread::sleep(Duration::from_millis(1200));
        let second = scope.spawn(|| took(&serve, 1));
        let (first, second) = (first.join().expect("it ends"), second.join().expect("it ends"));
        assert!((Duration::from_millis(1580)..Duration::from_millis(2150)).contains(&first), "{first:?}");
        assert!((Duration::from_millis(1000)..Duration::from_millis(1900)).contains(&second), "{second:?}");
    });
}

#[test]
fn running_slots_still_make_requests_wait() {
    let serve = Serve::start(&[
        "--latency",
        "per_request(#{ ttft: \"300ms\", itl: \"10ms\" })",
        "--max-num-seqs",
        "1",
        "--no-enable-prefix-caching",
    ]);
    // The second request may be sent slightly later than the first.
    let started = Instant::now();
    std::thread::scope(|scope| {
        let both = [0, 1].map(|_| scope.spawn(|| took(&serve, 11)));
        let both = both.map(|one| one.join().expect("it ends"));
        let first = both.into_iter().min().expect("there are two");
        assert!((Duration::from_millis(400)..Duration::from_millis(750)).contains(&first), "{both:?}");
        assert!(started.elapsed() >= Duration::from_millis(800), "{both:?}");
    });
}

/// Times in llm-d-inference-sim's form apply per request.
#[test]
fn a_file_of_llm_d_gives_each_request_its_times() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("sim.yaml");
    std::fs::write(&path, "model: m\ntime-to-first-token: 600ms\ninter-token-latency: 10ms\n").expect("it is writable");
    let serve = Serve::start(&["--llm-d-config", path.to_str().expect("a path is a text")]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| took(&serve, 11));
        std::thread::sleep(Duration::from_millis(300));
        let second = scope.spawn(|| took(&serve, 11));
        for each in [first, second] {
            let took = each.join().expect("it ends");
            assert!((Duration::from_millis(700)..Duration::from_millis(1150)).contains(&took), "{took:?}");
        }
    });
}

/// Running requests continue when the control plane replaces a model of steps by one of requests, and the reverse.
#[test]
fn the_control_plane_changes_to_times_of_requests_and_back() {
    let serve = Serve::start(&["--admin-address", "127.0.0.1:0", "--decode-step-time", "10ms"]);
    let line = serve.wait_for("the control plane is at ");
    let admin = line.rsplit("the control plane is at ").next().expect("it has an address").trim().to_owned();
    let set = |model: &str| {
        let answer = ureq::post(format!("{admin}/latency")).send(json!({"model": model}).to_string());
        assert_eq!(answer.expect("it is taken").status(), 202);
    };
    std::thread::scope(|scope| {
        let under_way = scope.spawn(|| took(&serve, 60));
        std::thread::sleep(Duration::from_millis(200));
        set(r#"per_request(#{ ttft: "400ms", itl: "10ms" })"#);
        let later = took(&serve, 1);
        assert!((Duration::from_millis(395)..Duration::from_millis(900)).contains(&later), "{later:?}");
        let under_way = under_way.join().expect("it ends");
        assert!((Duration::from_millis(550)..Duration::from_millis(900)).contains(&under_way), "{under_way:?}");
        let under_way = scope.spawn(|| took(&serve, 60));
        std::thread::sleep(Duration::from_millis(450));
        set(r#"fixed(#{ step: "1ms" })"#);
        let under_way = under_way.join().expect("it ends");
        assert!((Duration::from_millis(400)..Duration::from_millis(800)).contains(&under_way), "{under_way:?}");
    });
}
