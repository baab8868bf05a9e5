//! Errors of packs.

use std::io;

/// Why a pack cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The archive cannot be read.
    #[error("cannot read the pack: {0}")]
    Read(io::Error),
    /// The archive ends before its end.
    #[error("the pack is cut off: copy it again, or make it again")]
    CutOff,
    /// A file of it cannot be written or read.
    #[error("`{path}`: {source}")]
    File {
        /// Its path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// It does not begin as a pack does.
    #[error("not a pack: expected an archive that begins with `pack.json`")]
    NotAPack,
    /// It was made by a later version.
    #[error("the pack has version {found} of its format: this version of vcr reads up to {known}")]
    Newer {
        /// Its version.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// The manifest is wrong.
    #[error("invalid `pack.json`: {0}")]
    Manifest(String),
    /// A path leaves the folder, or is not a path everywhere.
    #[error("invalid path `{0}` in the pack: expected a relative path of plain names, separated by /")]
    Path(String),
    /// An entry is not a plain file.
    #[error("`{0}` in the pack is a link, a folder or a device: expected plain files")]
    NotAFile(String),
    /// The entries differ from the manifest.
    #[error("the pack holds `{found}` where its manifest has `{expected}`")]
    Unexpected {
        /// The entry.
        found: String,
        /// Expected contents.
        expected: String,
    },
    /// An entry has another size.
    #[error("`{path}` in the pack has {found} bytes: its manifest has {expected}")]
    Size {
        /// The entry.
        path: String,
        /// Its size.
        found: u64,
        /// The size in the manifest.
        expected: u64,
    },
    /// An entry has another digest.
    #[error("`{path}` in the pack has the SHA-256 {found}: its manifest has {expected}")]
    Digest {
        /// The entry.
        path: String,
        /// Its digest.
        found: String,
        /// The digest in the manifest.
        expected: String,
    },
    /// An input cannot be redacted.
    #[error("cannot redact `{name}`: {reason}")]
    Redact {
        /// The input.
        name: String,
        /// The obstacle.
        reason: String,
    },
}

impl PackError {
    pub(crate) fn file(path: &str) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::File { path: path.to_owned(), source }
    }
}
