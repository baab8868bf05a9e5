//! `--on`: runs sweeps as tasks of a Ray cluster, through the Python package.
//!
//! A Python process distributes the points and stores their results in a file with the format of a shard. The results
//! are then treated like those of this process. Plans use a different process.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use clap::Args;

use super::part::Part;
use crate::exit::Exit;
use crate::refusal::Refusal;

/// Name of the file of results in `python/vcr/_results.py`.
const RESULTS: &str = "results.shard";

/// The Python interpreter that has the package. The package's console script sets it.
const PYTHON_VARIABLE: &str = "VCR_PYTHON";

/// The hint if the Python package is missing.
const HINT: &str = "install the Python package (python/build.sh --install) and pip install 'ray[client]', or name an \
                    interpreter that has both in VCR_PYTHON";

/// Options of sweeps that a cluster runs.
#[derive(Clone, Debug, Args)]
pub(crate) struct RayArgs {
    /// Run the points as tasks of a Ray cluster, such as ray://head:10001, or `auto`; needs the Python package
    /// with Ray.
    #[arg(long, value_name = "ADDRESS", requires = "sweeps", conflicts_with = "shard")]
    pub(crate) on: Option<String>,

    /// Folder for the results of --on; an interrupted sweep continues from it.
    #[arg(long, value_name = "DIR", requires = "on")]
    pub(crate) results: Option<PathBuf>,
}

impl RayArgs {
    /// The results of a sweep on a cluster; none without `--on`.
    pub(crate) fn execute(&self, words: &[OsString]) -> Result<Option<Part>, Refusal> {
        let Some(address) = &self.on else { return Ok(None) };
        let temporary = tempfile::tempdir()
            .map_err(|error| Refusal::input(format!("--on {address}: cannot make a temporary folder: {error}")))?;
        let folder = self.results.as_deref().unwrap_or(temporary.path());
        run(address, folder, words)?;
        Part::read(&folder.join(RESULTS)).map(Some).map_err(Refusal::input)
    }
}

fn run(address: &str, folder: &Path, words: &[OsString]) -> Result<(), Refusal> {
    let mut command = module(address);
    command.arg("--results").arg(folder).arg("--").args(words.iter().skip(1));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(ended(address, "sweep", status)),
        Err(error) => Err(not_started(address, &error)),
    }
}

fn python() -> OsString {
    std::env::var_os(PYTHON_VARIABLE).unwrap_or_else(|| "python3".into())
}

/// The command that starts the package's module for a cluster.
pub(crate) fn module(address: &str) -> Command {
    let mut command = Command::new(python());
    command.args(["-m", "vcr.ray", "--address", address]);
    command
}

/// The error if there is no Python interpreter.
pub(crate) fn not_started(address: &str, error: &std::io::Error) -> Refusal {
    let python = python();
    Refusal::input(format!("--on {address}: cannot start {}: {error}", python.display())).hint(HINT)
}

/// The error if the module ended early. The module has explained why, unless Python itself failed.
pub(crate) fn ended(address: &str, work: &str, status: ExitStatus) -> Refusal {
    let (exit, is_told) = match status.code() {
        Some(130) | None => (Exit::Interrupted, true),
        Some(3) => (Exit::Fault, true),
        Some(2) => (Exit::BadInput, true),
        // An error of Python itself, for example that the module is missing.
        Some(_) => (Exit::BadInput, false),
    };
    let refusal = Refusal { exit, ..Refusal::input(format!("--on {address}: the {work} came to no end")) };
    if is_told { refusal } else { refusal.hint(HINT) }
}
