//! vLLM's own frontend, started and stopped by the run.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vcr_cluster::{AdapterNames, FrontendTarget, HttpTarget, TargetError};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const MODEL: &str = "sim";
/// Number of lines of the log that an error shows.
const LOG_TAIL_LINES: usize = 8;

/// A running frontend. It is killed on drop.
pub(crate) struct Frontend {
    process: Child,
    http_port: u16,
    handshake_port: u16,
    folder: TempDir,
}

impl Frontend {
    /// Starts the frontend with these LoRA adapters. It then waits for engines.
    pub(crate) fn start(target: &FrontendTarget, engines: u32, adapters: &BTreeSet<u32>) -> Result<Self, TargetError> {
        if !Path::new(&target.model).join("tokenizer.json").exists() {
            let message = format!("invalid `model` `{}`: expected a folder with a tokenizer.json", target.model);
            return Err(TargetError::unusable(message));
        }
        let failed = |error: std::io::Error| TargetError::Failed(format!("cannot start the frontend: {error}"));
        let folder = tempfile::tempdir().map_err(failed)?;
        let log = File::create(folder.path().join("log")).map_err(failed)?;
        let (http_port, handshake_port) = (free_port().map_err(failed)?, free_port().map_err(failed)?);
        let process = Command::new(&target.binary)
            .arg("serve")
            .arg(&target.model)
            .args(["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", &http_port.to_string()])
            .args(["--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", &handshake_port.to_string()])
            .args(["--data-parallel-size", &engines.to_string(), "--data-parallel-size-local", "0"])
            .args(adapter_args(adapters))
            .args(&target.args)
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .spawn()
            .map_err(|error| {
                let message = format!("cannot start `{}`: {error}", target.binary);
                TargetError::with_hint(message, "`binary` is the program vllm-rs of a release of vLLM")
            })?;
        Ok(Self { process, http_port, handshake_port, folder })
    }

    /// The address to which engines send HELLO.
    pub(crate) fn handshake_address(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.handshake_port)
    }

    /// The frontend as an HTTP target.
    pub(crate) fn target(&self) -> HttpTarget {
        HttpTarget {
            url: format!("http://127.0.0.1:{}", self.http_port),
            model: Some(MODEL.to_owned()),
            ..HttpTarget::default()
        }
    }

    /// Returns an error if the frontend has exited, or does not serve within [`START_TIMEOUT`].
    pub(crate) fn check_start(&mut self, since: Instant) -> Result<(), TargetError> {
        let ended = self.process.try_wait().ok().flatten();
        let problem = match ended {
            Some(status) => format!("the frontend ended: {status}"),
            None if since.elapsed() > START_TIMEOUT => {
                format!("the frontend does not serve after {} s", START_TIMEOUT.as_secs())
            }
            None => return Ok(()),
        };
        Err(TargetError::Failed(format!("{problem}{}", self.log_tail())))
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.lines().rev().take(LOG_TAIL_LINES).collect();
        lines.into_iter().rev().map(|line| format!("\n  {line}")).collect()
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        // The process may have exited already.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// The arguments that register LoRA adapters, if there are any.
fn adapter_args(adapters: &BTreeSet<u32>) -> Vec<String> {
    let names = AdapterNames::default();
    let modules = adapters.iter().filter_map(|number| names.name(*number)).map(|name| format!("{name}={name}"));
    if adapters.is_empty() {
        return Vec::new();
    }
    ["--enable-lora", "--lora-modules"].map(str::to_owned).into_iter().chain(modules).collect()
}

/// Finds a free port. Another program may take it before it is used.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
