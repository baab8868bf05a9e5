//! Python programs that stand in for third-party software.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::{fetched, root};

/// The folder of the packages that Python programs of tests need.
#[derive(Clone, Debug)]
pub struct PythonPackages(PathBuf);

/// The packages that `tests/frontends/fetch.sh` has fetched. `None`, with a message, if they are missing.
#[must_use]
pub fn python_packages() -> Option<PythonPackages> {
    fetched("python").map(PythonPackages)
}

/// The packages of a gRPC client. `None`, with a message, if they are missing.
#[must_use]
pub fn grpc_packages() -> Option<PythonPackages> {
    fetched("python-grpc").map(PythonPackages)
}

/// A running program that prints JSON lines; killed on drop.
#[derive(Debug)]
pub struct Program {
    process: Child,
    folder: TempDir,
}

impl PythonPackages {
    /// Starts a Python program of this repository.
    ///
    /// # Panics
    /// There is no Python.
    #[must_use]
    pub fn run(&self, program: &str, args: &[&str]) -> Program {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let create = |name: &str| File::create(folder.path().join(name)).expect("a temporary folder is writable");
        let process = Command::new("python3")
            .arg(root().join(program))
            .args(args)
            .env("PYTHONPATH", &self.0)
            .stdin(Stdio::null())
            .stdout(create("lines"))
            .stderr(create("errors"))
            .spawn()
            .expect("there is a python3");
        Program { process, folder }
    }
}

impl Program {
    /// The complete lines of its output so far.
    ///
    /// # Panics
    /// The program has ended, or has printed something else.
    #[track_caller]
    pub fn lines(&mut self) -> Vec<Value> {
        let read = |name: &str| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        let status = self.process.try_wait().expect("a process has a status");
        assert!(status.is_none(), "the program ended: {}", read("errors"));
        let text = read("lines");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
