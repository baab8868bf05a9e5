//! Real vLLM frontends, and a client for them.
//!
//! A frontend is the file `vllm-rs` of a release's official wheel. It is started on free ports, without engines. A
//! test starts the engines, which connect to its handshake address.

pub(super) mod agents;
pub(super) mod client;
pub(super) mod renderer;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use ureq::http::Response;
use ureq::{Agent, Body};
use vcr_skips::skip_optional;

use crate::binary::{lock, scratch_dir};
use crate::{root, skip};

/// Releases whose frontends are always available in CI, oldest first.
pub const FRONTENDS: [&str; 3] = ["0.27.1", "0.30.0", "0.33.0"];
/// One release of each minor version, oldest first.
const ALL_FRONTENDS: [&str; 7] = ["0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"];

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for the Python API server, which imports all of PyTorch.
const PATIENCE_WITH_PYTHON: Duration = Duration::from_secs(600);
const MODEL: &str = "sim";

/// The releases to test with: [`FRONTENDS`], or one of each minor version if `VCR_ALL_VERSIONS` is set.
#[must_use]
pub fn releases() -> &'static [&'static str] {
    if std::env::var_os("VCR_ALL_VERSIONS").is_some() { &ALL_FRONTENDS } else { &FRONTENDS }
}

/// A model folder that frontends can read.
#[must_use]
pub fn frontend_model() -> Option<PathBuf> {
    fetched("model")
}

/// The binary of a release, which is also a benchmark client.
#[must_use]
pub fn vllm_rs(version: &str) -> Option<PathBuf> {
    fetched(&format!("{version}/vllm-rs"))
}

/// Options with which a frontend is started.
#[derive(Clone, Debug)]
pub struct FrontendOptions {
    /// Number of engines that the frontend waits for.
    pub engines: u16,
    /// Whether the model is a mixture of experts, whose engines run in waves.
    pub is_moe: bool,
    /// Port at which the frontend waits for engines; `None`: a free port.
    pub handshake_port: Option<u16>,
    /// Further arguments.
    pub args: Vec<String>,
    /// Further environment variables.
    pub env: Vec<(String, String)>,
}

impl Default for FrontendOptions {
    fn default() -> Self {
        Self { engines: 1, is_moe: false, handshake_port: None, args: Vec::new(), env: Vec::new() }
    }
}

/// A running frontend, which is killed on drop. A failed test prints its log.
#[derive(Debug)]
pub struct Frontend {
    process: Child,
    http_port: u16,
    handshake_port: u16,
    agent: Agent,
    folder: TempDir,
    patience: Duration,
}

/// A file that `tests/frontends/fetch.sh` fetches.
pub(crate) fn fetched(path: &str) -> Option<PathBuf> {
    fetched_by("fetch.sh", path)
}

/// A file that a script in `tests/frontends` fetches.
pub(crate) fn fetched_by(script: &str, path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("VCR_FRONTENDS").map_or_else(|| root().join("target/frontends"), PathBuf::from);
    let path = folder.join(path);
    if path.exists() {
        return Some(path);
    }
    skip(&format!("{} is missing; run tests/frontends/{script}", path.display()));
    None
}

/// A port on this machine that no other test is given.
///
/// The port is outside of the range from which the system assigns ports. Otherwise another socket could get it
/// before a program has bound it.
///
/// # Panics
/// All ports are taken.
#[must_use]
pub fn free_port() -> u16 {
    free_ports(1)
}

/// The first of `count` consecutive free ports.
///
/// # Panics
/// All ports are taken.
#[must_use]
pub fn free_ports(count: u16) -> u16 {
    const PORTS: Range<u16> = 15_000..30_000;
    let _lock = lock("port");
    let file = scratch_dir().join("last-port");
    let last: Option<u16> = fs::read_to_string(&file).ok().and_then(|text| text.parse().ok());
    let next = last.filter(|last| PORTS.contains(last)).map_or(PORTS.start, |last| last + 1);
    let mut candidates = (next..PORTS.end).chain(PORTS.start..next);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let port = candidates.find(|first| (0..count).all(|place| is_free(first + place))).expect("a free port");
    fs::write(file, (port + count - 1).to_string()).expect("the target folder is writable");
    port
}

impl Frontend {
    /// Starts the frontend of a release and waits until engines can say HELLO. `None`, with a message, if it has
    /// not been fetched.
    ///
    /// # Panics
    /// The frontend does not start; in CI, also if it has not been fetched.
    #[must_use]
    pub fn start(version: &str, options: &FrontendOptions) -> Option<Self> {
        let mut command = Command::new(vllm_rs(version)?);
        command.arg("serve");
        Self::launch(command, options, PATIENCE)
    }

    /// Starts the Python API server of a release, which `tests/oracle/run.sh` has installed in `target/oracle` or
    /// `ORACLE_HOME`. `None` if it is missing, in CI too.
    ///
    /// # Panics
    /// The server does not start.
    #[must_use]
    pub fn start_python(version: &str, options: &FrontendOptions) -> Option<Self> {
        let home = std::env::var_os("ORACLE_HOME").map_or_else(|| root().join("target/oracle"), PathBuf::from);
        let python = home.join(version).join("python");
        if !python.is_file() {
            // CI does not install this server: it needs 2 GB of PyTorch, which no other test needs.
            skip_optional(&format!("{} is missing; run tests/oracle/run.sh {version}", python.display()));
            return None;
        }
        let mut command = Command::new(python);
        command.args(["-m", "vllm.entrypoints.cli.main", "serve"]);
        command.env("VLLM_CPU_KVCACHE_SPACE", "1").env("VLLM_CPU_OMP_THREADS_BIND", "nobind");
        command.env("OMP_NUM_THREADS", "1").env("VLLM_NO_USAGE_STATS", "1");
        // Read no weights, and record no CUDA graphs.
        let more = ["--load-format", "dummy", "--enforce-eager"].map(str::to_owned);
        let options = FrontendOptions { args: [&more[..], &options.args].concat(), ..options.clone() };
        Self::launch(command, &options, PATIENCE_WITH_PYTHON)
    }

    /// Appends the model and options of `vllm serve` to `command`.
    fn launch(mut command: Command, options: &FrontendOptions, patience: Duration) -> Option<Self> {
        let model = fetched(if options.is_moe { "model-moe" } else { "model" })?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let output = File::create(folder.path().join("log")).expect("a temporary folder is writable");
        let (http_port, handshake_port) = (free_port(), options.handshake_port.unwrap_or_else(free_port));
        let process = command
            .arg(model)
            .args(["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", &http_port.to_string()])
            .args(["--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", &handshake_port.to_string()])
            .args(["--data-parallel-size", &options.engines.to_string(), "--data-parallel-size-local", "0"])
            .args(&options.args)
            .env("HF_HUB_OFFLINE", "1")
            .envs(options.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a handle of a file"))
            .stderr(output)
            .spawn()
            .expect("the frontend starts");
        let agent = Agent::config_builder().http_status_as_error(false).timeout_global(Some(2 * PATIENCE)).build();
        let mut frontend = Self { process, http_port, handshake_port, agent: agent.into(), folder, patience };
        frontend.wait_until("listen for engines", |frontend| {
            // If an engine already waited for the frontend, it was accepted before this check. Then the frontend
            // listens only for requests.
            let listens = |port| TcpStream::connect(("127.0.0.1", port)).is_ok();
            listens(frontend.handshake_port) || listens(frontend.http_port)
        });
        Some(frontend)
    }

    /// The handshake address for engines.
    #[must_use]
    pub fn handshake_address(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.handshake_port)
    }

    /// The URL of a path on the frontend's HTTP server.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.http_port)
    }

    /// The frontend's output so far.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the frontend has all its engines and accepts requests.
    ///
    /// # Panics
    /// The frontend ends, or does not serve in time.
    #[track_caller]
    pub fn wait_until_it_serves(&mut self) {
        self.wait_until("serve", |frontend| {
            frontend.agent.get(frontend.url("/v1/models")).call().is_ok_and(|answer| answer.status() == 200)
        });
    }

    #[track_caller]
    fn wait_until(&mut self, what: &str, is_true: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + self.patience;
        while !is_true(self) {
            let status = self.process.try_wait().expect("a process has a status");
            assert!(status.is_none(), "the frontend ended: {status:?}");
            assert!(Instant::now() < deadline, "the frontend does not {what}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// A metric, summed over its labels.
    ///
    /// # Panics
    /// The frontend serves no metrics.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics").ok();
        let lines = metrics.as_str().expect("metrics are text").lines();
        let values = lines.filter(|line| line.starts_with(&format!("{name}{{")));
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until a metric has a value: frontends count an answer only after they have sent it.
    ///
    /// # Panics
    /// The metric does not reach the value in time.
    #[track_caller]
    pub fn wait_for_metric(&self, name: &str, value: f64) {
        let mut last = f64::NAN;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            last = self.metric(name);
            if last == value {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("{name} is {last}, expected {value}");
    }

    /// Sends a GET request.
    ///
    /// # Panics
    /// No answer comes.
    #[track_caller]
    #[must_use]
    pub fn get(&self, path: &str) -> Answer {
        Answer::of(self.agent.get(self.url(path)).call().expect("the frontend answers"))
    }

    /// Posts JSON. A missing `model` is filled in.
    ///
    /// # Panics
    /// No answer comes.
    #[track_caller]
    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        Answer::of(self.send(path, body))
    }

    /// Posts JSON, and returns the answer's events as they arrive. Dropping the result aborts the request.
    ///
    /// # Panics
    /// The answer is no stream.
    #[track_caller]
    #[must_use]
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let answer = self.send(path, &body);
        if answer.status() != 200 {
            let answer = Answer::of(answer);
            panic!("status {}: {}", answer.status, answer.body);
        }
        Events(BufReader::new(Box::new(answer.into_body().into_reader())))
    }

    #[track_caller]
    fn send(&self, path: &str, body: &Value) -> Response<Body> {
        let mut body = body.clone();
        body.as_object_mut().expect("a body is an object").entry("model").or_insert_with(|| json!(MODEL));
        let request = self.agent.post(self.url(path)).header("Content-Type", "application/json");
        request.send(body.to_string()).expect("the frontend answers")
    }

    /// The complete answer to a chat with one message; `more` is added to the request.
    #[track_caller]
    pub fn chat(&self, message: &str, more: &Value) -> Value {
        self.post("/v1/chat/completions", &chat_body(message, more)).ok()
    }

    /// Like [`Frontend::chat`], but streamed.
    #[track_caller]
    pub fn stream_chat(&self, message: &str, more: &Value) -> Streamed {
        Streamed::of(self.stream("/v1/chat/completions", &chat_body(message, more)))
    }

    /// The complete answer to a prompt, which is a text or tokens.
    #[track_caller]
    pub fn complete(&self, prompt: &Value, more: &Value) -> Value {
        self.post("/v1/completions", &with(json!({ "prompt": prompt }), more)).ok()
    }

    /// Like [`Frontend::complete`], but streamed.
    #[track_caller]
    pub fn stream_completion(&self, prompt: &Value, more: &Value) -> Streamed {
        Streamed::of(self.stream("/v1/completions", &with(json!({ "prompt": prompt }), more)))
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        if thread::panicking() {
            eprintln!("the frontend said:\n{}", self.log());
        }
    }
}

fn chat_body(message: &str, more: &Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": message}]}), more)
}

fn with(mut body: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().expect("what else a request says is an object") {
        body[key] = value.clone();
    }
    body
}

/// An answer that was not streamed.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The body, as JSON or else as text.
    pub body: Value,
}

impl Answer {
    fn of(answer: Response<Body>) -> Self {
        let status = answer.status().as_u16();
        let text = answer.into_body().read_to_string().expect("an answer is text");
        Self { status, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
    }

    /// The body of a successful answer.
    #[track_caller]
    #[must_use]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }
}

/// The events of a stream, as they arrive. The server must end the stream with `[DONE]`.
pub struct Events(BufReader<Box<dyn std::io::Read>>);

impl Iterator for Events {
    type Item = Value;

    /// # Panics
    /// The stream breaks off, or contains something else than events.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        loop {
            line.clear();
            let length = self.0.read_line(&mut line).expect("the stream goes on");
            assert!(length > 0, "the stream ended without saying so");
            match line.trim_end().strip_prefix("data: ") {
                Some("[DONE]") => return None,
                Some(event) => return Some(serde_json::from_str(event).expect("an event is JSON")),
                None => assert!(matches!(line.trim_end(), "") || line.starts_with(':'), "an odd line: {line}"),
            }
        }
    }
}

/// The complete content of a streamed answer.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// The output.
    pub text: String,
    /// The reason why the output ended.
    pub finish_reason: Option<String>,
    /// The token counts, if the request asked for them.
    pub usage: Value,
    /// All events.
    pub events: Vec<Value>,
}

impl Streamed {
    fn of(events: Events) -> Self {
        let events: Vec<Value> = events.collect();
        let choices = || events.iter().filter_map(|event| event["choices"].get(0));
        let part = |choice: &Value| choice["text"].as_str().or(choice["delta"]["content"].as_str()).map(str::to_owned);
        let text = choices().filter_map(part).collect();
        let finish_reason = choices().filter_map(|choice| choice["finish_reason"].as_str()).next_back();
        let usage = events.iter().map(|event| &event["usage"]).rfind(|usage| !usage.is_null());
        Self {
            text,
            finish_reason: finish_reason.map(str::to_owned),
            usage: usage.cloned().unwrap_or_default(),
            events,
        }
    }
}
