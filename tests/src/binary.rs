//! The binary under test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::root;

/// The `vcr` binary of this checkout, built if necessary.
///
/// Cargo passes tests only the binaries of their own package, so this one is looked for beside the test itself.
/// Test runners start a process for each test, so the check for a stale binary must be cheap: it reads the list of
/// sources that cargo leaves beside the binary, and calls cargo only if a source is newer.
///
/// # Panics
/// The binary does not build.
#[must_use]
pub fn vcr() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let binary = profile_dir().join("vcr").with_extension(std::env::consts::EXE_EXTENSION);
        let _lock = lock("binary");
        if !is_fresh(&binary) {
            build();
        }
        assert!(binary.exists(), "cargo built `vcr`, but not as {}", binary.display());
        binary
    })
}

/// The folder in which cargo puts binaries, such as `target/release`.
fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    let deps = test.parent().expect("the file lies in a folder");
    deps.parent().expect("tests lie in `deps` of the profile's folder").to_owned()
}

/// A folder for files that tests share, beside the profile's folder.
///
/// # Panics
/// The folder cannot be made.
#[must_use]
pub fn scratch_dir() -> PathBuf {
    let dir = profile_dir().with_file_name("vcr-tests");
    fs::create_dir_all(&dir).expect("the target folder is writable");
    dir
}

/// A lock, so that concurrent tests build a thing only once.
pub(crate) fn lock(what: &str) -> File {
    let file = File::create(scratch_dir().join(format!("{what}.lock"))).expect("the target folder is writable");
    file.lock().expect("files can be locked");
    file
}

pub(crate) fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn is_fresh(binary: &Path) -> bool {
    let (Some(built), Ok(list)) = (modified(binary), fs::read_to_string(binary.with_extension("d"))) else {
        return false;
    };
    let sources = || list.split_whitespace().skip(1).map(Path::new);
    // Several checkouts may share a target folder.
    let is_ours = sources().any(|source| source == root().join("runtime/app/cli/src/main.rs"));
    // A binary without the optional features lacks most features under test.
    let is_full = sources().any(|source| source == root().join("runtime/live/live/src/lib.rs"));
    is_ours && is_full && sources().all(|source| modified(source).is_some_and(|changed| changed <= built))
}

fn build() {
    let target = profile_dir().parent().expect("the profile's folder lies in the target's").to_owned();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // Cargo's variables about a test's package would make the build scripts of other packages run again, and
    // rebuild a third of the dependencies.
    let of_this_test = |name: &str| {
        let is_any = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        is_any(&["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"]) || name == "OUT_DIR"
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_this_test)) {
        command.env_remove(name);
    }
    let status = command
        .args(["build", "--release", "--package", "vcr", "--features", "full"])
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target)
        .status()
        .expect("cargo starts");
    assert!(status.success(), "`vcr` does not build");
}
