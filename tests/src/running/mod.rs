//! Commands of `vcr` that run until they are stopped.

pub(super) mod play;
pub(super) mod record;
pub(super) mod serve;

use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tempfile::TempDir;

use crate::vcr;

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running command, which is killed on drop. A failed test prints its log.
#[derive(Debug)]
pub struct Running {
    process: Child,
    command: String,
    folder: TempDir,
}

impl Running {
    /// Starts `vcr` with these arguments.
    ///
    /// # Panics
    /// There is no such binary.
    #[must_use]
    pub fn start(args: &[&str]) -> Self {
        Self::start_with(&[], args)
    }

    /// Starts `vcr` with these environment variables and arguments.
    pub(crate) fn start_with(variables: &[(&str, &str)], args: &[&str]) -> Self {
        let mut command = Command::new(vcr());
        command.args(args).envs(variables.iter().copied());
        Self::of(&format!("vcr {}", args[0]), command)
    }

    /// Starts a third-party program, which tests call `name`.
    ///
    /// # Panics
    /// There is no such program.
    #[must_use]
    pub fn of(name: &str, mut command: Command) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let output = File::create(folder.path().join("log")).expect("a temporary folder is writable");
        command.stdin(Stdio::null()).stdout(output.try_clone().expect("a handle of a file")).stderr(output);
        let process = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { process, command: name.to_owned(), folder }
    }

    /// Limits the number of descriptors that the process may open.
    ///
    /// # Panics
    /// The process has ended.
    pub fn limit_descriptors(&self, most: u64) {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        prlimit(Some(Pid::from_child(&self.process)), Resource::Nofile, limit).expect("a running process has limits");
    }

    /// The process's output so far.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the process has printed `text`, and returns the line.
    ///
    /// # Panics
    /// The text does not come in time.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(line) = self.log().lines().find(|line| line.contains(text)) {
                return line.to_owned();
            }
            assert!(Instant::now() < deadline, "`{}` never said `{text}`", self.command);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Peak memory of the process, in bytes.
    ///
    /// # Panics
    /// The system does not report it; Linux does.
    #[must_use]
    pub fn peak_memory_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(path).expect("a process has a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has a peak");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib << 10
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    /// There is no `kill` on this machine, or the process has ended.
    pub fn terminate(&self) {
        let status = Command::new("kill").arg(self.process.id().to_string()).status().expect("there is `kill`");
        assert!(status.success(), "the process has ended before");
    }

    /// Sends SIGKILL and waits for the end.
    ///
    /// # Panics
    /// The process has ended already.
    pub fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.wait();
    }

    /// Waits until the process ends.
    ///
    /// # Panics
    /// The process does not end in time.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().expect("a process has a status") {
                return status;
            }
            assert!(Instant::now() < deadline, "`{}` does not end", self.command);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        if thread::panicking() {
            eprintln!("{} said:\n{}", self.command, self.log());
        }
    }
}

/// Waits until `is_true` returns `true`.
///
/// # Panics
/// It does not become true in time; the message contains `what`.
#[track_caller]
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}
