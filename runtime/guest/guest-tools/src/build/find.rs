//! Finds or downloads a compiler for wasm32.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::build::command::{output, output_within, program};
use crate::build::error::BuildError;
use crate::build::options::Options;
use crate::build::progress::Progress;
use crate::build::route::Route;
use crate::build::toolchain::{Toolchain, build_std_args, no_way, sysroot, unstable};
use crate::build::{TARGET, debian};

/// Time limit of `rustup`, in case its server does not answer.
const RUSTUP_LIMIT: Duration = Duration::from_secs(120);

/// Uses the first method that works in `dir`; rustup's overrides depend on the directory.
pub(crate) fn toolchain(
    dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Toolchain, BuildError> {
    let routes = options.route.map_or_else(|| Route::ALL.to_vec(), |route| vec![route]);
    let mut attempts = Vec::new();
    for route in routes {
        let found = match route {
            Route::Installed => installed(dir),
            Route::Rustup => add_by_rustup(dir, progress),
            Route::RustSrc => rust_src(dir),
            Route::Debian => debian::toolchain(dir, options, progress),
        };
        match found {
            Ok(toolchain) => {
                progress(Progress::Toolchain { route });
                return Ok(toolchain);
            }
            // Every method needs rustc and cargo.
            Err(error @ BuildError::ProgramMissing { .. }) if is_rust_missing(&error) => {
                return Err(error);
            }
            Err(error) => attempts.push((route, reason(&error))),
        }
    }
    Err(BuildError::NoToolchain { attempts })
}

fn is_rust_missing(error: &BuildError) -> bool {
    matches!(error, BuildError::ProgramMissing { program } if program == "rustc" || program == "cargo")
}

/// A one-line reason of a failed attempt.
fn reason(error: &BuildError) -> String {
    match error {
        BuildError::NoToolchain { attempts } => attempts.iter().map(|(_, reason)| reason.as_str()).collect(),
        other => other.to_string().replace('\n', " "),
    }
}

fn installed(dir: &Path) -> Result<Toolchain, BuildError> {
    let libdir = output(program("rustc", dir).args(["--print", "target-libdir", "--target", TARGET]))?;
    let has_core = fs::read_dir(libdir.trim()).is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("libcore-")))
    });
    if !has_core {
        return Err(no_way(Route::Installed, "the current toolchain has no library for it"));
    }
    Ok(Toolchain {
        route: Route::Installed,
        args: Vec::new(),
        env: Vec::new(),
        library_source: library_source(&sysroot(dir)?),
    })
}

fn add_by_rustup(dir: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Toolchain, BuildError> {
    progress(Progress::Fetching { what: "the wasm32 library with rustup" });
    output_within(program("rustup", dir).args(["target", "add", TARGET]), RUSTUP_LIMIT)?;
    Ok(Toolchain { route: Route::Rustup, ..installed(dir)? })
}

fn rust_src(dir: &Path) -> Result<Toolchain, BuildError> {
    let source = library_source(&sysroot(dir)?);
    if !source.join("library/Cargo.toml").exists() {
        return Err(no_way(Route::RustSrc, "the current toolchain has no component `rust-src`"));
    }
    Ok(Toolchain { route: Route::RustSrc, args: build_std_args(), env: vec![unstable()], library_source: source })
}

fn library_source(sysroot: &Path) -> PathBuf {
    sysroot.join("lib/rustlib/src/rust")
}
