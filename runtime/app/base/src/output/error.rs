use std::fmt;
use std::io;
use std::path::PathBuf;

/// The reason why a file is not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The file exists, and replacing it was not allowed.
    #[error("cannot write `{path}`: the file exists already")]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The output is also an input of the command.
    #[error("cannot write `{path}`: it is the input `{input}`")]
    IsInput {
        /// The output.
        path: PathBuf,
        /// The input, as given.
        input: PathBuf,
    },
    /// The input is also an output of the command.
    #[error("cannot read `{input}`: this command would replace it by its output `{path}`")]
    IsOutput {
        /// The input.
        input: PathBuf,
        /// The output, as given.
        path: PathBuf,
    },
    /// Two outputs are the same file.
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
    /// The output's folder, or a parent of it, is a file.
    #[error("cannot write to `{path}`: `{file}` is a file, not a folder")]
    NotAFolder {
        /// The output.
        path: PathBuf,
        /// The file.
        file: PathBuf,
    },
    /// The folder cannot be used.
    #[error("cannot write to `{path}`: {}", cause(&.path.display(), .source))]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// An earlier file for this URL has not been uploaded yet.
    #[error("cannot write `{path}`: an earlier file for it is not uploaded yet: `{kept}`")]
    Waits {
        /// The output.
        path: PathBuf,
        /// The complete file.
        kept: PathBuf,
    },
    /// The file cannot be uploaded.
    #[error("cannot upload `{path}`: {}; the file is kept as `{kept}`", cause(&.path.display(), .source))]
    NotUploaded {
        /// The output.
        path: PathBuf,
        /// The complete file.
        kept: PathBuf,
        /// The store's message.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write `{path}`: {}", cause(&.path.display(), .source))]
    Write {
        /// The output.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
}

/// The cause of an error, without the name of the file, with which errors of object stores begin.
#[must_use]
pub fn cause(name: &dyn fmt::Display, source: &io::Error) -> String {
    let text = source.to_string();
    let named = [format!("`{name}`: "), format!("invalid URL `{name}`: ")];
    named.iter().find_map(|start| text.strip_prefix(start)).map(str::to_owned).unwrap_or(text)
}

impl OutputError {
    /// The next step for the user, if any.
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

    /// Whether the reader of the output, such as `head`, has exited.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
