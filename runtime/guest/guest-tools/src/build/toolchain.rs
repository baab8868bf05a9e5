//! A compiler for wasm32, and the common parts of all ways to obtain one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::build::command::{output, program};
use crate::build::error::BuildError;
use crate::build::route::Route;

/// Arguments and environment for `cargo build` to compile to wasm32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toolchain {
    pub(crate) route: Route,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    /// The path of the library's source, to be kept out of the guest's bytes.
    pub(crate) library_source: PathBuf,
}

/// A route that does not work, for a reason other than a failed program.
pub(crate) fn no_way(route: Route, reason: impl Into<String>) -> BuildError {
    BuildError::NoToolchain { attempts: vec![(route, reason.into())] }
}

/// Compiles the library along with the guest.
pub(crate) fn build_std_args() -> Vec<OsString> {
    vec!["-Zbuild-std=core,alloc".into()]
}

/// Lets a stable cargo and compiler build their own library.
pub(crate) fn unstable() -> (OsString, OsString) {
    ("RUSTC_BOOTSTRAP".into(), "1".into())
}

/// The current toolchain's own directory.
pub(crate) fn sysroot(dir: &Path) -> Result<PathBuf, BuildError> {
    Ok(output(program("rustc", dir).args(["--print", "sysroot"]))?.trim().into())
}
