//! vLLM's own render server, which has no engine.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::Agent;

use crate::frontend::{fetched, free_port};

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `vllm-rs render`, which is killed on drop.
#[derive(Debug)]
pub struct Renderer {
    process: Child,
    port: u16,
    agent: Agent,
}

impl Renderer {
    /// Starts a release's renderer, for the model of [`crate::frontend_model`] with the name `sim`. `None`, with a
    /// message, if it has not been fetched.
    ///
    /// # Panics
    /// The renderer does not serve; in CI, also if it has not been fetched.
    #[must_use]
    pub fn start(version: &str) -> Option<Self> {
        let (binary, model) = (fetched(&format!("{version}/vllm-rs"))?, fetched("model")?);
        let port = free_port();
        let process = Command::new(binary)
            .arg("render")
            .arg(model)
            .args(["--served-model-name", "sim", "--port", &port.to_string()])
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let agent = Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build().into();
        let renderer = Self { process, port, agent };
        let deadline = Instant::now() + PATIENCE;
        while renderer.agent.get(renderer.url("/health")).call().is_err() {
            assert!(Instant::now() < deadline, "the renderer does not serve");
            thread::sleep(Duration::from_millis(20));
        }
        Some(renderer)
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Posts JSON, and returns status and body of the answer.
    ///
    /// # Panics
    /// No answer comes.
    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = self.agent.post(self.url(path)).header("Content-Type", "application/json");
        let answer = request.send(body.to_string()).expect("it answers");
        let status = answer.status().as_u16();
        let text = answer.into_body().read_to_string().expect("an answer is text");
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }
}

impl Drop for Renderer {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
