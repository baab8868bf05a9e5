//! Changes through the control plane, while engines wait and when they end.

use serde_json::json;

use crate::Site;

#[test]
fn every_change_is_accepted_for_one_engine_and_for_all() {
    let site = Site::waiting(2);
    let one = json!({ "engines": [{ "engine": 1, "state": "connecting" }] });
    let all = json!({ "engines": [{ "engine": 0, "state": "connecting" }, { "engine": 1, "state": "connecting" }] });
    for (path, start) in [
        ("/latency", r#""model": "5""#),
        ("/time-scale", r#""factor": 2"#),
        ("/faults", r#""fault": "error:rate=0.1""#),
        ("/pause", ""),
        ("/resume", ""),
        ("/reset-prefix-cache", ""),
    ] {
        assert_eq!(site.post(path, format!("{{{start}}}")).of_status(202).json(), all, "{path}");
        let comma = if start.is_empty() { "" } else { ", " };
        assert_eq!(site.post(path, format!("{{{start}{comma}\"engine\": 1}}")).of_status(202).json(), one, "{path}");
    }
    for path in ["/pause", "/resume", "/reset-prefix-cache"] {
        assert_eq!(site.post(path, "").of_status(202).json(), all, "{path}");
    }
    let fault = r#"{"fault": "error:rate=0.1", "engine": 0}"#;
    site.delete("/faults", fault).of_status(202);
    let (error, hint) = site.delete("/faults", fault).error(404);
    assert_eq!((&*error, &*hint), ("there is no fault `error:rate=0.1`", "GET /faults lists them"));
    assert_eq!(site.delete("/faults", "").of_status(202).json(), all);
    site.delete("/faults", r#"{"fault": "error:rate=0.1"}"#).error(404);
    assert_eq!(site.delete("/faults", r#"{"engine": 1}"#).of_status(202).json(), one);
    site.end();
}

#[test]
fn engines_that_are_not_here_are_not_found() {
    let site = Site::waiting(2);
    for (path, body) in [
        ("/latency", r#"{"model": "5", "engine": 7}"#),
        ("/time-scale", r#"{"factor": 2, "engine": 7}"#),
        ("/faults", r#"{"fault": "drop", "engine": 7}"#),
        ("/pause", r#"{"engine": 7}"#),
        ("/resume", r#"{"engine": 7}"#),
        ("/reset-prefix-cache", r#"{"engine": 7}"#),
    ] {
        let (error, hint) = site.post(path, body).error(404);
        assert_eq!((error.as_str(), hint.as_str()), ("unknown engine 7", "engines here are 0 to 1"), "{path}");
    }
    site.end();
}

#[test]
fn what_is_wrong_is_said_with_what_is_wanted() {
    let site = Site::waiting(1);
    for (path, body, error, hint) in [
        ("/latency", r#"{}"#, "missing field `model`", r#"send {"model": "fixed("#),
        ("/latency", r#"{"model": "slow"}"#, "`slow` is not a model", "write a number of milliseconds"),
        ("/latency", r#"{"model": "broken"}"#, "latency model `broken` failed: it is broken", ""),
        ("/latency", r#"{"model": "5", "config": "{}"}"#, "expected a map", "send"),
        ("/time-scale", r#"{"factor": 0}"#, "invalid `factor`: expected more than 0", "twice as fast"),
        ("/time-scale", r#"{"factor": -1}"#, "invalid `factor`: expected more than 0", "twice as fast"),
        ("/time-scale", r#"{"factor": 2, "engines": 1}"#, "unknown field `engines`", "send"),
        ("/time-scale", r#"{"factor": 2"#, "EOF while parsing", "send"),
        ("/faults", r#"{"fault": "eror"}"#, "unknown fault `eror`: expected", "KIND[:KEY=VALUE,...]"),
        ("/faults", r#"{"fault": "late:by=5"}"#, "`5` has no unit", "KIND[:KEY=VALUE,...]"),
        ("/pause", "now", "expected a JSON object", r#"send {"engine": 0}, or nothing for all engines"#),
        ("/pause?engine=1", "", "`?engine=1` has no effect here", "send"),
        ("/shutdown", r#"{"engine": 0}"#, "unknown field `engine`", "send no body"),
    ] {
        let (said_error, said_hint) = site.post(path, body).error(400);
        assert!(said_error.contains(error), "{path} {body}: {said_error}");
        assert!(said_hint.contains(hint), "{path} {body}: {said_hint}");
    }
    site.end();
}

#[test]
fn a_guest_gets_its_configuration() {
    let site = Site::waiting(1);
    site.post("/latency", r#"{"model": "a.wasm", "config": {"b": [1, 2]}}"#).of_status(202);
    site.end();
}

/// A web page in a browser on this machine could reach the loopback address.
#[test]
fn web_pages_change_nothing() {
    let site = Site::waiting(1);
    for (name, value) in [("origin", "http://example.org"), ("sec-fetch-site", "cross-site")] {
        let request = site.agent.post(format!("http://{}/shutdown", site.admin)).header(name, value);
        assert_eq!(request.send_empty().expect("an answer comes").status(), 403, "{name}");
    }
    assert!(site.engines.handle().snapshots().iter().all(|snapshot| snapshot.state.name() == "connecting"));
    site.end();
}

#[test]
fn a_shutdown_ends_engines_and_then_the_control_plane() {
    let site = Site::waiting(2);
    site.post("/shutdown", "").of_status(202);
    site.wait_until(|snapshot| snapshot.state.name() == "stopped");
    let health = site.get("/healthz").of_status(503).json();
    assert_eq!(health["status"], "unhealthy");
    assert_eq!(health["reasons"], json!(["engine 0 is stopped", "engine 1 is stopped"]));
    let (agent, admin) = (site.agent.clone(), site.admin);
    site.end();
    assert!(agent.get(format!("http://{admin}/healthz")).call().is_err(), "the listener is closed");
}
