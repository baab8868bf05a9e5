//! The progress of a build, and its result.

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
        /// The activity, in words.
        what: &'a str,
    },
    /// A compiler was found.
    Toolchain {
        /// The way it was found.
        route: Route,
    },
    /// Compiling begins.
    Compiling {
        /// The packages, separated by commas.
        packages: &'a str,
    },
    /// A line of the compiler's own output.
    Cargo { line: &'a str },
    /// A component lies ready.
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
            Self::Compiling { packages } => write!(f, "compiling {packages}"),
            Self::Cargo { line } => f.write_str(line),
            Self::Built { guest } => {
                write!(f, "built {} ({} bytes)", guest.component.display(), guest.size_bytes)
            }
        }
    }
}

/// A component that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltGuest {
    /// Name of the package, and of the file without `.wasm`.
    pub name: String,
    /// The component's file.
    pub component: PathBuf,
    /// Size of that file in bytes.
    pub size_bytes: u64,
    /// SHA-256 of that file, in lower-case hexadecimal digits.
    pub digest: String,
    /// The toolchain and its origin: the name of a [`Route`], or a tool and its version. The bytes
    /// depend on it.
    pub toolchain: String,
}
