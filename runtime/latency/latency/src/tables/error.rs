//! Errors of operator tables.

use std::path::{Path, PathBuf};

/// The command that installs the package.
pub const INSTALL: &str = "pip install aiconfigurator-core==0.12.0";

/// The environment variable with the folder of the installed package.
pub const DATA_VARIABLE: &str = "VCR_TABLES";

/// The reason why tables cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// This build has no Parquet reader.
    #[error("this build of vcr lacks the feature `tables`, which operator tables need")]
    NotBuilt,
    /// No folder was given.
    #[error("missing `data`: expected the folder of the package aiconfigurator-core")]
    NoData,
    /// The given folder does not contain the package.
    #[error(
        "invalid {by} `{}`: {}: expected the package aiconfigurator-core, a virtual environment or site-packages with \
         it, or its folder `systems`",
        .folder.display(),
        if .folder.is_dir() { "it has no `systems/data`" } else { "there is no such folder" }
    )]
    NotThePackage {
        /// What names the folder: `data`, or the environment variable.
        by: &'static str,
        /// The folder.
        folder: PathBuf,
    },
    /// The package lacks something.
    #[error("invalid {what} `{name}`: expected {}", expected(known))]
    Unknown {
        /// Kind of the item: a system, a backend, ...
        what: &'static str,
        /// The name that was given.
        name: String,
        /// Names that exist.
        known: Vec<String>,
    },
    /// A file is invalid.
    #[error("invalid `{}`: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem with the file.
        reason: String,
    },
    /// A setting does not fit the model or the system.
    #[error("invalid `{field}`: {reason}")]
    Setting {
        /// The setting.
        field: &'static str,
        /// The problem, and the allowed values.
        reason: String,
    },
    /// Operators that the model needs have no tables at all.
    #[error("no tables for {model} on {system} with {backend} {version}: missing {}", .operators.join(", "))]
    NoOperators {
        /// The model.
        model: String,
        /// The system.
        system: String,
        /// The backend.
        backend: String,
        /// The backend's version.
        version: String,
        /// Operators without a table.
        operators: Vec<String>,
    },
}

impl TablesError {
    pub(crate) fn file(path: &Path, reason: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn setting(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Setting { field, reason: reason.into() }
    }

    /// Advice for the user, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotBuilt => Some("build it with `cargo build --release --features full`".to_owned()),
            Self::NoData | Self::NotThePackage { .. } => {
                Some(format!("install it with `{INSTALL}`, then name its folder with `data` or {DATA_VARIABLE}"))
            }
            Self::Unknown { what, name, known } => {
                let similar = |known: &&String| strsim::jaro_winkler(&known.to_lowercase(), &name.to_lowercase());
                let best = known.iter().max_by(|a, b| similar(a).total_cmp(&similar(b)))?;
                (similar(&best) > 0.8).then(|| format!("did you mean the {what} `{best}`?"))
            }
            Self::File { path, .. } if path.extension().is_some_and(|extension| extension == "parquet") => {
                Some(format!("install the package again: `{INSTALL} --force-reinstall`"))
            }
            Self::NoOperators { .. } => {
                Some("`vcr tables list` shows which systems and versions have which tables".to_owned())
            }
            _ => None,
        }
    }
}

/// The known names, if there are few.
fn expected(known: &[String]) -> String {
    const FEW: usize = 20;
    match known.len() {
        0 => "one, but there is none".to_owned(),
        1..=FEW => format!("one of {}", known.join(", ")),
        many => format!("one of the {many} that `vcr tables list` shows, or the path of a config.json"),
    }
}
