//! `vcr play` and `vcr record` as processes of their own.

use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{free_port, vcr};

/// Long enough for a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `vcr play` or `vcr record`, killed in the end. A test that fails
/// prints its log.
#[derive(Debug)]
pub struct Service {
    command: &'static str,
    process: Child,
    folder: TempDir,
}

impl Service {
    /// Starts engines that go to `handshake_address`.
    ///
    /// # Panics
    /// When there is no such binary.
    #[must_use]
    pub fn play(handshake_address: &str, args: &[&str]) -> Self {
        let own = ["--handshake-address", handshake_address, "--log-requests"];
        Self::start("play", &[&own[..], args].concat())
    }

    /// Starts a recorder between the frontend at `handshake_address` and engines
    /// that go to the other address, which is given back.
    ///
    /// # Panics
    /// When there is no such binary.
    #[must_use]
    pub fn record(handshake_address: &str, args: &[&str]) -> (Self, String) {
        let engines = format!("tcp://127.0.0.1:{}", free_port());
        let own = ["--frontend-handshake", handshake_address, "--engine-handshake", &engines];
        (Self::start("record", &[&own[..], args].concat()), engines)
    }

    fn start(command: &'static str, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let output = File::create(folder.path().join("log")).expect("a temporary folder is writable");
        let process = Command::new(vcr())
            .arg(command)
            .args(args)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a handle of a file"))
            .stderr(output)
            .spawn()
            .expect("the binary starts");
        Self { command, process, folder }
    }

    /// What it has printed.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until it has printed `text`, and gives the line.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(line) = self.log().lines().find(|line| line.contains(text)) {
                return line.to_owned();
            }
            assert!(Instant::now() < deadline, "`vcr {}` never said `{text}`", self.command);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    /// When there is no `kill` on this machine.
    pub fn terminate(&self) {
        let status = Command::new("kill").arg(self.process.id().to_string()).status().expect("there is `kill`");
        assert!(status.success(), "the process has ended before");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().expect("a process has a status") {
                return status;
            }
            assert!(Instant::now() < deadline, "`vcr {}` does not end", self.command);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        if thread::panicking() {
            eprintln!("vcr {} said:\n{}", self.command, self.log());
        }
    }
}
