//! Names crates independently of their folders.
//!
//! For packages outside the workspace, such as the SDK, cargo passes the compiler a crate name that depends on the
//! package's absolute path. The compiler derives function names from it and sorts functions by name, so the same
//! source in another folder would compile to other bytes. A script between cargo and the compiler replaces the name
//! with the package's name and version.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::error::BuildError;

const SCRIPT: &str = r#"#!/bin/sh
# Written by `vcr guest build`: names crates by their packages, wherever they lie.
left=$#
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    case $word in
        metadata=*) word="metadata=$CARGO_PKG_NAME-$CARGO_PKG_VERSION" ;;
    esac
    set -- "$@" "$word"
    left=$((left - 1))
done
exec $VCR_RUSTC_WRAPPER "$@"
"#;

/// The user's own wrapper; the script calls it.
const NEXT_VARIABLE: &str = "VCR_RUSTC_WRAPPER";

/// Makes `cargo` name crates by package. Keeps an existing script, because a newer one makes cargo recompile all.
pub(crate) fn by_package(cargo: &mut Command, target: &Path) -> Result<(), BuildError> {
    let script = target.join("vcr-rustc-by-package.sh");
    if !fs::read(&script).is_ok_and(|present| present == SCRIPT.as_bytes()) {
        let io = |action, path: PathBuf| move |source| BuildError::Io { action, path, source };
        fs::create_dir_all(target).map_err(io("create", target.into()))?;
        // Written to a temporary file first, so that other processes never see a partial script.
        let partial = target.join(format!("vcr-rustc-by-package.{}.partial", std::process::id()));
        fs::write(&partial, SCRIPT)
            .and_then(|()| fs::set_permissions(&partial, fs::Permissions::from_mode(0o755)))
            .and_then(|()| fs::rename(&partial, &script))
            .map_err(io("write", script.clone()))?;
    }
    cargo.env(NEXT_VARIABLE, std::env::var_os("RUSTC_WRAPPER").unwrap_or_default());
    cargo.env("RUSTC_WRAPPER", script);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_replaces_the_name_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("target");
        let mut cargo = Command::new("cargo");
        by_package(&mut cargo, &target).expect("it can be written");
        let script = target.join("vcr-rustc-by-package.sh");
        let written = fs::metadata(&script).and_then(|about| about.modified()).expect("it is there");
        by_package(&mut cargo, &target).expect("it is there");
        assert_eq!(fs::metadata(&script).and_then(|about| about.modified()).expect("it is there"), written);

        let mut command = Command::new(&script);
        command.args(["printf", "%s|", "-C", "metadata=0123", "a b", "--cfg=feature=\"x\"", ""]);
        command.envs([("CARGO_PKG_NAME", "some-crate"), ("CARGO_PKG_VERSION", "1.2.3"), (NEXT_VARIABLE, "")]);
        let said = command.output().expect("it starts");
        let said = String::from_utf8(said.stdout).expect("it is text");
        assert_eq!(said, "-C|metadata=some-crate-1.2.3|a b|--cfg=feature=\"x\"||");
    }
}
