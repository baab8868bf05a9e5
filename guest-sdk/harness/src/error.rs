use std::fmt;
use std::path::PathBuf;

/// Why a guest could not be built or checked.
#[derive(Debug)]
pub enum HarnessError {
    /// The host's program does not start.
    NoHost {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A command of the host failed.
    Failed {
        /// `build` or `check`.
        command: &'static str,
        /// Its exit code; none if it was killed.
        code: Option<i32>,
        /// Output of the command.
        message: String,
    },
    /// The folder holds several guests, or none.
    SeveralGuests {
        /// The folder.
        folder: PathBuf,
        /// Guests in it.
        guests: usize,
    },
    /// The host answers something else than this harness was made for.
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
