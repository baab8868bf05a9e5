//! Programs of others, started and checked.

use std::io;
use std::process::Command;

use crate::error::Error;

/// How programs are installed that not everybody has. The profile makes tools that run for
/// seconds compile in a minute.
const INSTALL: &[(&str, &str)] = &[
    ("objcopy", "install binutils"),
    ("llvm-objcopy", "install llvm, or name an objcopy for the target in OBJCOPY"),
    ("git", "install git"),
    ("cargo-zigbuild", "install it with `pip install cargo-zigbuild`, which brings zig, its compiler"),
    ("cargo-about", "install it with `cargo install cargo-about --locked --features cli`"),
    ("cargo-deny", "install it with `cargo install cargo-deny --locked`"),
    ("cargo-cyclonedx", "install it with `cargo install cargo-cyclonedx --locked`"),
];

/// The remedy for a program that this machine cannot start.
const RUNNABLE: &str = "name a program of the same version that this machine can run, by `--runnable`, or what \
    runs those of the target in Cargo's variable CARGO_TARGET_TRIPLE_RUNNER, such as an emulator";

/// Runs a command and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| not_started(program, source))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(Error::Failed { line: line(command), said: String::from_utf8_lossy(&output.stderr).into_owned(), hint: None })
}

/// Runs a command that takes long, with its output where the user sees it.
pub(crate) fn run(command: &mut Command, hint: Option<&'static str>) -> Result<(), Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|source| not_started(program, source))?;
    if status.success() { Ok(()) } else { Err(Error::Failed { line: line(command), said: String::new(), hint }) }
}

/// Runs a command whose output is text.
pub(crate) fn text(command: &mut Command, program: &'static str) -> Result<String, Error> {
    let output = output(command)?;
    String::from_utf8(output).map_err(|_| Error::Output { program, expected: "text in UTF-8" })
}

fn not_started(program: String, source: io::Error) -> Error {
    let install = INSTALL.iter().find(|(name, _)| *name == program);
    let install = install.map_or(RUNNABLE, |(_, install)| *install);
    Error::NoTool { program, install, source }
}

fn line(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
