//! The control plane of `vcr play`, from its options to the end of the process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::Agent;
use vcr_tests::{Folder, vcr};

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// `vcr play` without a frontend, with both parts of its control plane.
struct Playing {
    process: Child,
    metrics: String,
    admin: String,
    agent: Agent,
}

impl Playing {
    fn start() -> Self {
        let mut process = Command::new(vcr())
            .args(["play", "--handshake-address", "tcp://127.0.0.1:1", "--data-parallel-size", "2"])
            .args(["--metrics-address", "127.0.0.1:0", "--admin-address", "localhost:0"])
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let log = BufReader::new(process.stderr.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        // Read the log to the end, so that the process never blocks on it.
        std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(|line| _ = sender.send(line)));
        let address = |after: &str| {
            loop {
                let line = lines.recv_timeout(PATIENCE).expect("it logs where it listens");
                if let Some((_, address)) = line.split_once(after) {
                    return address.trim_end_matches("/metrics").to_owned();
                }
            }
        };
        let (metrics, admin) = (address("metrics are at "), address("the control plane is at "));
        let agent = Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build();
        Self { process, metrics, admin, agent: agent.into() }
    }

    fn get(&self, url: String) -> (u16, String) {
        let mut response = self.agent.get(url).call().expect("an answer comes");
        (response.status().as_u16(), response.body_mut().read_to_string().expect("it is text"))
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = self.agent.post(format!("{}{path}", self.admin));
        let mut response = request.send(body.to_string()).expect("an answer comes");
        let text = response.body_mut().read_to_string().expect("it is text");
        (response.status().as_u16(), serde_json::from_str(&text).expect("it is JSON"))
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        // This ends the process of a failed test. Otherwise, the process has ended already.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[test]
fn engines_are_watched_changed_and_ended_over_http() {
    let mut playing = Playing::start();
    for address in [&playing.metrics, &playing.admin] {
        assert_eq!(playing.get(format!("{address}/healthz")).0, 200);
        assert!(playing.get(format!("{address}/metrics")).1.contains("vcr_requests_total{engine=\"1\"} 0\n"));
    }
    let model = json!({ "model": "knobs(#{ ttft: \"200ms\", itl: \"10ms\" })", "engine": 1 });
    let (status, body) = playing.post("/latency", &model);
    assert_eq!((status, body), (202, json!({ "engines": [{ "engine": 1, "state": "connecting" }] })));

    assert_eq!(playing.post("/shutdown", &json!({})).0, 202);
    let status = playing.process.wait().expect("it can be waited for");
    assert_eq!(status.code(), Some(0));
}

/// The models and their errors are those of `--latency`.
#[test]
fn wrong_models_are_explained() {
    let playing = Playing::start();
    let nested = "(".repeat(20_000);
    for (model, error) in [
        ("knobs(#{ ttf: \"200ms\" })", "model:1:"),
        ("7", "expected a latency model"),
        ("", "model"),
        ("no-such.wasm", "no-such.wasm"),
        ("loop {}", "model:1:"),
        ("(|| { loop {} }).call()", "model:1:"),
        (&nested, "model:1:"),
        ("fixed(#{ step: \"10ms\" }", "model:1:"),
    ] {
        let (status, said) = playing.post("/latency", &json!({ "model": model }));
        assert_eq!(status, 400, "{model}: {said}");
        assert!(said["error"].as_str().is_some_and(|text| text.contains(error)), "{model}: {said}");
    }
    let body = json!({ "model": "fixed(#{ step: \"10ms\" })", "config": {} });
    let (status, said) = playing.post("/latency", &body);
    assert_eq!((status, &said["error"]), (400, &json!("model: only guests take a configuration")));
}

#[test]
fn addresses_that_cannot_be_used_end_the_program() {
    let folder = Folder::new();
    for (option, address, error, hint) in [
        (
            "--admin-address",
            "0.0.0.0:0",
            "invalid admin address 0.0.0.0:0: expected a loopback address",
            "--metrics-address takes any address",
        ),
        ("--admin-address", "9090", "invalid listen address `9090`: expected HOST:PORT", "write it as HOST:PORT"),
        (
            "--metrics-address",
            "127.0.0.1",
            "invalid listen address `127.0.0.1`: expected HOST:PORT",
            "write it as HOST:PORT",
        ),
        ("--metrics-address", "192.0.2.1:0", "cannot listen at `192.0.2.1:0`", "port 0 takes a free one"),
    ] {
        let said = folder.vcr(&["play", option, address]).ended(2);
        assert!(said.stderr.contains(error) && said.stderr.contains(hint), "{}", said.stderr);
    }
}
