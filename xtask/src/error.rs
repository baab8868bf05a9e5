//! Errors of tasks.

use std::io;
use std::path::{Path, PathBuf};

use crate::target::Glibc;

/// The reason why a task ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file or folder cannot be used.
    #[error("cannot {verb} `{path}`: {source}")]
    File {
        /// Attempted action.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// A program is not installed.
    #[error("cannot start `{program}`: {source}")]
    NoTool {
        /// Its name.
        program: String,
        /// How to install it.
        install: &'static str,
        /// The system's message.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{line}` failed{}{said}", if said.is_empty() { "" } else { ":\n" })]
    Failed {
        /// The command.
        line: String,
        /// Its standard error.
        said: String,
        /// The next step.
        hint: Option<&'static str>,
    },
    /// A program printed something else than expected.
    #[error("invalid output of `{program}`: expected {expected}")]
    Output {
        /// Its name.
        program: &'static str,
        /// Accepted form.
        expected: &'static str,
    },
    /// Nothing was built where guests are expected.
    #[error("no guests in `{0}`: expected components, `*.wasm`")]
    NoGuests(PathBuf),
    /// The snapshot of advisories is not one.
    #[error("invalid snapshot: {path}:{line}: expected {expected}")]
    Snapshot {
        /// Its file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Expected contents.
        expected: &'static str,
    },
    /// The binary is not a program of 64-bit Linux.
    #[error("invalid binary `{path}`: expected an ELF file of 64 bits: {source}")]
    NoElf {
        /// The binary.
        path: PathBuf,
        /// The reader's message.
        source: object::Error,
    },
    /// The binary is one of another architecture.
    #[error("invalid binary `{path}`: expected a program for {expected}, got one for {got}")]
    Machine {
        /// The binary.
        path: PathBuf,
        /// That of the target.
        expected: String,
        /// Its own.
        got: &'static str,
    },
    /// The binary does not run with the target's glibc.
    #[error("invalid binary `{path}`: expected symbols of glibc {most} at most, got `{symbol}` of {version}")]
    Glibc {
        /// The binary.
        path: PathBuf,
        /// The target's version.
        most: Glibc,
        /// A symbol of the newest version.
        symbol: String,
        /// Its version, as the linker writes it.
        version: String,
    },
    /// The binary is one of another version.
    #[error("invalid binary `{path}`: expected version {expected}, got `{said}`")]
    Version {
        /// The binary.
        path: PathBuf,
        /// That of the workspace.
        expected: String,
        /// Its answer.
        said: String,
    },
}

impl Error {
    /// Returns what makes an error of the system's.
    pub(crate) fn file(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { verb, path, source }
    }

    /// The next step, if it is known.
    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Self::NoTool { install, .. } => Some(install),
            Self::Failed { hint, .. } => *hint,
            Self::NoGuests(_) => Some("build them with `cargo run --release -- guest build --bootstrap`"),
            Self::Glibc { .. } => Some("build it for that version: leave out `--binary`"),
            Self::Version { .. } => Some("build it from this checkout: `cargo build --release --features full`"),
            Self::File { .. }
            | Self::Output { .. }
            | Self::Snapshot { .. }
            | Self::NoElf { .. }
            | Self::Machine { .. } => None,
        }
    }
}
