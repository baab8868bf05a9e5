//! Checks that cannot run on this machine, for want of data, guests or frontends.
//!
//! In CI (`CI=true`) that is a failure, except for optional checks. Elsewhere the reason goes to
//! standard error, which test runners hide, and to a file below `target/skipped`, which
//! `tests/skipped.sh` sums up at the end of the README's test command.

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
/// In CI.
#[track_caller]
pub fn skip(reason: &str) {
    skip_for(reason, reason);
}

/// Reports that a check cannot run here; the summary counts it under `want`.
#[track_caller]
fn skip_for(want: &str, reason: &str) {
    assert!(!is_ci(), "nothing may be skipped in CI: {reason}");
    eprintln!("SKIPPED: {reason}");
    note(want);
}

/// Skips a check because an optional dependency is missing, such as a package under another
/// license: not a failure in CI, either.
pub fn skip_optional(reason: &str) {
    eprintln!("SKIPPED: {reason}");
    note(reason);
}

/// `path`, if it exists; otherwise the check is skipped. `hint` explains how to get it.
///
/// # Panics
/// In CI.
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
/// In CI, if it is missing.
#[track_caller]
#[must_use]
pub fn sample(relative: &str) -> Option<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    existing(data.join(relative), "the sample data lies beside the repository, in ../shared/data")
}

/// Adds a line to the file of this process.
fn note(reason: &str) {
    let Some(folder) = target().map(|target| target.join("skipped")) else { return };
    let file = folder.join(std::process::id().to_string());
    // One write for each line: the tests of a process may run at the same time.
    let line = format!("{}\n", reason.lines().next().unwrap_or_default());
    // The summary is a courtesy: a folder that cannot be written costs a line of it.
    let _ = fs::create_dir_all(folder)
        .and_then(|()| fs::OpenOptions::new().create(true).append(true).open(file))
        .and_then(|mut file| file.write_all(line.as_bytes()));
}

/// The target folder: test binaries are in its `PROFILE/deps`.
fn target() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    test.ancestors().nth(3).map(Path::to_owned)
}
