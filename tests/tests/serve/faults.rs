//! Engines that fail, and captures that are played back.

use std::io::{ErrorKind, Read as _};

use serde_json::{Value, json};
use vcr_tests::{Folder, Serve, shipped_guest, wait_until};

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

/// The recorded answer comes back whatever the prompt's text is.
#[test]
fn a_capture_is_played_back() {
    let folder = Folder::new();
    let _made = folder.vcr(&["inspect", "gen-demo", "-o", "capture.jsonl", "--requests", "20", "--seed", "3"]).ended(0);
    let path = folder.path().join("capture.jsonl");
    let path = path.to_str().expect("a path is a text");
    let name = ["--served-model-name", "demo", "--max-model-len", "100000"];
    let serve = Serve::start(&[&["--playback-tokens", path, "--playback-match", "index"], &name[..]].concat());
    let body = serve.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 100_000})).body;
    assert!(body["usage"]["completion_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{body}");
}

/// Within one process, no wire loses a message. Clients must not wait forever for lost outputs.
#[test]
fn lost_and_unreadable_messages_end_their_requests() {
    let (serve, admin) = with_admin(&["--fault", "drop:nth=4,count=1"]);
    let request = json!({"prompt": "a", "max_tokens": 9, "ignore_eos": true, "stream": true});
    let mut connection = serve.begin("/v1/completions", &request);
    let mut read = Vec::new();
    let error = connection.read_to_end(&mut read).expect_err("the connection is reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{}", String::from_utf8_lossy(&read));
    assert_eq!(post(&admin, "/faults", r#"{"fault": "corrupt:nth=4,count=1"}"#).0, 202);
    let events = serve.stream("/v1/completions", &request);
    let error = events.iter().flatten().find_map(|event| event.get("error").cloned()).expect("an error comes");
    assert_eq!((&error["code"], &error["message"]), (&json!(500), &json!("a message of the engine cannot be read")));
    assert_eq!(serve.stream("/v1/completions", &request).last(), Some(&Err("[DONE]".to_owned())));
}

#[test]
fn a_guest_resets_connections_and_fails_requests() {
    let Some(chaos) = shipped_guest("chaos") else { return };
    let rules = json!({"rules": [
        {"match": {"request_id": "lost"}, "after_tokens": 3, "action": "drop_message"},
        {"match": {"request_id": "broken"}, "after_tokens": 3, "action": "corrupt_message"},
        {"match": {"request_id": "failed"}, "after_tokens": 3, "action": "fail_request"},
    ]});
    let config = rules.to_string();
    let path = chaos.to_str().expect("a path is a text");
    let serve = Serve::start(&["--failure-injector", path, "--failure-injector-config", &config]);
    let request = json!({"prompt": "a", "max_tokens": 9, "ignore_eos": true});
    let call = |id: &str| serve.post_with("/v1/completions", &format!("X-Request-Id: {id}"), &request).status;
    assert_eq!([call("well"), call("broken"), call("failed")], [200, 500, 500]);
    let mut connection = serve.begin_with("/v1/completions", ("X-Request-Id", "lost"), &request);
    let error = connection.read_to_end(&mut Vec::new()).expect_err("the connection is reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(call("well"), 200);
}

/// Each tenant, known by a header, a key or a salt, meets its own sequence of faults.
#[test]
fn tenants_meet_their_own_faults() {
    let serve = Serve::start(&[
        "--tenant-header",
        "X-Team",
        "--tenant-key",
        "green=secret",
        "--client-fault",
        "status:code=500,call=2,tenant=blue",
        "--client-fault",
        "status:code=503,call=2,cycle=2,per=tenant",
    ]);
    let call = |header: &str, body: &Value| serve.post_with("/v1/completions", header, body).status;
    let plain = json!({"prompt": "a", "max_tokens": 2});
    let blue = || call("x-team: blue", &plain);
    assert_eq!([blue(), blue(), blue(), blue(), blue()], [200, 500, 200, 503, 200]);
    let green = || call("Authorization: Bearer secret", &plain);
    assert_eq!([green(), green(), green(), green()], [200, 503, 200, 503]);
    let salted = json!({"prompt": "a", "max_tokens": 2, "cache_salt": "red"});
    assert_eq!([call("X-Other: 1", &salted), call("x-team: red", &plain)], [200, 503]);
}

/// A schedule repeats from the start of the server.
#[test]
fn windows_come_again() {
    let serve = Serve::start(&["--client-fault", "status:code=503,until=500ms,period=1s"]);
    let mut seen = Vec::new();
    wait_until("the window has come and gone twice", || {
        let status = serve.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).status;
        if seen.last() != Some(&status) {
            seen.push(status);
        }
        seen.windows(4).any(|statuses| statuses == [503, 200, 503, 200])
    });
}

/// A server, and the address of its control plane.
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

/// Readers of metrics, such as autoscalers, see made-up values until those are removed.
#[test]
fn made_up_metrics_come_and_go_while_it_serves() {
    let (serve, admin) = with_admin(&[]);
    let running = || {
        let answer = ureq::get(format!("http://{}/metrics", serve.address())).call().expect("it is served");
        let text = answer.into_body().read_to_string().expect("it is text");
        let series = r#"vllm:num_requests_running{model_name="sim",engine="0"} "#;
        text.lines().find_map(|line| line.strip_prefix(series).map(str::to_owned))
    };
    assert_eq!(running().as_deref(), Some("0"));
    let (status, body) = post(&admin, "/fake-metrics", r#"{"running-requests": 10}"#);
    assert_eq!((status, body.as_str()), (200, r#"{"fake_metrics":{"running-requests":10}}"#));
    assert_eq!(running().as_deref(), Some("10"));
    let (status, body) = post(&admin, "/fake-metrics", r#"{"waiting-requests": 2}"#);
    assert_eq!((status, body.as_str()), (200, r#"{"fake_metrics":{"running-requests":10,"waiting-requests":2}}"#));
    let (status, body) = post(&admin, "/fake-metrics", r#"{"running": 1}"#);
    assert!(status == 400 && body.contains("unknown field `running`"), "{status} {body}");
    assert_eq!(running().as_deref(), Some("10"));
    let cleared = ureq::delete(format!("{admin}/fake-metrics")).call().expect("it is answered");
    assert_eq!(cleared.into_body().read_to_string().expect("it is text"), r#"{"fake_metrics":{}}"#);
    assert_eq!(running().as_deref(), Some("0"));
}

/// A shortened answer is valid in every API: its usage fits it, and it reports a natural end.
#[test]
fn short_answers_are_well_formed() {
    let serve = Serve::start(&["--client-fault", "short:after=3"]);
    let text = json!({"prompt": "a", "max_tokens": 9, "min_tokens": 9, "ignore_eos": true});
    let body = serve.post("/v1/completions", &text).body;
    assert_eq!(
        (&body["usage"]["completion_tokens"], &body["choices"][0]["finish_reason"]),
        (&json!(3), &json!("stop"))
    );
    let chat = json!({
        "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 9, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let events = serve.stream("/v1/chat/completions", &chat);
    let reasons: Vec<_> =
        events.iter().flatten().filter_map(|event| event["choices"][0]["finish_reason"].as_str()).collect();
    let usage = events.iter().flatten().find_map(|event| event["usage"]["completion_tokens"].as_u64());
    assert_eq!((reasons, usage), (vec!["stop"], Some(3)), "{events:?}");
    assert_eq!(events.last(), Some(&Err("[DONE]".to_owned())));
    let message = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 9, "model": "sim"});
    let body = serve.post("/v1/messages", &message).body;
    assert_eq!((&body["usage"]["output_tokens"], &body["stop_reason"]), (&json!(3), &json!("end_turn")), "{body}");
    let body = serve.post("/v1/responses", &json!({"input": "a", "max_output_tokens": 9, "ignore_eos": true})).body;
    assert_eq!((&body["status"], &body["incomplete_details"]), (&json!("completed"), &Value::Null), "{body}");
    // This answer is already that short, so there is no fault, and it reports its real end.
    let body = serve.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 2, "ignore_eos": true})).body;
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}
