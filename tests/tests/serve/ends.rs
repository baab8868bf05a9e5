//! Requests and servers that end early.

use std::io::Read;

use serde_json::json;
use vcr_tests::{Serve, wait_until};

/// A client that goes away must not keep the engine busy.
#[test]
fn a_closed_connection_aborts_the_request() {
    let serve = Serve::start(&["--tokens", "random", "--inter-token-latency", "20ms", "--log-requests"]);
    for stream in [true, false] {
        let request = json!({"prompt": "a", "max_tokens": 100_000, "ignore_eos": true, "stream": stream});
        let mut connection = serve.begin("/v1/completions", &request);
        if stream {
            let mut byte = [0];
            connection.read_exact(&mut byte).expect("the answer begins");
        } else {
            wait_until("the request runs", || serve.get("/load").body["server_load"] == 1);
        }
        drop(connection);
        wait_until("the request is aborted", || {
            let ended = serve.log().matches("reason=Abort").count();
            ended == if stream { 1 } else { 2 }
        });
        assert_eq!(serve.get("/load").body["server_load"], 0);
    }
}

#[test]
fn sigterm_waits_for_requests_as_long_as_it_may() {
    let mut serve = Serve::start(&["--inter-token-latency", "20ms", "--shutdown-timeout", "60s"]);
    let request = json!({"prompt": "a", "max_tokens": 40, "ignore_eos": true, "stream": true});
    let mut connection = serve.begin("/v1/completions", &request);
    let mut byte = [0];
    connection.read_exact(&mut byte).expect("the answer begins");
    serve.terminate();
    let mut rest = String::new();
    connection.read_to_string(&mut rest).expect("the answer ends");
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(serve.wait().code(), Some(0));
}

#[test]
fn sigterm_aborts_requests_unless_told_otherwise() {
    let mut serve = Serve::start(&["--inter-token-latency", "20ms"]);
    let request = json!({"prompt": "a", "max_tokens": 100_000, "ignore_eos": true, "stream": true});
    let mut connection = serve.begin("/v1/completions", &request);
    let mut byte = [0];
    connection.read_exact(&mut byte).expect("the answer begins");
    serve.terminate();
    let mut rest = String::new();
    connection.read_to_string(&mut rest).expect("the answer ends");
    assert!(rest.contains("\"finish_reason\":\"abort\""), "{rest}");
    assert_eq!(serve.wait().code(), Some(0));
}

#[test]
fn readiness_waits_for_the_start_up() {
    let serve = Serve::start(&["--startup-duration", "1h"]);
    assert_eq!((serve.get("/health").status, serve.get("/ready").status), (200, 503));
    assert_eq!(serve.get("/health/ready").status, 503, "as llm-d-inference-sim calls it");
}
