//! Runs the binary in a temporary folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::vcr;

/// Names of the files that `vcr run --out` writes by default, including its marker.
pub const DEFAULT_FILES: [&str; 10] = [
    ".vcr-run",
    "charts.json",
    "junit.xml",
    "openmetrics.txt",
    "report.html",
    "report.json",
    "requests.jsonl",
    "steps.jsonl",
    "summary.md",
    "trace.json",
];

/// A temporary folder with scenarios and their inputs.
pub struct Folder(TempDir);

/// Output of a command.
#[derive(Debug)]
pub struct Said {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    /// An empty folder.
    ///
    /// # Panics
    /// There is no temporary folder.
    #[must_use]
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    /// A folder with one scenario, `test.rhai`.
    #[must_use]
    pub fn with(scenario: &str) -> Self {
        let folder = Self::new();
        folder.write("test.rhai", scenario);
        folder
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file and returns its path.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, contents).expect("a temporary folder is writable");
        path
    }

    /// Runs `vcr` in the folder.
    ///
    /// # Panics
    /// The command panics, is killed, or prints something that is not UTF-8.
    #[track_caller]
    #[must_use]
    pub fn vcr(&self, args: &[&str]) -> Said {
        let mut command = Command::new(vcr());
        command.args(args).current_dir(self.path());
        for name in ["VCR_GUEST_TOOLCHAIN", "VCR_CACHE_DIR", "VCR_TABLES", "CLICOLOR_FORCE", "COLUMNS"] {
            command.env_remove(name);
        }
        Said::of(&mut command)
    }

    /// Runs `test.rhai` with further arguments.
    #[track_caller]
    #[must_use]
    pub fn run(&self, args: &[&str]) -> Said {
        self.vcr(&[&["run", "test.rhai"], args].concat())
    }
}

impl Said {
    /// Runs a command to its end.
    ///
    /// # Panics
    /// The command panics, is killed, or prints something that is not UTF-8.
    #[track_caller]
    pub fn of(command: &mut Command) -> Self {
        let output = command.output().expect("the command starts");
        let text = |bytes| String::from_utf8(bytes).expect("all output is text");
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        let code = output.status.code();
        let code = code.unwrap_or_else(|| panic!("the command was killed: {}\n{stderr}", output.status));
        // Whatever the input, a panic is a bug.
        assert!(!stderr.contains("panicked at"), "the command panicked:\n{stderr}");
        Self { code, stdout, stderr }
    }

    /// Checks the exit code.
    #[track_caller]
    #[must_use]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Checks that the command failed with this code, and that standard error contains these texts. With `--json`,
    /// the result must be the error.
    #[track_caller]
    pub fn failed(self, code: i32, needles: &[&str]) {
        let said = self.ended(code);
        let error = serde_json::from_str::<Value>(&said.stdout).ok().filter(|failed| failed["passed"] == false);
        let is_error = said.stdout.is_empty() || error.is_some_and(|failed| failed["error"].is_string());
        assert!(is_error, "an error prints no results: {}", said.stdout);
        assert!(said.stderr.starts_with("error: "), "{}", said.stderr);
        for needle in needles {
            assert!(said.stderr.contains(needle), "`{needle}` is not in:\n{}", said.stderr);
        }
    }

    /// The results of `--json`.
    ///
    /// # Panics
    /// The results are not JSON.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in:\n{}", self.stdout))
    }
}
