//! Errors of logs.

use std::path::PathBuf;

/// An error while reading a log or a recording.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// An error of the file system.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// A line that does not follow the schema.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// The problem, with the field if known.
        problem: String,
    },
    /// A file that is invalid as a whole.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The problem and the expected value.
        problem: String,
    },
    /// A recording that needs a feature which the core lacks. It is refused, never replayed with similar rules.
    #[error("{}{}: {what}; this is out of scope, see docs/appendix/scope.md", path.display(), of_line(*line))]
    OutOfScope {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1; None for a file without lines.
        line: Option<u64>,
        /// The feature that the recording needs.
        what: String,
    },
}

fn of_line(line: Option<u64>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}

impl LogError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, error }
    }

    pub(crate) fn line(path: impl Into<PathBuf>, line: u64, problem: impl ToString) -> Self {
        Self::Line { path: path.into(), line, problem: problem.to_string() }
    }

    pub(crate) fn out_of_scope(path: impl Into<PathBuf>, line: Option<u64>, what: impl ToString) -> Self {
        Self::OutOfScope { path: path.into(), line, what: what.to_string() }
    }

    pub(crate) fn file(path: impl Into<PathBuf>, problem: impl ToString) -> Self {
        Self::File { path: path.into(), problem: problem.to_string() }
    }
}
