use std::path::PathBuf;

/// Why a guest cannot be had, or given, by reference.
/// [`RegistryError::hint`] says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The text is no reference.
    #[error("`{text}` is no reference to a guest: {problem}")]
    BadReference {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// This build has no client of registries.
    #[error("this build of vcr lacks the feature `registry`, which `{text}` needs")]
    NotBuilt {
        /// The reference.
        text: String,
    },
    /// The reference may mean something else tomorrow.
    #[error("`{reference}` names no digest, so that it may be another guest tomorrow")]
    NoDigest {
        /// The reference.
        reference: String,
    },
    /// The registry could not be asked, or did not answer as registries do.
    #[error("cannot {what} `{reference}`: {reason}")]
    Registry {
        /// What was tried: `pull` or `push`.
        what: &'static str,
        /// The reference.
        reference: String,
        /// What went wrong.
        reason: String,
    },
    /// What the registry gave has another digest than was asked for.
    #[error("the registry gave something else for `{reference}`: its digest is {actual}, not {expected}")]
    Mismatch {
        /// The reference.
        reference: String,
        /// The digest that it, or the manifest, names.
        expected: String,
        /// The digest of what came.
        actual: String,
    },
    /// What is there is no WebAssembly component.
    #[error("`{reference}` is no guest: {problem}")]
    NoGuest {
        /// The reference.
        reference: String,
        /// What it is instead.
        problem: String,
    },
    /// The store on disk cannot be used.
    #[error("cannot keep guests in `{}`: {reason}", path.display())]
    Store {
        /// The folder or file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A file cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The credentials are not what Docker writes.
    #[error("cannot read the credentials in `{}`: {reason}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

impl RegistryError {
    /// What to do about the error, where there is something to do.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::BadReference { .. } => "write it as `oci://registry/repository:tag` or `...@sha256:...`",
            Self::NotBuilt { .. } => "build it with `cargo build --release --features full`",
            Self::NoDigest { reference } => {
                return Some(format!("`vcr guest pull {reference}` prints the reference with its digest"));
            }
            Self::Registry { .. } => "see that the registry can be reached and lets you in (`docker login`)",
            Self::Mismatch { .. } => "do not use it; if the guest was replaced on purpose, pull its tag anew",
            Self::NoGuest { .. } => "push guests with `vcr guest push`",
            Self::Store { .. } => "name another folder in `VCR_GUEST_STORE`",
            Self::Read { .. } => return None,
            Self::Credentials { .. } => "log in again, or name another folder in `DOCKER_CONFIG`",
        };
        Some(hint.to_owned())
    }
}
