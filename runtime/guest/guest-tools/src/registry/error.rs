use std::path::PathBuf;

/// An error of pulling or pushing a guest; [`RegistryError::hint`] is the next step.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The text is not a reference.
    #[error("invalid guest reference `{text}`: {problem}")]
    BadReference {
        /// The text.
        text: String,
        /// The expected form.
        problem: String,
    },
    /// This build lacks the client.
    #[error("this build of vcr lacks the feature `registry`, which `{text}` needs")]
    NotBuilt {
        /// The reference.
        text: String,
    },
    /// A reference without a digest, in a place that needs one.
    #[error("invalid guest reference `{reference}`: expected a digest, since a tag may move to another guest")]
    NoDigest {
        /// The reference.
        reference: String,
    },
    /// The registry cannot be reached, or its answer is invalid.
    #[error("cannot {what} `{reference}`: {reason}")]
    Registry {
        /// The operation: `pull` or `push`.
        what: &'static str,
        /// The reference.
        reference: String,
        /// The cause.
        reason: String,
    },
    /// Content with another digest.
    #[error("invalid content of `{reference}`: expected the digest {expected}, got {actual}")]
    Mismatch {
        /// The reference.
        reference: String,
        /// The digest in the reference or the manifest.
        expected: String,
        /// The digest of the content.
        actual: String,
    },
    /// An artifact that is not a WebAssembly component.
    #[error("invalid artifact `{reference}`: {problem}")]
    NoGuest {
        /// The reference.
        reference: String,
        /// The expected content, and the actual one.
        problem: String,
    },
    /// The store on disk cannot be used.
    #[error("cannot keep guests in `{}`: {reason}", path.display())]
    Store {
        /// The folder or file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// A file cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Docker's credentials are invalid.
    #[error("cannot read the credentials in `{}`: {reason}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
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
            Self::Mismatch { .. } => "do not use it; if the guest was replaced on purpose, pull its tag anew",
            Self::NoGuest { .. } => "push guests with `vcr guest push`",
            Self::Store { .. } => "name another folder in `VCR_GUEST_STORE`",
            Self::Read { .. } => return None,
            Self::Credentials { .. } => "log in again, or name another folder in `DOCKER_CONFIG`",
        };
        Some(hint.to_owned())
    }
}
