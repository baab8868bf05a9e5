use std::path::PathBuf;

use crate::build::route::Route;

/// An error of a build; [`BuildError::hint`] is the next step.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A file or directory could not be read or written.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// The operation: "read", "write", "create".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The place of the component is taken.
    #[error("cannot write `{}`: the file exists already and is not WebAssembly", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A program that the build needs is not installed.
    #[error("`{program}` is not installed, or not on the PATH")]
    ProgramMissing {
        /// Its name.
        program: String,
    },
    /// A program failed.
    #[error("`{command}` failed ({status}): {message}")]
    ProgramFailed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// The last lines of what it said.
        message: String,
    },
    /// A program answered something that cannot be understood.
    #[error("invalid answer of `{command}`: {reason}")]
    BadAnswer {
        /// The command line.
        command: String,
        /// The problem.
        reason: String,
    },
    /// The directory holds no crate.
    #[error("`{}` is not a crate: it has no package in its Cargo.toml", dir.display())]
    NotACrate {
        /// The directory.
        dir: PathBuf,
    },
    /// The crate makes no WebAssembly module.
    #[error("package `{package}` is not a guest: it has no library of type `cdylib`")]
    NotAGuest {
        /// The package.
        package: String,
    },
    /// No package of the workspace is a guest.
    #[error("no package in `{}` is a guest", dir.display())]
    NoGuests {
        /// The directory of the workspace.
        dir: PathBuf,
    },
    /// `VCR_GUEST_TOOLCHAIN` has a value that means nothing.
    #[error("invalid `VCR_GUEST_TOOLCHAIN` \"{value}\": expected {}", Route::names())]
    UnknownRoute {
        /// The value.
        value: String,
    },
    /// No way to compile for wasm32 works on this machine.
    #[error("no compiler for {} was found{}", crate::build::TARGET, listed(.attempts))]
    NoToolchain {
        /// Each way that was tried and why it does not work.
        attempts: Vec<(Route, String)>,
    },
    /// The guest does not compile. The compiler's own messages went out as
    /// [`Progress::Cargo`](crate::build::Progress::Cargo).
    #[error("the guest does not compile:\n{messages}")]
    Compile {
        /// The last lines of what cargo said.
        messages: String,
    },
    /// A project in another language is not as it must be.
    #[error("`{}` is not a guest in {language}: {problem}", path.display())]
    BadProject {
        /// Its language.
        language: &'static str,
        /// Its `pyproject.toml` or `package.json`.
        path: PathBuf,
        /// The problem.
        problem: ProjectProblem,
    },
    /// The interpreter of a language is too old on this machine.
    #[error("guests in {language} need `{program}` {needed} or later to be built, but it is {found}")]
    OldProgram {
        /// The language.
        language: &'static str,
        /// The interpreter.
        program: &'static str,
        /// The version that was found.
        found: String,
        /// The oldest that will do.
        needed: String,
    },
    /// The tool of a language cannot be installed.
    #[error("{tool} cannot be installed: {reason}")]
    NoTool {
        /// The tool.
        tool: &'static str,
        /// The cause.
        reason: String,
    },
    /// There is no cache directory.
    #[error("no cache directory: set `VCR_CACHE_DIR` or `HOME`")]
    NoCache,
    /// The core module cannot be made into a component.
    #[error("package `{package}` makes no component: {reason}")]
    Component {
        /// The package.
        package: String,
        /// The message of `wit-component`.
        reason: String,
    },
    /// A file about the config beside the guest cannot go into it.
    #[error("cannot put `{}` into the guest: {reason}", path.display())]
    BadExample {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}

/// A problem of a project in Python or JavaScript.
#[derive(Debug, thiserror::Error)]
pub enum ProjectProblem {
    /// It cannot be parsed, or has other fields than it may.
    #[error("it cannot be read: {reason}")]
    Unreadable {
        /// The parser's message.
        reason: String,
    },
    /// It has no name.
    #[error("it has no `name` of the project")]
    NoName,
    /// Its name will not do.
    #[error("`{name}` cannot be the name of a file")]
    BadName {
        /// The name.
        name: String,
    },
    /// It does not say that it is a guest.
    #[error("it has no `{table}`, which names its `world` and the folder of the interface (`wit`)")]
    NoSettings {
        /// The settings of a guest.
        table: &'static str,
    },
    /// The module of the guest is not there.
    #[error("its module `{}` is missing", module.display())]
    NoModule {
        /// The file.
        module: PathBuf,
    },
    /// The interface has no such world.
    #[error("unknown world `{world}`: its interface has no `{}`", path.display())]
    NoWorld {
        /// The world.
        world: String,
        /// Its expected path.
        path: PathBuf,
    },
}

impl BuildError {
    /// The next step for the user, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::ProgramMissing { program } if program == "cargo" || program == "rustc" => {
                "install Rust from https://rustup.rs"
            }
            Self::ProgramMissing { program } if program == "python3" => "install Python from https://www.python.org",
            Self::Foreign { .. } => "move the file away, or name another folder with --out",
            Self::ProgramMissing { program } if program == "node" || program == "npm" => {
                "install Node.js from https://nodejs.org"
            }
            Self::OldProgram { program, .. } => return Some(format!("put a later `{program}` on the PATH")),
            Self::NoTool { tool: "componentize-js", .. } => {
                "it comes from the npm registry: check the network and npm's settings"
            }
            Self::NoTool { .. } => {
                "it comes from the Python package index: check the network, pip's settings, and whether Python has its \
                 module `venv`"
            }
            Self::BadProject { language, .. } => {
                let lang = if *language == "Python" { "python" } else { "js" };
                return Some(format!("`vcr guest new --lang {lang}` makes a project to compare with"));
            }
            Self::NoCache => "name a folder in `VCR_CACHE_DIR`",
            Self::NotACrate { .. } | Self::NoGuests { .. } => {
                "give the directory of a guest crate, or of a workspace of guests"
            }
            Self::NotAGuest { .. } => "add `[lib]` with `crate-type = [\"cdylib\"]` to its Cargo.toml",
            Self::NoToolchain { .. } => {
                "run one of these: `rustup target add wasm32-unknown-unknown`; `rustup component add rust-src`; \
                 `vcr guest build --bootstrap`, which downloads Debian's Rust compiler into the user's cache folder \
                 (needs apt-get)"
            }
            Self::BadExample { .. } => {
                "make `config.json` (an example config) and `config.schema.json` (the JSON schema of configs) beside the guest JSON \
                 documents"
            }
            Self::Component { .. } => {
                "export a world of `vcr guest wit`; with the SDK: `export_latency_model!` in the root of \
                 the crate"
            }
            _ => return None,
        };
        Some(hint.into())
    }
}

fn listed(attempts: &[(Route, String)]) -> String {
    attempts.iter().map(|(route, reason)| format!("\n  {route}: {reason}")).collect()
}
