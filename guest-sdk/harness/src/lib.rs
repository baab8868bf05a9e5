//! Runs a guest in the real host from the guest's own `cargo test`.
//!
//! The host is the program `vcr`. The variable `VCR` names it; otherwise it is searched on the `PATH`. If there is no
//! `vcr`, [`Host::find`] prints a message so that the test can skip. With `CI=true` it panics instead.
//!
//! ```no_run
//! use vcr_guest_harness::Host;
//!
//! let Some(host) = Host::find() else { return };
//! let guest = host.build(env!("CARGO_MANIFEST_DIR")).expect("it builds");
//! let report = guest.check(r#"{"ns_per_token": 20000}"#, 7).expect("it can be checked");
//! report.assert_passed();
//! assert!(report.call("price-step").expect("steps were priced").fuel_mean < 2_000.0);
//! ```

mod error;
mod report;

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub use error::HarnessError;
pub use report::{CallCost, Check, Report, Used};

const PROGRAM_VARIABLE: &str = "VCR";

/// The program that builds and runs guests.
#[derive(Clone, Debug)]
pub struct Host {
    program: PathBuf,
}

impl Host {
    /// Finds `vcr` on this machine. If there is none, prints a message to standard error and returns none.
    ///
    /// # Panics
    /// When there is no `vcr` and the variable `CI` is `true`.
    #[must_use]
    #[track_caller]
    pub fn find() -> Option<Self> {
        let named = env::var_os(PROGRAM_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let program = named.or_else(on_path).filter(|program| program.is_file());
        if program.is_none() {
            let reason = "no `vcr`: name the program in the variable `VCR`, or put it on the PATH";
            assert!(env::var("CI").as_deref() != Ok("true"), "nothing may be skipped in CI: {reason}");
            eprintln!("SKIPPED: {reason}");
        }
        program.map(|program| Self { program })
    }

    /// Uses the host program at this path.
    #[must_use]
    pub fn of_program(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }

    /// Builds the guest in a folder, into its folder `dist`.
    ///
    /// # Errors
    /// When the guest does not build; the error has the compiler's output.
    pub fn build(&self, folder: impl AsRef<Path>) -> Result<Guest, HarnessError> {
        let arguments = ["guest".as_ref(), "build".as_ref(), "--quiet".as_ref(), "--json".as_ref()];
        let output = self.run(&[&arguments[..], &[folder.as_ref().as_os_str()]].concat())?;
        if !output.status.success() {
            return Err(failed("build", &output));
        }
        let built: Vec<report::Built> = read("build", &output)?;
        let [built] = &built[..] else {
            return Err(HarnessError::SeveralGuests { folder: folder.as_ref().into(), guests: built.len() });
        };
        Ok(self.guest(&built.component))
    }

    /// Uses a component that is already built.
    #[must_use]
    pub fn guest(&self, component: impl Into<PathBuf>) -> Guest {
        Guest { host: self.clone(), component: component.into() }
    }

    fn run(&self, arguments: &[&OsStr]) -> Result<Output, HarnessError> {
        let run = Command::new(&self.program).args(arguments).output();
        run.map_err(|source| HarnessError::NoHost { program: self.program.clone(), source })
    }
}

/// A component, and the host that runs it.
#[derive(Clone, Debug)]
pub struct Guest {
    host: Host,
    component: PathBuf,
}

impl Guest {
    /// Path of the component.
    #[must_use]
    pub fn component(&self) -> &Path {
        &self.component
    }

    /// Runs `vcr guest check` on the guest. The report lists failed checks.
    ///
    /// # Errors
    /// When the guest cannot be loaded, refuses the config or fails while it configures itself. The error has the
    /// output of `vcr`.
    pub fn check(&self, config_json: &str, seed: u64) -> Result<Report, HarnessError> {
        let seed = seed.to_string();
        let arguments = ["guest", "check", "--json", "--config", config_json, "--seed", &seed].map(OsStr::new);
        let output = self.host.run(&[&arguments[..], &[self.component.as_os_str()]].concat())?;
        // A failed check sets the exit code too, and its report is complete.
        if output.stdout.is_empty() {
            return Err(failed("check", &output));
        }
        read("check", &output)
    }
}

fn on_path() -> Option<PathBuf> {
    let name = Path::new("vcr").with_extension(env::consts::EXE_EXTENSION);
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(&name)).find(|program| program.is_file())
}

fn failed(command: &'static str, output: &Output) -> HarnessError {
    let message = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    HarnessError::Failed { command, code: output.status.code(), message }
}

fn read<'a, T: serde::Deserialize<'a>>(command: &'static str, output: &'a Output) -> Result<T, HarnessError> {
    serde_json::from_slice(&output.stdout).map_err(|source| HarnessError::BadAnswer { command, source })
}
