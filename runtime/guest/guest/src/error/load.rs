//! Errors of loading guests.

use std::time::Duration;

use crate::component::api_version::{ApiVersion, supported_list};
use crate::wasi::granting;
use crate::world::World;

/// The reason why a file cannot be loaded as a guest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadProblem {
    #[error("{}", too_large(*.size_bytes, *.limit_bytes))]
    TooLarge {
        /// Size of the file; none for devices and pipes.
        size_bytes: Option<u64>,
        limit_bytes: u64,
    },
    #[error("it is not a WebAssembly file")]
    NotWebAssembly,
    #[error("the file is empty")]
    Empty,
    #[error("the component is damaged: {reason}")]
    Damaged { reason: String },
    #[error("it is a core module, not a component")]
    CoreModule,
    #[error("it imports {}, which is not granted", quoted(.imports))]
    Imports { imports: Vec<String> },
    #[error("it is not a guest: expected an export among {}, got {}", interfaces(), quoted(.exports))]
    NoWorld { exports: Vec<String> },
    #[error("it is both a {first} and a {second}: expected one world")]
    SeveralWorlds { first: World, second: World },
    /// The component belongs to a different world than the caller needs.
    #[error(
        "it is a {found} (world `{}`), but a {expected} (world `{}`) is needed",
        .found.name(),
        .expected.name()
    )]
    OtherWorld {
        /// World of the component.
        found: World,
        /// World that the caller needs.
        expected: World,
    },
    #[error("it declares guest API {declared}, but this build supports {}", supported_list())]
    UnsupportedVersion {
        /// Version in the name of the export.
        declared: ApiVersion,
    },
    #[error("it has more than {limit} {what}")]
    TooComplex {
        /// The exceeded resource.
        what: &'static str,
        limit: u64,
    },
    #[error("it imports, exports or passes components: expected functions, instances, types and modules")]
    PassesComponents,
    #[error("its compilation takes more than {} seconds of processor time", limit.as_secs())]
    SlowToCompile { limit: Duration },
    #[error("the JSON schema of its configuration is invalid: {reason}")]
    BadSchema { reason: String },
    #[error("it does not compile: {reason}")]
    Compile { reason: String },
    #[error("it does not fit the interface that it declares: {reason}")]
    Unfit { reason: String },
}

impl LoadProblem {
    /// The next step for the user.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::TooLarge { .. } | Self::TooComplex { .. } | Self::SlowToCompile { .. } => {
                "build the guest in release mode, without unused code"
            }
            Self::NotWebAssembly | Self::Empty | Self::Damaged { .. } => {
                "give the path of a component; `vcr guest build` writes them to `guests/dist`"
            }
            Self::PassesComponents => "build the guest with `vcr guest build`, or link its components into one before",
            Self::CoreModule => "make a component of it: `vcr guest build`",
            Self::Imports { imports } => return Some(imports_hint(imports)),
            Self::NoWorld { .. } | Self::SeveralWorlds { .. } => {
                let names: Vec<String> = World::ALL.iter().map(|world| format!("`{}`", world.sdk_macro())).collect();
                return Some(format!("export one world of `vcr guest wit`; with the SDK: {}", one_of(&names)));
            }
            Self::OtherWorld { expected, .. } => {
                return Some(format!(
                    "give a guest that exports the world `{}`; with the SDK: `{}`",
                    expected.name(),
                    expected.sdk_macro()
                ));
            }
            Self::UnsupportedVersion { .. } => {
                "rebuild the guest with the interface of this build (`vcr guest wit`), or update the simulator"
            }
            Self::BadSchema { .. } => "fix `config.schema.json` in the guest's folder and build it again",
            Self::Compile { .. } | Self::Unfit { .. } => "rebuild the guest: `vcr guest build`",
        };
        Some(hint.into())
    }
}

fn too_large(size_bytes: Option<u64>, limit_bytes: u64) -> String {
    match size_bytes {
        Some(bytes) => format!("it has {bytes} bytes, but may have {limit_bytes}"),
        None => format!("it is not a regular file and returns more than {limit_bytes} bytes"),
    }
}

fn imports_hint(imports: &[String]) -> String {
    let mut grants: Vec<String> = Vec::new();
    for import in imports {
        // If several grants have the interface, prefer one that is already needed.
        let mut giving = granting(import).map(|name| format!("\"{name}\""));
        let Some(first) = giving.next() else {
            return "build for `wasm32-unknown-unknown` without WASI: there are no files and no sockets; time and \
                    randomness come as arguments"
                .to_owned();
        };
        if !grants.contains(&first) && !giving.any(|other| grants.contains(&other)) {
            grants.push(first);
        }
    }
    format!(
        "build for `wasm32-unknown-unknown` without WASI, as time and randomness come as arguments; or grant it \
         where the guest is named: `wasi: [{}]`",
        grants.join(", ")
    )
}

/// The interfaces of all worlds, quoted.
fn interfaces() -> String {
    quoted(&World::ALL.map(|world| world.interface().to_owned()))
}

/// Formats names as "a, b or c".
fn one_of(names: &[String]) -> String {
    match names {
        [some @ .., last] if !some.is_empty() => format!("{} or {last}", some.join(", ")),
        names => names.concat(),
    }
}

fn quoted(names: &[String]) -> String {
    if names.is_empty() {
        return "nothing".into();
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}
