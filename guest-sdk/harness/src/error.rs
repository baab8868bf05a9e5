use std::fmt;
use std::path::PathBuf;

/// The reason why a guest could not be built or checked.
#[derive(Debug)]
pub enum HarnessError {
    /// The program `vcr` cannot be started.
    NoHost {
        /// Path of the program.
        program: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A `vcr guest` command failed.
    Failed {
        /// `build` or `check`.
        command: &'static str,
        /// Exit code of the command; none if a signal killed it.
        code: Option<i32>,
        /// Output of the command.
        message: String,
    },
    /// The folder does not contain exactly one guest.
    SeveralGuests {
        /// The folder.
        folder: PathBuf,
        /// Number of guests in the folder.
        guests: usize,
    },
    /// The output of the command is not the JSON that this harness expects.
    BadAnswer {
        /// `build` or `check`.
        command: &'static str,
        /// The parser's error.
        source: serde_json::Error,
    },
}

impl fmt::Display for HarnessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHost { program, source } => write!(f, "`{}` does not start: {source}", program.display()),
            Self::Failed { command, code: Some(code), message } => {
                write!(f, "`vcr guest {command}` ended with exit code {code}: {message}")
            }
            Self::Failed { command, code: None, message } => write!(f, "`vcr guest {command}` was killed: {message}"),
            Self::SeveralGuests { folder, guests } => {
                write!(f, "`{}` holds {guests} guests; give the folder of one", folder.display())
            }
            Self::BadAnswer { command, source } => {
                write!(f, "`vcr guest {command}` answered something unexpected, perhaps of another version: {source}")
            }
        }
    }
}

impl std::error::Error for HarnessError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoHost { source, .. } => Some(source),
            Self::BadAnswer { source, .. } => Some(source),
            Self::Failed { .. } | Self::SeveralGuests { .. } => None,
        }
    }
}
