//! Engines that fail, and captures that are played back.

use serde_json::json;
use vcr_tests::{Folder, Serve, wait_until};

#[test]
fn a_crashed_engine_fails_its_requests_and_comes_back() {
    let args = ["--tokens", "random", "--fault", "crash:restart=1s,after=3,count=1", "--inter-token-latency", "5ms"];
    let serve = Serve::start(&args);
    let request = json!({"prompt": "a", "max_tokens": 50, "ignore_eos": true});
    let lost = serve.post("/v1/completions", &request);
    assert_eq!((lost.status, &lost.body["error"]["type"]), (500, &json!("InternalServerError")), "{}", lost.body);
    wait_until("the engine is back", || serve.get("/health").status == 200);
    assert_eq!(serve.post("/v1/completions", &request).status, 200);
}

#[test]
fn an_injected_error_is_an_error_of_the_request() {
    let serve = Serve::start(&["--fault", "error:after=2"]);
    let request = json!({"prompt": "a", "max_tokens": 9});
    assert_eq!(serve.post("/v1/completions", &request).status, 500);
    let request = json!({"prompt": "a", "max_tokens": 9, "stream": true});
    let events = serve.stream("/v1/completions", &request);
    let error = events.iter().flatten().find_map(|event| event.get("error").cloned()).expect("an error comes");
    assert_eq!(error["code"], 500);
    assert_eq!(events.last(), Some(&Err("[DONE]".to_owned())));
}

#[test]
fn requests_go_to_the_rank_that_is_asked_for() {
    let serve = Serve::start(&["--data-parallel-size", "3", "--log-requests"]);
    let request = json!({"prompt": "a", "max_tokens": 2});
    let reply = serve.post_with("/v1/completions", "X-data-parallel-rank: 2", &request);
    assert_eq!(reply.status, 200);
    let line = serve.wait_for("started");
    assert!(line.contains("rank=2"), "{line}");
    let refused = serve.post_with("/v1/completions", "X-data-parallel-rank: 3", &request);
    assert_eq!(refused.status, 400, "{}", refused.body);
}

/// What was recorded must come back whatever the prompt's text.
#[test]
fn a_capture_is_played_back() {
    let folder = Folder::new();
    let _made = folder.vcr(&["inspect", "gen-demo", "-o", "capture.jsonl", "--requests", "20", "--seed", "3"]).ended(0);
    let path = folder.path().join("capture.jsonl");
    let path = path.to_str().expect("a path is a text");
    let name = ["--served-model-name", "demo", "--max-model-len", "100000"];
    let serve = Serve::start(&[&["--replay-tokens", path, "--replay-match", "index"], &name[..]].concat());
    let body = serve.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 100_000})).body;
    assert!(body["usage"]["completion_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{body}");
}

/// In one process nobody would learn of a lost message, and its requests would wait for ever.
#[test]
fn faults_that_lose_messages_are_refused() {
    let folder = Folder::new();
    for fault in ["drop:rate=0.5", "corrupt:nth=3"] {
        let stderr = folder.vcr(&["serve", "--port", "0", "--fault", fault]).ended(2).stderr;
        assert!(stderr.contains(&format!("unusable --fault {fault}")) && stderr.contains("--client-fault"), "{stderr}");
    }
    let (serve, admin) = with_admin(&["--fault", "duplicate:nth=2"]);
    let (status, body) = post(&admin, "/faults", r#"{"fault": "drop"}"#);
    assert!(status == 400 && body.contains("never lost"), "{status} {body}");
    assert_eq!(post(&admin, "/faults", r#"{"fault": "late:by=1ms"}"#).0, 202);
    assert_eq!(serve.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 3})).status, 200);
}

/// A server with a control plane at the address.
fn with_admin(args: &[&str]) -> (Serve, String) {
    let serve = Serve::start(&[&["--admin-address", "127.0.0.1:0"], args].concat());
    let line = serve.wait_for("the control plane is at ");
    let address = line.rsplit("the control plane is at ").next().expect("it has an address").trim().to_owned();
    (serve, address)
}

fn post(admin: &str, path: &str, body: &str) -> (u16, String) {
    let request = ureq::post(format!("{admin}{path}")).config().http_status_as_error(false).build();
    let answer = request.send(body).expect("it is answered");
    (answer.status().as_u16(), answer.into_body().read_to_string().expect("it is text"))
}

#[test]
fn client_faults_come_and_go_while_it_serves() {
    let (serve, admin) = with_admin(&["--client-fault", "status:code=429,call=1"]);
    let call = || serve.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 2})).status;
    assert_eq!([call(), call()], [429, 200]);
    let (status, body) = post(&admin, "/client-faults", r#"{"fault": "status:code=503,call=2"}"#);
    assert_eq!((status, body.as_str()), (200, r#"{"faults":["status:code=429,call=1","status:code=503,call=2"]}"#));
    assert_eq!([call(), call(), call()], [200, 503, 200]);
    let (status, body) = post(&admin, "/client-faults", r#"{"fault": "statsu"}"#);
    assert!(status == 400 && body.contains("expected one of status"), "{status} {body}");
    let cleared = ureq::delete(format!("{admin}/client-faults")).call().expect("it is answered");
    assert_eq!(cleared.into_body().read_to_string().expect("it is text"), r#"{"faults":[]}"#);
    assert_eq!(call(), 200);
}
