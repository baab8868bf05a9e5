//! Builds one guest or a workspace of guests.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{Metadata, Package};

use crate::build::command::{program, stream};
use crate::build::error::BuildError;
use crate::build::javascript::{build_javascript, is_javascript};
use crate::build::naming;
use crate::build::options::Options;
use crate::build::packages;
use crate::build::progress::{BuiltGuest, Progress};
use crate::build::python::{build_python, is_python};
use crate::build::toolchain::Toolchain;
use crate::build::{TARGET, component, find};

/// Whether `dir` is a single guest in any language, as opposed to a workspace.
#[must_use]
pub fn is_one(dir: &Path) -> bool {
    is_python(dir) || is_javascript(dir) || dir.join("src").is_dir()
}

/// Builds the guest in `dir` into `out_dir/NAME.wasm`.
///
/// # Errors
/// When `dir` is not a guest, no compiler or tool is available, or the build fails.
pub fn build(
    dir: &Path,
    out_dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<BuiltGuest, BuildError> {
    if is_python(dir) {
        return build_python(dir, out_dir, options, progress);
    }
    if is_javascript(dir) {
        return build_javascript(dir, out_dir, options, progress);
    }
    let dir = &canonical(dir)?;
    let workspace = packages::workspace(dir)?;
    let package = workspace
        .packages
        .iter()
        .find(|package| package.manifest_path.as_std_path().parent() == Some(dir))
        .ok_or_else(|| BuildError::NotACrate { dir: dir.clone() })?;
    if !packages::is_guest(package) {
        return Err(BuildError::NotAGuest { package: package.name.to_string() });
    }
    let mut built = build_packages(&workspace, &[package], out_dir, options, progress)?;
    built.pop().ok_or_else(|| BuildError::NotAGuest { package: package.name.to_string() })
}

/// Builds every guest of the workspace in `guests_dir` into `out_dir`, sorted by name; skips other packages.
pub fn build_workspace(
    guests_dir: &Path,
    out_dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<BuiltGuest>, BuildError> {
    let dir = canonical(guests_dir)?;
    let workspace = packages::workspace(&dir)?;
    let mut guests: Vec<&Package> = workspace.packages.iter().filter(|package| packages::is_guest(package)).collect();
    guests.sort_by(|a, b| a.name.cmp(&b.name));
    if guests.is_empty() {
        return Err(BuildError::NoGuests { dir });
    }
    build_packages(&workspace, &guests, out_dir, options, progress)
}

/// Default output folder of the guest in `dir`: `dist` in its workspace. A single guest is its own workspace.
pub fn default_out_dir(dir: &Path) -> Result<PathBuf, BuildError> {
    if is_python(dir) || is_javascript(dir) {
        return Ok(dir.join("dist"));
    }
    let root: PathBuf = packages::workspace(&canonical(dir)?)?.workspace_root.into();
    Ok(root.join("dist"))
}

fn canonical(dir: &Path) -> Result<PathBuf, BuildError> {
    dir.canonicalize().map_err(|source| BuildError::Io { action: "read", path: dir.into(), source })
}

/// Runs cargo once per guest; in a common run, shared dependencies would get features that other guests enable.
fn build_packages(
    workspace: &Metadata,
    guests: &[&Package],
    out_dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<BuiltGuest>, BuildError> {
    fs::create_dir_all(out_dir).map_err(|source| BuildError::Io { action: "create", path: out_dir.into(), source })?;
    let place = |guest: &Package| out_dir.join(format!("{}.wasm", guest.name));
    guests.iter().try_for_each(|guest| component::check_place(&place(guest)))?;
    let toolchain = find::toolchain(workspace.workspace_root.as_std_path(), options, progress)?;

    let mut built = Vec::with_capacity(guests.len());
    for guest in guests {
        progress(Progress::Compiling { packages: &guest.name, with: "cargo" });
        let mut cargo = cargo_build(workspace, &guest.name, &toolchain);
        naming::by_package(&mut cargo, workspace.target_directory.as_std_path())?;
        let messages = stream(&mut cargo, |line| progress(Progress::Cargo { line })).map_err(|error| match error {
            BuildError::ProgramFailed { message, .. } => BuildError::Compile { messages: message },
            other => other,
        })?;
        let module = packages::module(&messages, guest.manifest_path.as_std_path())
            .ok_or_else(|| BuildError::NotAGuest { package: guest.name.to_string() })?;
        let module = fs::read(&module).map_err(|source| BuildError::Io { action: "read", path: module, source })?;
        let mut bytes = component::encode(&guest.name, &module)?;
        let folder = guest.manifest_path.parent().unwrap_or(&workspace.workspace_root);
        component::add_config_files(&mut bytes, folder.as_std_path())?;
        let path = place(guest);
        component::write(&path, &bytes)?;
        let done = BuiltGuest {
            name: guest.name.to_string(),
            component: path,
            size_bytes: bytes.len() as u64,
            digest: component::digest(&bytes),
            toolchain: toolchain.route.name().to_owned(),
        };
        progress(Progress::Built { guest: &done });
        built.push(done);
    }
    Ok(built)
}

fn cargo_build(workspace: &Metadata, name: &str, toolchain: &Toolchain) -> Command {
    let mut cargo = program("cargo", workspace.workspace_root.as_std_path());
    cargo
        .args(["build", "--release", "--lib", "--target", TARGET, "--package", name])
        .arg("--message-format=json-render-diagnostics")
        .args(&toolchain.args);

    // Settings for native builds would change a guest's bytes.
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PROFILE_") {
            cargo.env_remove(name);
        }
    }
    for name in ["RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", remap_flags(workspace, toolchain));
    cargo.envs(toolchain.env.iter().cloned());
    cargo
}

/// Flags that replace local paths in panic messages, so that a guest has the same bytes on every machine.
fn remap_flags(workspace: &Metadata, toolchain: &Toolchain) -> OsString {
    let cargo_home =
        env::var_os("CARGO_HOME").or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo").into()));
    let around = workspace.workspace_root.parent().unwrap_or(&workspace.workspace_root).as_std_path();

    let mut flags = OsString::new();
    let mut remap = |from: &Path, to: &str| {
        if !flags.is_empty() {
            flags.push("\u{1f}");
        }
        flags.push("--remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    };
    remap(around, "/guest");
    if let Some(home) = &cargo_home {
        remap(Path::new(home), "/cargo");
    }
    remap(&toolchain.library_source, "/rust");
    flags
}
