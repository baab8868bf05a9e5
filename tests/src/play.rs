//! `vcr play` as a process of its own.

use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::vcr;

/// Long enough for a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `vcr play`, killed in the end. A test that fails prints its log.
#[derive(Debug)]
pub struct Play {
    process: Child,
    folder: TempDir,
}

impl Play {
    /// Starts engines that go to `handshake_address`.
    ///
    /// # Panics
    /// When there is no such binary.
    #[must_use]
    pub fn start(handshake_address: &str, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let output = File::create(folder.path().join("log")).expect("a temporary folder is writable");
        let process = Command::new(vcr())
            .args(["play", "--handshake-address", handshake_address, "--log-requests"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a handle of a file"))
            .stderr(output)
            .spawn()
            .expect("the binary starts");
        Self { process, folder }
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
            assert!(Instant::now() < deadline, "`vcr play` never said `{text}`");
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
            assert!(Instant::now() < deadline, "`vcr play` does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Play {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        if thread::panicking() {
            eprintln!("vcr play said:\n{}", self.log());
        }
    }
}
