//! The binary of a release: built, stripped, its line tables apart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::checkout::Checkout;
use crate::error::Error;
use crate::tool;

/// A binary and what debuggers look up in place of it.
pub(crate) struct Stripped {
    /// The program.
    pub(crate) program: Vec<u8>,
    /// Its line tables, an ELF file.
    pub(crate) lines: Vec<u8>,
}

/// Builds `vcr` with all features and the profile `dist`. The result names no folder of this
/// machine: neither the checkout's nor the one of cargo's sources.
pub(crate) fn build(checkout: &Checkout, target: &str) -> Result<PathBuf, Error> {
    let mut flags = vec![format!("--remap-path-prefix={}=/vcr", checkout.root.display())];
    let home = std::env::home_dir().map(|home| home.join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    flags.extend(cargo.map(|cargo| format!("--remap-path-prefix={}=/cargo", cargo.display())));
    let folder = checkout.root.join("target/dist-build");
    let arguments = ["build", "--profile", "dist", "--locked", "--package", "vcr", "--features", "full", "--target"];
    let mut command = Command::new("cargo");
    command.args(arguments).arg(target).current_dir(&checkout.root);
    // Apart from other builds, which have other flags.
    command.env("CARGO_TARGET_DIR", &folder).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    tool::run(&mut command, Some("a target that is not the host's needs `rustup target add` and a linker"))?;
    Ok(folder.join(target).join("dist/vcr"))
}

/// Checks that a program is `vcr` of this version, by running it.
pub(crate) fn check(program: &Path, checkout: &Checkout) -> Result<(), Error> {
    let said = tool::text(Command::new(program).arg("--version"), "vcr --version")?;
    if said.trim() == format!("vcr {}", checkout.version) {
        return Ok(());
    }
    let expected = checkout.version.clone();
    Err(Error::Version { path: program.to_owned(), expected, said: said.trim().to_owned() })
}

/// Separates a binary from its line tables. Both are linked by `name`, the file name of the line
/// tables. `OBJCOPY` names the program that does it for another target.
pub(crate) fn strip(binary: &Path, name: &str) -> Result<Stripped, Error> {
    let folder = tempfile::tempdir().map_err(Error::file("make", &std::env::temp_dir()))?;
    let (program, lines) = (folder.path().join("vcr"), folder.path().join(name));
    let objcopy = std::env::var_os("OBJCOPY").unwrap_or_else(|| "objcopy".into());
    let objcopy = || Command::new(&objcopy);
    tool::output(objcopy().arg("--only-keep-debug").arg(binary).arg(&lines))?;
    tool::output(objcopy().arg("--strip-all").arg(binary).arg(&program))?;
    // The link has the file name and a checksum of the contents.
    tool::output(objcopy().current_dir(folder.path()).arg(format!("--add-gnu-debuglink={name}")).arg(&program))?;
    Ok(Stripped { program: read(&program)?, lines: read(&lines)? })
}

/// The bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(Error::file("read", path))
}
