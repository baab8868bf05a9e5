//! The build itself.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{program, stream};
use crate::error::BuildError;
use crate::options::{Options, Route};
use crate::packages::{self, Package, Workspace};
use crate::python::is_python;
use crate::toolchain::{self, Toolchain};
use crate::{TARGET, component};

/// What a build is doing; each prints as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// Something is being downloaded.
    Fetching {
        /// What, in words.
        what: &'a str,
    },
    /// A compiler was found.
    Toolchain {
        /// The way it was found.
        route: Route,
    },
    /// Compiling begins.
    Compiling {
        /// The packages, separated by commas.
        packages: &'a str,
    },
    /// A line of the compiler's own output.
    Cargo {
        /// The line.
        line: &'a str,
    },
    /// A component lies ready.
    Built {
        /// The component.
        guest: &'a BuiltGuest,
    },
}

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetching { what } => write!(f, "fetching {what}"),
            Self::Toolchain { route } => write!(f, "compiler for {TARGET}: {route}"),
            Self::Compiling { packages } => write!(f, "compiling {packages}"),
            Self::Cargo { line } => f.write_str(line),
            Self::Built { guest } => {
                write!(f, "built {} ({} bytes)", guest.component.display(), guest.size_bytes)
            }
        }
    }
}

/// A component that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltGuest {
    /// Name of the package, and of the file without `.wasm`.
    pub name: String,
    /// The component's file.
    pub component: PathBuf,
    /// Size of that file in bytes.
    pub size_bytes: u64,
    /// SHA-256 of that file, in lower-case hexadecimal digits.
    pub digest: String,
    /// What it was compiled with, and how that was found: the name of a [`Route`],
    /// or a tool and its version. The bytes depend on it.
    pub toolchain: String,
}

/// Builds the guest crate in `dir` into `out_dir/NAME.wasm`.
///
/// # Errors
/// When `dir` is no guest crate, no compiler is to be had, or the crate does
/// not compile into a component.
pub fn build(
    dir: &Path,
    out_dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<BuiltGuest, BuildError> {
    let dir = &canonical(dir)?;
    let workspace = packages::workspace(dir)?;
    let package = workspace
        .packages
        .iter()
        .find(|package| package.manifest.parent() == Some(dir))
        .ok_or_else(|| BuildError::NotACrate { dir: dir.clone() })?;
    if !package.is_guest {
        return Err(BuildError::NotAGuest { package: package.name.clone() });
    }
    let mut built = build_packages(&workspace, &[package], out_dir, options, progress)?;
    built.pop().ok_or_else(|| BuildError::NotAGuest { package: package.name.clone() })
}

/// Builds every guest of the workspace in `guests_dir`, sorted by name, into
/// `out_dir`. Packages that are no guests are passed over.
///
/// # Errors
/// As [`build`], and when no package is a guest.
pub fn build_workspace(
    guests_dir: &Path,
    out_dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<BuiltGuest>, BuildError> {
    let dir = canonical(guests_dir)?;
    let workspace = packages::workspace(&dir)?;
    let mut guests: Vec<&Package> = workspace.packages.iter().filter(|package| package.is_guest).collect();
    guests.sort_by(|a, b| a.name.cmp(&b.name));
    if guests.is_empty() {
        return Err(BuildError::NoGuests { dir });
    }
    build_packages(&workspace, &guests, out_dir, options, progress)
}

/// Where the guest in `dir` goes unless somebody says otherwise: `dist` of the
/// workspace that it lies in, which may be the guest itself.
///
/// # Errors
/// When `dir` is no crate.
pub fn default_out_dir(dir: &Path) -> Result<PathBuf, BuildError> {
    let root = if is_python(dir) { dir.to_path_buf() } else { packages::workspace(&canonical(dir)?)?.root };
    Ok(root.join("dist"))
}

fn canonical(dir: &Path) -> Result<PathBuf, BuildError> {
    dir.canonicalize().map_err(|source| BuildError::Io { action: "read", path: dir.into(), source })
}

/// A run of cargo for each of `guests`: in one for all of them, what one guest
/// asks of a shared dependency would change the bytes of the others.
fn build_packages(
    workspace: &Workspace,
    guests: &[&Package],
    out_dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<BuiltGuest>, BuildError> {
    fs::create_dir_all(out_dir).map_err(|source| BuildError::Io { action: "create", path: out_dir.into(), source })?;
    let toolchain = toolchain::find(&workspace.root, options, progress)?;

    let mut built = Vec::with_capacity(guests.len());
    for guest in guests {
        progress(Progress::Compiling { packages: &guest.name });
        let mut cargo = cargo_build(workspace, &guest.name, &toolchain);
        let messages = stream(&mut cargo, |line| progress(Progress::Cargo { line })).map_err(|error| match error {
            BuildError::ProgramFailed { message, .. } => BuildError::Compile { messages: message },
            other => other,
        })?;
        let modules = packages::modules(&messages);
        let module = modules
            .iter()
            .find(|(manifest, _)| *manifest == guest.manifest)
            .map(|(_, module)| module)
            .ok_or_else(|| BuildError::NotAGuest { package: guest.name.clone() })?;
        let module =
            fs::read(module).map_err(|source| BuildError::Io { action: "read", path: module.clone(), source })?;
        let bytes = component::encode(&guest.name, &module)?;
        let path = out_dir.join(format!("{}.wasm", guest.name));
        component::write(&path, &bytes)?;
        let done = BuiltGuest {
            name: guest.name.clone(),
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

fn cargo_build(workspace: &Workspace, name: &str, toolchain: &Toolchain) -> Command {
    let mut cargo = program("cargo", &workspace.root);
    cargo
        .args(["build", "--release", "--lib", "--target", TARGET, "--package", name])
        .arg("--message-format=json-render-diagnostics")
        .args(&toolchain.args);

    // Settings meant for native builds would change a guest's bytes.
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

/// Flags that replace this machine's paths, which panic messages contain, so
/// that a guest has the same bytes wherever it is built.
fn remap_flags(workspace: &Workspace, toolchain: &Toolchain) -> OsString {
    let cargo_home =
        env::var_os("CARGO_HOME").or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo").into()));
    let around = workspace.root.parent().unwrap_or(&workspace.root);

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
