//! Errors of outputs.

use std::io;
use std::path::PathBuf;

/// The reason why a file is not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// A file exists, and replacing it was not allowed.
    #[error("cannot write `{path}`: the file exists already")]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The output is a file that the command reads.
    #[error("cannot write `{path}`: it is the input `{input}`")]
    IsInput {
        /// The output.
        path: PathBuf,
        /// The input, as named.
        input: PathBuf,
    },
    /// The input is a file that the command is to replace.
    #[error("cannot read `{input}`: this command would replace it by its output `{path}`")]
    IsOutput {
        /// The input.
        input: PathBuf,
        /// The output, as named.
        path: PathBuf,
    },
    /// Two outputs are one file.
    #[error("cannot write `{path}`: another output goes to the same file")]
    Twice {
        /// The output.
        path: PathBuf,
    },
    /// A folder has the name of the output.
    #[error("cannot write `{path}`: it is a folder")]
    IsFolder {
        /// The output.
        path: PathBuf,
    },
    /// A file has the name of the folder, or of one above it.
    #[error("cannot write to `{path}`: `{file}` is a file, not a folder")]
    NotAFolder {
        /// The output.
        path: PathBuf,
        /// The file.
        file: PathBuf,
    },
    /// The folder cannot be used.
    #[error("cannot write to `{path}`: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// A file for this URL has not been uploaded yet.
    #[error("cannot write `{path}`: an earlier file for it is not uploaded yet: `{kept}`")]
    Waits {
        /// The output.
        path: PathBuf,
        /// The complete file.
        kept: PathBuf,
    },
    /// The file cannot be uploaded.
    #[error("cannot upload `{path}`: {source}; the file is kept as `{kept}`")]
    NotUploaded {
        /// The output.
        path: PathBuf,
        /// The complete file.
        kept: PathBuf,
        /// The store's message.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write `{path}`: {source}")]
    Write {
        /// The output.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
}

impl OutputError {
    /// The next step for the user, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Exists { .. } => Some("name another output, or replace it with --force"),
            Self::IsInput { .. } | Self::IsOutput { .. } | Self::Twice { .. } => Some("name another output"),
            Self::IsFolder { .. } => Some("name a file in it"),
            Self::NotAFolder { .. } => Some("name another folder; one that does not exist is made"),
            Self::Waits { .. } => Some("upload it with `vcr upload`, or replace it with --force"),
            Self::NotUploaded { .. } => Some("continue with `vcr upload`, or run the same command again"),
            Self::Folder { .. } | Self::Write { .. } => None,
        }
    }

    /// Whether the reader of the output has gone away, such as `head`.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
