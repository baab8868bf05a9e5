//! A compiler for wasm32, and helpers of all routes.

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
    /// Path of the library's source, to be removed from the guest's bytes.
    pub(crate) library_source: PathBuf,
}

/// The error of a route that does not apply here.
pub(crate) fn no_way(route: Route, reason: impl Into<String>) -> BuildError {
    BuildError::NoToolchain { attempts: vec![(route, reason.into())] }
}

/// Compiles the library together with the guest.
pub(crate) fn build_std_args() -> Vec<OsString> {
    vec!["-Zbuild-std=core,alloc".into()]
}

/// Lets a stable toolchain compile its own library.
pub(crate) fn unstable() -> (OsString, OsString) {
    ("RUSTC_BOOTSTRAP".into(), "1".into())
}

pub(crate) fn sysroot(dir: &Path) -> Result<PathBuf, BuildError> {
    Ok(output(program("rustc", dir).args(["--print", "sysroot"]))?.trim().into())
}
