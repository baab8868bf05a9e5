//! Programs for Node.js.

use std::path::Path;
use std::process::Command;

use vcr_skips::skip;

use crate::{Said, vcr};

/// Whether Node.js is installed; if not, the test is skipped.
#[must_use]
pub fn has_node() -> bool {
    let has = Command::new("node").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        skip("`node` is not installed");
    }
    has
}

/// Runs the Node.js tests in a folder, as their author does.
///
/// # Panics
/// A test fails, or there are no tests.
#[track_caller]
pub fn node_tests(folder: &Path) {
    let said = Said::of(Command::new("node").arg("--test").current_dir(folder).env("VCR_BINARY", vcr())).ended(0);
    assert!(said.stdout.contains("# fail 0") && !said.stdout.contains("# pass 0"), "{}", said.stdout);
}
