//! The binary of a release: built, stripped, its line tables apart.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::checkout::Checkout;
use crate::error::Error;
use crate::target::Target;
use crate::tool;

/// A binary, and its symbols for debuggers.
pub(crate) struct Stripped {
    pub(crate) program: Vec<u8>,
    /// Its line tables, an ELF file.
    pub(crate) lines: Vec<u8>,
}

/// Builds `vcr` with all features and the profile `dist`. The result names no folder of this
/// machine: neither the checkout's nor the one of cargo's sources.
///
/// Zig's compiler, which cargo-zigbuild calls, links for other machines and for a chosen glibc.
pub(crate) fn build(checkout: &Checkout, target: &Target) -> Result<PathBuf, Error> {
    let home = std::env::home_dir().map(|home| home.join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let folders = std::iter::once((checkout.root.clone(), "/vcr")).chain(cargo.map(|cargo| (cargo, "/cargo")));
    let (mut rust, mut c) = (Vec::new(), Vec::new());
    for (folder, name) in folders {
        rust.push(format!("--remap-path-prefix={}={name}", folder.display()));
        // Assertions of libzmq name their file.
        c.push(format!("'-ffile-prefix-map={}={name}'", folder.display()));
    }
    let c = c.join(" ");
    let written = target.to_string();
    let is_native = written == checkout.host;
    // Separate from other builds, which have other flags, and from builds with another linker,
    // which Cargo would confuse with it.
    let folder = checkout.root.join("target/dist-build").join(if is_native { "" } else { &written });
    let mut command = if is_native { Command::new("cargo") } else { Command::new("cargo-zigbuild") };
    command.arg(if is_native { "build" } else { "zigbuild" });
    command.args(["--profile", "dist", "--locked", "--package", "vcr", "--features", "full", "--target", &written]);
    command.current_dir(&checkout.root);
    command.env("CARGO_TARGET_DIR", &folder).env("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}"));
    let underscored = target.triple.replace('-', "_");
    command.env("CC_SHELL_ESCAPED_FLAGS", "1");
    command.env(format!("CFLAGS_{underscored}"), &c).env(format!("CXXFLAGS_{underscored}"), &c);
    if !is_native {
        let compilers = checkout.root.join("xtask/compilers");
        // By the name that bindgen asks for first. Zig's own headers, which cargo-zigbuild would name, need
        // Zig's clang.
        let headers = format!("-nostdinc -isystem '{}'", compilers.join("include").display());
        command.env(format!("BINDGEN_EXTRA_CLANG_ARGS_{}", target.triple), headers);
        command.env("PATH", path_behind(&compilers)?);
    }
    tool::run(&mut command, Some("another target needs the standard library: `rustup target add TRIPLE`"))?;
    Ok(folder.join(&target.triple).join("dist/vcr"))
}

/// `PATH` behind the folder of compilers that crates ask for by name, whatever the target is.
fn path_behind(compilers: &Path) -> Result<OsString, Error> {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(compilers.to_owned()).chain(std::env::split_paths(&rest));
    std::env::join_paths(folders).map_err(|source| Error::file("put into PATH", compilers)(io::Error::other(source)))
}

/// A program that writes its own manual: `vcr`, or its runner.
pub(crate) struct Program {
    words: Vec<OsString>,
}

impl Program {
    /// A program that this machine can run.
    pub(crate) fn here(path: &Path) -> Self {
        Self { words: vec![path.into()] }
    }

    /// A binary for the target, after the runner in Cargo's variable, if there is one.
    pub(crate) fn of(binary: &Path, target: &Target) -> Self {
        let runner = std::env::var(target.runner()).unwrap_or_default();
        let runner = runner.split_whitespace().map(OsString::from);
        Self { words: runner.chain([binary.into()]).collect() }
    }

    /// The command that starts it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        command
    }

    /// Checks that it is `vcr` of this version, by running it.
    pub(crate) fn check(&self, checkout: &Checkout) -> Result<(), Error> {
        let said = tool::text(self.command().arg("--version"), "vcr --version")?;
        if said.trim() == format!("vcr {}", checkout.version) {
            return Ok(());
        }
        let path = PathBuf::from(&self.words[self.words.len() - 1]);
        Err(Error::Version { path, expected: checkout.version.clone(), said: said.trim().to_owned() })
    }
}

/// Separates a binary from its line tables. Both are linked by `name`, the file name of the line
/// tables. `OBJCOPY` names the program that does it; binutils' own reads programs of its architecture only.
pub(crate) fn strip(binary: &Path, name: &str, is_foreign: bool) -> Result<Stripped, Error> {
    let folder = tempfile::tempdir().map_err(Error::file("make", &std::env::temp_dir()))?;
    let (program, lines) = (folder.path().join("vcr"), folder.path().join(name));
    let usual = if is_foreign { "llvm-objcopy" } else { "objcopy" };
    let objcopy = std::env::var_os("OBJCOPY").unwrap_or_else(|| usual.into());
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
