//! Progress and result of a build.

use std::fmt;
use std::path::PathBuf;

use crate::build::TARGET;
use crate::build::route::Route;

/// The progress of a build; each event prints as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// Something is being downloaded.
    Fetching {
        /// Description of the download.
        what: &'a str,
    },
    /// A compiler was found.
    Toolchain {
        /// The method that found the compiler.
        route: Route,
    },
    /// Compiling begins.
    Compiling {
        /// Package names, separated by commas.
        packages: &'a str,
        /// The tool.
        with: &'a str,
    },
    /// A line of cargo's output.
    Cargo { line: &'a str },
    /// A component was built.
    Built {
        /// The component.
        guest: &'a BuiltGuest,
    },
}

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetching { what } => write!(f, "fetching {what}"),
            Self::Toolchain { route } => write!(f, "compiler for {TARGET}: {route}"),
            Self::Compiling { packages, with } => write!(f, "compiling {packages} with {with}, which may take minutes"),
            Self::Cargo { line } => f.write_str(line),
            Self::Built { guest } => {
                write!(f, "built {} ({} bytes)", guest.component.display(), guest.size_bytes)
            }
        }
    }
}

/// A built component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltGuest {
    /// Name of the package; the file is `NAME.wasm`.
    pub name: String,
    /// Path of the component.
    pub component: PathBuf,
    /// Size of the component in bytes.
    pub size_bytes: u64,
    /// SHA-256 of the component, in lower-case hexadecimal digits.
    pub digest: String,
    /// The toolchain, which determines the bytes: the name of a [`Route`], or a tool and its version.
    pub toolchain: String,
}
