use std::io;

/// The reason why a pack cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("cannot read the pack: {0}")]
    Read(io::Error),
    #[error("the pack is cut off: copy it again, or make it again")]
    CutOff,
    #[error("`{path}`: {source}")]
    File { path: String, source: io::Error },
    #[error("not a pack: expected an archive that begins with `pack.json`")]
    NotAPack,
    #[error("the pack has version {found} of its format: this version of vcr reads up to {known}")]
    Newer {
        found: u32,
        /// The newest supported version.
        known: u32,
    },
    #[error("invalid `pack.json`: {0}")]
    Manifest(String),
    #[error("invalid path `{0}` in the pack: expected a relative path of plain names, separated by /")]
    Path(String),
    #[error("`{0}` in the pack is a link, a folder or a device: expected plain files")]
    NotAFile(String),
    #[error("the pack holds `{found}` where its manifest has `{expected}`")]
    Unexpected { found: String, expected: String },
    #[error("`{path}` in the pack has {found} bytes: its manifest has {expected}")]
    Size {
        path: String,
        found: u64,
        /// Size in the manifest.
        expected: u64,
    },
    #[error("`{path}` in the pack has the SHA-256 {found}: its manifest has {expected}")]
    Digest {
        path: String,
        found: String,
        /// Digest in the manifest.
        expected: String,
    },
    #[error("cannot redact `{name}`: {reason}")]
    Redact { name: String, reason: String },
}

impl PackError {
    pub(crate) fn file(path: &str) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::File { path: path.to_owned(), source }
    }
}
