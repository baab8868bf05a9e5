use std::path::PathBuf;

/// An error of pulling or pushing a guest; see [`RegistryError::hint`] for the next step.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("invalid guest reference `{text}`: {problem}")]
    BadReference { text: String, problem: String },
    #[error("this build of vcr lacks the feature `registry`, which `{text}` needs")]
    NotBuilt { text: String },
    #[error("invalid guest reference `{reference}`: expected a digest, since a tag may move to another guest")]
    NoDigest { reference: String },
    #[error("cannot {what} `{reference}`: {reason}")]
    Registry {
        /// The operation: `pull` or `push`.
        what: &'static str,
        reference: String,
        reason: String,
    },
    #[error("invalid content of `{reference}`: expected the digest {expected}, got {actual}")]
    Mismatch {
        reference: String,
        /// Digest in the reference or the manifest.
        expected: String,
        /// Digest of the content.
        actual: String,
    },
    #[error("invalid artifact `{reference}`: {problem}")]
    NoGuest {
        reference: String,
        /// What was expected, and what was found.
        problem: String,
    },
    #[error("cannot keep guests in `{}`: {reason}", path.display())]
    Store { path: PathBuf, reason: String },
    #[error("cannot read `{}`: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot read the credentials in `{}`: {reason}", path.display())]
    Credentials { path: PathBuf, reason: String },
}

impl RegistryError {
    /// The next step for the user, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::BadReference { .. } => "write it as `oci://registry/repository:tag` or `...@sha256:...`",
            Self::NotBuilt { .. } => "build it with `cargo build --release --features full`",
            Self::NoDigest { reference } => {
                return Some(format!("`vcr guest pull {reference}` prints the reference with its digest"));
            }
            Self::Registry { .. } => "see that the registry can be reached and lets you in (`docker login`)",
            Self::Mismatch { .. } => "do not use it; if the guest was replaced on purpose, pull its tag again",
            Self::NoGuest { .. } => "push guests with `vcr guest push`",
            Self::Store { .. } => "name another folder in `VCR_GUEST_STORE`",
            Self::Read { .. } => return None,
            Self::Credentials { .. } => "log in again, or name another folder in `DOCKER_CONFIG`",
        };
        Some(hint.to_owned())
    }
}
