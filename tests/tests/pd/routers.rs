//! Prefill and decode engines behind third-party routers.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use ureq::Agent;
use vcr_tests::{Client, Folder, Frontend, FrontendOptions, Play, Serve, client, free_port, frontend_model, root};

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const LATENCY: &str = r#"fixed(#{ prefill: "40ms", decode: "8ms" })"#;
const TRANSFER: &str = "300ms";

/// A prompt of about ten blocks.
fn prompt() -> String {
    (0..80).map(|word| format!("word {word} ")).collect()
}

/// A third-party program, which is killed on drop. A failed test prints its log.
struct Other {
    name: &'static str,
    process: Child,
    folder: TempDir,
}

impl Other {
    fn start(name: &'static str, mut command: Command) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let output = File::create(folder.path().join("log")).expect("a temporary folder is writable");
        command.stdin(Stdio::null()).stdout(output.try_clone().expect("a handle of a file")).stderr(output);
        let process = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name, process, folder }
    }

    fn log(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        // Remove colours from the log.
        let text = String::from_utf8_lossy(&bytes);
        let mut plain = String::new();
        for (index, part) in text.split("\u{1b}[").enumerate() {
            plain.push_str(if index == 0 { part } else { part.split_once('m').map_or(part, |(_, rest)| rest) });
        }
        plain
    }

    #[track_caller]
    fn wait_until(&mut self, what: &str, mut is_true: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_true(self) {
            let status = self.process.try_wait().expect("a process has a status");
            assert!(status.is_none(), "{} ended: {status:?}", self.name);
            assert!(Instant::now() < deadline, "{} does not {what}", self.name);
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        if thread::panicking() {
            eprintln!("{} said:\n{}", self.name, self.log());
        }
    }
}

fn agent() -> Agent {
    Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build().into()
}

fn is_there(url: &str, text: &str) -> bool {
    agent().get(url).call().is_ok_and(|mut answer| {
        answer.status() == 200 && answer.body_mut().read_to_string().is_ok_and(|body| body.contains(text))
    })
}

/// The TTFT of a streamed completion, and its text.
#[track_caller]
fn complete(url: &str, prompt: &str) -> (Duration, String) {
    use std::io::{BufRead, BufReader};
    let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 8, "ignore_eos": true, "stream": true});
    let start = Instant::now();
    let request = agent().post(url).header("Content-Type", "application/json");
    let mut answer = request.send(body.to_string()).expect("the router answers");
    if answer.status() != 200 {
        panic!("status {}: {}", answer.status(), answer.body_mut().read_to_string().unwrap_or_default());
    }
    let (mut first, mut text) = (None, String::new());
    for line in BufReader::new(answer.into_body().into_reader()).lines() {
        let line = line.expect("the stream goes on");
        let Some(event) = line.strip_prefix("data: ").filter(|event| *event != "[DONE]") else { continue };
        let event: Value = serde_json::from_str(event).expect("an event is JSON");
        let piece = event["choices"][0]["text"].as_str().unwrap_or_default();
        if !piece.is_empty() {
            first.get_or_insert_with(|| start.elapsed());
        }
        text.push_str(piece);
    }
    (first.expect("there is a first token"), text)
}

/// The predicted TTFT of one prompt, in virtual time.
fn predicted() -> Duration {
    let scenario = std::fs::read_to_string(root().join("docs/how-to/pd.rhai")).expect("the scenario is there");
    let folder = Folder::with(&scenario);
    let said = folder.run(&["--json", "-q"]).ended(0);
    let ttft_ms = said.json()["runs"][0]["metrics"]["trends"]["ttft_ms"]["p50"].as_f64();
    Duration::from_secs_f64(ttft_ms.expect("there is a time to first token") / 1e3)
}

/// Two vLLM frontends with an engine each, between which KV moves.
struct Pair {
    prefill: Frontend,
    decode: Frontend,
    prefill_engine: Play,
    decode_engine: Play,
}

impl Pair {
    /// `None`, with a message, if the frontends are missing.
    fn start() -> Option<Self> {
        let play = |frontend: &Frontend| {
            let port = free_port().to_string();
            let times = ["--latency", LATENCY, "--kv-cache-transfer-latency", TRANSFER];
            let plane = ["--kv-transfer", "tcp", "--kv-block-bytes", "64KiB", "--num-gpu-blocks", "1000"];
            Play::start(&frontend.handshake_address(), &[&times[..], &plane, &["--side-channel-port", &port]].concat())
        };
        let start = || Frontend::start("0.33.0", &FrontendOptions::default());
        let (mut prefill, mut decode) = (start()?, start()?);
        let (prefill_engine, decode_engine) = (play(&prefill), play(&decode));
        prefill.wait_until_it_serves();
        decode.wait_until_it_serves();
        Some(Self { prefill, decode, prefill_engine, decode_engine })
    }

    /// Sends a prompt to the router at this port. The TTFT must include the transfer.
    #[track_caller]
    fn check(&mut self, port: u16) {
        let (ttft, text) = complete(&format!("http://127.0.0.1:{port}/v1/completions"), &prompt());
        assert!(!text.is_empty());
        let predicted = predicted();
        assert!(predicted > Duration::from_millis(300), "the transfer takes part: {predicted:?}");
        assert!(ttft >= predicted, "virtual time is a lower bound: {ttft:?}, {predicted:?}");
        eprintln!("time to first token: {ttft:?}, in virtual time {predicted:?}");
        // Each engine has done its part.
        self.prefill_engine.wait_for("output_tokens=1 ");
        self.decode_engine.wait_for("KV arrived");
        self.decode_engine.wait_for("output_tokens=8 ");
        self.decode.wait_for_metric("vllm:request_success_total", 1.0);
    }
}

/// vLLM's own toy proxy for prefill and decode, from its source distribution.
#[test]
fn the_toy_proxy_with_two_frontends() {
    let Some(client) = client("toy-proxy") else { return };
    let Some(mut pair) = Pair::start() else { return };
    let program = client.environment().join("toy_proxy_server.py");
    let mut command = client.python(&[program.to_str().expect("a path is a text")]);
    let port = free_port();
    let of = |url: String| url.rsplit_once(':').expect("it has a port").1.trim_end_matches('/').to_owned();
    command.args(["--port", &port.to_string()]);
    command.args(["--prefiller-host", "127.0.0.1", "--prefiller-port", &of(pair.prefill.url(""))]);
    command.args(["--decoder-host", "127.0.0.1", "--decoder-port", &of(pair.decode.url(""))]);
    let mut proxy = Other::start("the toy proxy", command);
    proxy.wait_until("serve", |_| is_there(&format!("http://127.0.0.1:{port}/healthcheck"), "\"prefill_instances\":1"));
    pair.check(port);
}

#[test]
fn vllm_router_with_two_frontends() {
    let Some(router) = client("vllm-router") else { return };
    let Some(mut pair) = Pair::start() else { return };
    let port = free_port();
    let mut command = router.python(&["-m", "vllm_router.launch_router", "--vllm-pd-disaggregation"]);
    command.args(["--prefill", &pair.prefill.url(""), "--decode", &pair.decode.url(""), "--policy", "round_robin"]);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.args(["--prometheus-host", "127.0.0.1", "--prometheus-port", &free_port().to_string()]);
    let mut router = Other::start("vllm-router", command);
    router.wait_until("serve", |_| is_there(&format!("http://127.0.0.1:{port}/health"), ""));
    pair.check(port);
}

/// NVIDIA Dynamo's frontend and KV router, without etcd and NATS, with the prefill engine's KV events.
#[test]
fn dynamo_routes_by_kv_events() {
    let (Some(dynamo), Some(model)) = (client("dynamo"), frontend_model()) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = model.to_str().expect("a path is a text");
    let events = format!("ipc://{}/events", folder.path().display());
    let serve = |more: &[&str]| {
        let port = free_port().to_string();
        let args = [model, "--served-model-name", "sim", "--latency", LATENCY, "--side-channel-port", &port];
        Serve::start(&[&args[..], more].concat())
    };
    let prefill = serve(&["--enable-kv-cache-events", "--kv-events-endpoint", &events]);
    let decode = serve(&["--kv-cache-transfer-latency", TRANSFER]);

    let of_dynamo = |args: &[&str]| {
        let mut command = Client::python(&dynamo, args);
        command.env("DYN_FILE_KV", folder.path().join("discovery")).env("DYN_LOG", "info");
        for host in ["DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"] {
            command.env(host, "127.0.0.1");
        }
        // The program keeps descriptions of models in the home folder.
        command.env("HOME", folder.path());
        command
    };
    let program = root().join("tests/frontends/dynamo_worker.py");
    let program = program.to_str().expect("a path is a text");
    let worker = |role: &str, serve: &Serve, events: &[&str]| {
        let url = format!("http://{}", serve.address());
        let mut worker = Other::start("the worker", of_dynamo(&[&[program, role, model, &url], events].concat()));
        worker.wait_until("register", |worker| worker.log().contains(&format!("registered as {role}")));
        worker
    };
    let _workers = [worker("prefill", &prefill, &[&events]), worker("decode", &decode, &[])];
    let port = free_port();
    let frontend = ["-m", "dynamo.frontend", "--discovery-backend", "file", "--request-plane", "tcp"];
    let more = ["--event-plane", "zmq", "--router-mode", "kv", "--http-host", "127.0.0.1", "--http-port"];
    let mut frontend = Other::start("Dynamo", of_dynamo(&[&frontend[..], &more, &[&port.to_string()]].concat()));
    frontend.wait_until("know the model", |_| is_there(&format!("http://127.0.0.1:{port}/v1/models"), "\"sim\""));

    let url = format!("http://127.0.0.1:{port}/v1/completions");
    frontend.wait_until("route", |_| {
        let body = json!({"model": "sim", "prompt": "Hello", "max_tokens": 1});
        let request = agent().post(&url).header("Content-Type", "application/json");
        request.send(body.to_string()).is_ok_and(|answer| answer.status() == 200)
    });
    let (ttft, text) = complete(&url, &prompt());
    assert!(!text.is_empty());
    let predicted = predicted();
    assert!(ttft >= predicted, "virtual time is a lower bound: {ttft:?}, {predicted:?}");

    // The router learns of the prompt's blocks after an unspecified delay.
    frontend.wait_until("know cached blocks", |frontend| {
        let _ = complete(&url, &prompt());
        let log = frontend.log();
        let chosen =
            log.lines().filter(|line| line.contains("Selected worker") && line.contains("worker_type=prefill"));
        let blocks =
            |line: &str| line.split("effective_cached_blocks=").nth(1)?.split_whitespace().next()?.parse().ok();
        chosen.filter_map(blocks).any(|blocks: f64| blocks >= 10.0)
    });
}

/// Both pools are in one process, in real time.
#[test]
fn a_scenario_in_real_time() {
    let scenario = std::fs::read_to_string(root().join("docs/how-to/pd.rhai")).expect("the scenario is there");
    let folder = Folder::with(&scenario);
    let said = folder.run(&["--target", "live", "--json", "-q"]).ended(0);
    let measured_ms = said.json()["runs"][0]["metrics"]["trends"]["ttft_ms"]["min"].as_f64();
    let measured = Duration::from_secs_f64(measured_ms.expect("there is a time to first token") / 1e3);
    let predicted = predicted();
    assert!(measured >= predicted, "virtual time is a lower bound: {measured:?}, {predicted:?}");
}
