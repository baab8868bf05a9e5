//! Requests and servers that end early.

use std::io::Read;

use serde_json::{Map, Value, json};
use vcr_tests::{Serve, wait_until};

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

/// Structures of outputs that take a lot of work, each for a request with many answers.
fn hostile_structures() -> Vec<(&'static str, Value)> {
    let names: Vec<String> = (0..20_000).map(|index| format!("p{index}")).collect();
    let text = json!({"type": "string"});
    let properties: Value = names.iter().map(|name| (name.clone(), text.clone())).collect::<Map<_, _>>().into();
    let definitions: Value =
        names.iter().map(|name| (name.clone(), json!({"$ref": "#/$defs/p0"}))).collect::<Map<_, _>>().into();
    let constants: Vec<Value> = (0..20_000).map(|index| json!({"const": index})).collect();
    vec![
        ("choices", json!({"choice": names})),
        ("required", json!({"json": {"type": "object", "properties": properties, "required": names}})),
        ("alternatives", json!({"json": {"type": "array", "minItems": 5_000, "items": {"anyOf": constants}}})),
        ("definitions", json!({"json": {"$defs": definitions, "type": "object"}})),
    ]
}

/// Other requests are served while a hostile structure is parsed. When its client disconnects, its request is aborted.
#[test]
fn hostile_structures_of_outputs_stop_nobody_else() {
    let serve = Serve::start(&[]);
    for (name, structure) in hostile_structures() {
        let request = json!({"prompt": "a", "max_tokens": 20, "n": 128, "structured_outputs": structure});
        let hostile = serve.begin("/v1/completions", &request);
        for _ in 0..10 {
            assert_eq!(serve.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).status, 200, "{name}");
        }
        drop(hostile);
        wait_until(name, || serve.get("/load").body["server_load"] == 0);
        let reply = serve.post("/v1/completions", &request);
        assert!([200, 400].contains(&reply.status), "{name}: {reply:?}");
    }
}
