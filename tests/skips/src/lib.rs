//! Checks that cannot run on this machine, because data, guests or frontends are missing.
//!
//! In CI (`CI=true`) a skipped check is a failure, unless it is optional. Elsewhere the reason is written to
//! standard error, which test runners hide, and to a file in `target/skipped`. `tests/skipped.sh` sums up these
//! files at the end of the README's test command.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Whether nothing may be skipped.
#[must_use]
pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Reports that a check cannot run here.
///
/// # Panics
/// The tests run in CI.
#[track_caller]
pub fn skip(reason: &str) {
    skip_for(reason, reason);
}

/// Reports that a check cannot run here. The summary counts it under `want`.
#[track_caller]
fn skip_for(want: &str, reason: &str) {
    assert!(!is_ci(), "nothing may be skipped in CI: {reason}");
    eprintln!("SKIPPED: {reason}");
    note(want);
}

/// Skips a check because an optional dependency is missing, such as a package with another license. Not a failure
/// in CI either.
pub fn skip_optional(reason: &str) {
    eprintln!("SKIPPED: {reason}");
    note(reason);
}

/// Returns `path` if it exists; otherwise skips the check. `hint` explains how to get the file.
///
/// # Panics
/// The file is missing in CI.
#[track_caller]
#[must_use]
pub fn existing(path: PathBuf, hint: &str) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    skip_for(hint, &format!("{} is missing: {hint}", path.display()));
    None
}

/// A file or folder of the sample data next to the repository, `../shared/data`.
///
/// # Panics
/// The file or folder is missing in CI.
#[track_caller]
#[must_use]
pub fn sample(relative: &str) -> Option<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    existing(data.join(relative), "the sample data lies beside the repository, in ../shared/data")
}

/// Adds a line to this process's file of skipped checks.
fn note(reason: &str) {
    let Some(folder) = target().map(|target| target.join("skipped")) else { return };
    let file = folder.join(std::process::id().to_string());
    // One write per line, because the tests of a process may run at the same time.
    let line = format!("{}\n", reason.lines().next().unwrap_or_default());
    // If the folder is not writable, only the summary lacks a line.
    let _ = fs::create_dir_all(folder)
        .and_then(|()| fs::OpenOptions::new().create(true).append(true).open(file))
        .and_then(|mut file| file.write_all(line.as_bytes()));
}

/// The target folder; test binaries are in its `PROFILE/deps`.
fn target() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    test.ancestors().nth(3).map(Path::to_owned)
}
