//! Reports and commands of engines that serve.

use vcr_wire::Protocol as _;
use vcr_wire::*;

use crate::{PATIENCE, Site};

fn listener(engines: u16) -> FrontendListener {
    let config = FrontendConfig {
        handshake_address: "tcp://127.0.0.1:*".to_owned(),
        data: DataAddress::Tcp { host: "127.0.0.1".to_owned() },
        clients: 1,
        engines,
        coordinator: false,
    };
    FrontendListener::bind(&Transport::new(), config).expect("there are free ports")
}

fn serving(num_ranks: u16) -> (Site, FrontendLink) {
    let listener = listener(num_ranks);
    let site = Site::behind(listener.handshake_address(), num_ranks);
    let frontend = listener.accept(PATIENCE).expect("the engines come");
    site.wait_until(|snapshot| snapshot.state.name() == "serving");
    (site, frontend)
}

/// Sends a request, and waits until it has ended.
fn generate(frontend: &FrontendLink, rank: u16, id: &str, max_tokens: u32) {
    let request = EngineCoreRequest {
        request_id: id.to_owned(),
        prompt_token_ids: Some((0..40).collect()),
        sampling_params: Some(SamplingParams { max_tokens: Some(max_tokens), ..SamplingParams::default() }),
        ..EngineCoreRequest::default()
    };
    frontend.send(0, rank, &Request::Add(Box::new(request)), &[], VllmMinor::V0_33.rules()).expect("it is sent");
    loop {
        let message = frontend.receive(PATIENCE).expect("the library works").expect("the engine answers");
        let EngineMessage::Outputs(outputs) = message.decode().expect("it is a message") else { panic!("it died") };
        if outputs.outputs.iter().any(|output| output.finish_reason.is_some()) {
            break;
        }
    }
}

#[test]
fn what_an_engine_did_is_in_its_metrics() {
    let (site, frontend) = serving(2);
    generate(&frontend, 1, "a", 5);
    site.wait_until(|snapshot| snapshot.rank == 0 || snapshot.counters.finished[1] == 1);
    let text = site.get("/metrics").text;
    for line in [
        "vcr_requests_total{engine=\"0\"} 0",
        "vcr_requests_total{engine=\"1\"} 1",
        "vcr_prompt_tokens_total{engine=\"1\"} 40",
        "vcr_generation_tokens_total{engine=\"1\"} 5",
        "vcr_requests_finished_total{engine=\"1\",reason=\"length\"} 1",
        "vcr_steps_total{engine=\"1\"} 5",
        "vcr_busy_seconds_total{engine=\"1\"} 0.005",
        "vcr_requests_running{engine=\"1\"} 0",
        "vcr_engine_state{engine=\"1\",state=\"serving\"} 1",
    ] {
        assert!(text.lines().any(|other| other == line), "no `{line}` in\n{text}");
    }
    site.end();
}

#[test]
fn changes_are_carried_out() {
    let (site, frontend) = serving(2);
    site.post("/latency", r#"{"model": "7", "engine": 1}"#).of_status(202);
    site.post("/time-scale", r#"{"factor": 3.5}"#).of_status(202);
    site.post("/faults", r#"{"fault": "error:request=doomed"}"#).of_status(202);
    site.post("/pause", r#"{"engine": 0}"#).of_status(202);
    site.wait_until(|snapshot| snapshot.time_scale == 3.5 && snapshot.faults == ["error:request=doomed"]);
    site.wait_until(|snapshot| snapshot.latency == if snapshot.rank == 1 { "7 ms" } else { "1 ms" });
    site.wait_until(|snapshot| snapshot.is_paused == (snapshot.rank == 0));

    generate(&frontend, 1, "doomed", 5);
    site.wait_until(|snapshot| snapshot.rank == 0 || snapshot.counters.faults == 1);
    let engines = site.get("/engines").json();
    assert_eq!(engines["engines"][1]["requests_finished"]["error"], 1);
    assert_eq!(engines["engines"][0]["paused"], true);
    let faults = site.get("/faults").json();
    assert_eq!(faults["engines"][0], serde_json::json!({ "engine": 0, "faults": ["error:request=doomed"] }));

    site.delete("/faults", r#"{"engine": 1}"#).of_status(202);
    site.post("/resume", "").of_status(202);
    site.post("/reset-prefix-cache", "").of_status(202);
    site.wait_until(|snapshot| !snapshot.is_paused && snapshot.faults.len() == usize::from(snapshot.rank == 0));
    generate(&frontend, 1, "not doomed", 5);
    site.end();
}

#[test]
fn an_engine_that_stands_still_is_not_well() {
    let (site, _frontend) = serving(1);
    site.post("/faults", r#"{"fault": "stall:for=20s,count=1"}"#).of_status(202);
    site.wait_until(|snapshot| snapshot.state.name() == "stalled");
    let health = site.get("/healthz").of_status(503).json();
    assert_eq!(health["reasons"], serde_json::json!(["engine 0 is stalled"]));
    site.end();
}

#[test]
fn a_fault_that_cannot_happen_again_is_listed_and_not_in_force() {
    let (site, _frontend) = serving(1);
    let fault = r#"{"fault": "stall:for=1ms,count=1"}"#;
    site.post("/faults", fault).of_status(202);
    site.wait_until(|snapshot| snapshot.counters.faults == 1);
    assert_eq!(site.get("/faults").json()["engines"][0]["faults"], serde_json::json!(["stall:for=1ms,count=1"]));
    let text = site.get("/metrics").text;
    assert!(text.lines().any(|line| line == "vcr_faults_in_force{engine=\"0\"} 0"), "{text}");
    site.delete("/faults", fault).of_status(202);
    site.end();
}
