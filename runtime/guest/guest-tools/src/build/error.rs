use std::path::PathBuf;

use crate::build::route::Route;

/// An error of a build; see [`BuildError::hint`] for the next step.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// The operation: "read", "write", "create".
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot write `{}`: the file exists already and is not WebAssembly", path.display())]
    Foreign { path: PathBuf },
    #[error("`{program}` is not installed, or not on the PATH")]
    ProgramMissing { program: String },
    #[error("`{command}` failed ({status}): {message}")]
    ProgramFailed {
        command: String,
        status: String,
        /// Last lines of the program's output.
        message: String,
    },
    #[error("invalid answer of `{command}`: {reason}")]
    BadAnswer { command: String, reason: String },
    #[error("`{}` is not a crate: it has no package in its Cargo.toml", dir.display())]
    NotACrate { dir: PathBuf },
    #[error("package `{package}` is not a guest: it has no library of type `cdylib`")]
    NotAGuest { package: String },
    #[error("no package in `{}` is a guest", dir.display())]
    NoGuests {
        /// Directory of the workspace.
        dir: PathBuf,
    },
    #[error("invalid `VCR_GUEST_TOOLCHAIN` \"{value}\": expected {}", Route::names())]
    UnknownRoute { value: String },
    #[error("no compiler for {} was found{}", crate::build::TARGET, listed(.attempts))]
    NoToolchain {
        /// The methods that were tried, with the reason why each failed.
        attempts: Vec<(Route, String)>,
    },
    #[error("the guest does not compile:\n{messages}")]
    Compile {
        /// Last lines of cargo's output.
        messages: String,
    },
    #[error("`{}` is not a guest in {language}: {problem}", path.display())]
    BadProject { language: &'static str, path: PathBuf, problem: ProjectProblem },
    #[error("guests in {language} need `{program}` {needed} or later to be built, but it is {found}")]
    OldProgram {
        language: &'static str,
        program: &'static str,
        /// Version found.
        found: String,
        /// Oldest supported version.
        needed: String,
    },
    #[error("{tool} cannot be installed: {reason}")]
    NoTool { tool: &'static str, reason: String },
    #[error("no cache directory: set `VCR_CACHE_DIR` or `HOME`")]
    NoCache,
    #[error("package `{package}` makes no component: {reason}")]
    Component { package: String, reason: String },
    #[error("cannot put `{}` into the guest: {reason}", path.display())]
    BadExample { path: PathBuf, reason: String },
}

/// A problem of a Python or JavaScript project.
#[derive(Debug, thiserror::Error)]
pub enum ProjectProblem {
    #[error("it cannot be read: {reason}")]
    Unreadable { reason: String },
    #[error("it has no `name` of the project")]
    NoName,
    #[error("`{name}` cannot be the name of a file")]
    BadName { name: String },
    #[error("it has no `{table}`, which names its `world` and the folder of the interface (`wit`)")]
    NoSettings {
        /// The table or object with the guest's settings.
        table: &'static str,
    },
    #[error("its module `{}` is missing", module.display())]
    NoModule { module: PathBuf },
    #[error("unknown world `{world}`: its interface has no `{}`", path.display())]
    NoWorld { world: String, path: PathBuf },
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
                "write `config.json` (an example config) and `config.schema.json` (the JSON schema of configs) \
                 in the guest's folder as JSON documents"
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
