//! Errors of tasks.

use std::io;
use std::path::{Path, PathBuf};

use crate::target::Glibc;

/// The reason why a task ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot {verb} `{path}`: {source}")]
    File { verb: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot start `{program}`: {source}")]
    NoTool { program: String, install: &'static str, source: io::Error },
    #[error("`{line}` failed{}{said}", if said.is_empty() { "" } else { ":\n" })]
    Failed { line: String, said: String, hint: Option<&'static str> },
    #[error("invalid output of `{program}`: expected {expected}")]
    Output { program: &'static str, expected: &'static str },
    #[error("no guests in `{0}`: expected components, `*.wasm`")]
    NoGuests(PathBuf),
    #[error("invalid snapshot: {path}:{line}: expected {expected}")]
    Snapshot { path: PathBuf, line: usize, expected: &'static str },
    #[error("invalid binary `{path}`: expected an ELF file of 64 bits: {source}")]
    NoElf { path: PathBuf, source: object::Error },
    #[error("invalid binary `{path}`: expected a program for {expected}, got one for {got}")]
    Machine { path: PathBuf, expected: String, got: &'static str },
    #[error("invalid binary `{path}`: expected symbols of glibc {most} at most, got `{symbol}` of {version}")]
    Glibc {
        path: PathBuf,
        most: Glibc,
        /// A symbol of the newest version.
        symbol: String,
        /// Its version, as the linker writes it.
        version: String,
    },
    #[error("invalid binary `{path}`: expected version {expected}, got `{said}`")]
    Version { path: PathBuf, expected: String, said: String },
}

impl Error {
    /// Returns a function that makes an error from a system error.
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
