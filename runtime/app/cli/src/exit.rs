//! Exit codes.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use vcr_scenario::Blame;

use crate::terminal::text::{printable, without_rust_types};

/// How a command ended. The help and the reference of errors have the meaning of each code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Passed = 0,
    /// Failure of an assertion or of a comparison.
    CheckFailed = 1,
    /// An error of the user.
    BadInput = 2,
    /// An error while running.
    Fault = 3,
    /// `hold` of a gate.
    Held = 10,
    /// `rollback` of a gate.
    RolledBack = 20,
    /// End by `--timeout`, with the code of `timeout(1)`.
    TimedOut = 124,
    /// End by SIGINT, with the code of shells.
    Interrupted = 130,
    /// End by SIGTERM, with the code of shells.
    Terminated = 143,
}

impl Exit {
    /// All exits, in the order of their codes.
    pub(crate) const ALL: [Self; 9] = [
        Self::Passed,
        Self::CheckFailed,
        Self::BadInput,
        Self::Fault,
        Self::Held,
        Self::RolledBack,
        Self::TimedOut,
        Self::Interrupted,
        Self::Terminated,
    ];

    /// The meaning of the code, for users.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Passed => "every assertion passed, no difference was found",
            Self::CheckFailed => "an assertion failed, or a difference was found",
            Self::BadInput => "bad usage, script or input file; a file or an address that cannot be used",
            Self::Fault => "a guest or an engine failed",
            Self::Held => "vcr gate holds a release",
            Self::RolledBack => "vcr gate rolls a release back",
            Self::TimedOut => "ended by --timeout",
            Self::Interrupted => "ended by SIGINT",
            Self::Terminated => "ended by SIGTERM",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<Blame> for Exit {
    fn from(blame: Blame) -> Self {
        match blame {
            Blame::Input | Blame::Argument => Self::BadInput,
            Blame::Fault => Self::Fault,
        }
    }
}

/// Prints an error in the form of all commands: the message, then the hint.
pub(crate) fn print_error(message: &dyn fmt::Display, hint: Option<&str>) {
    use anstyle::{AnsiColor, Style};
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let cyan = Style::new().bold().fg_color(Some(AnsiColor::Cyan.into()));
    let message = message.to_string();
    eprint_line(format_args!("{red}error{red:#}: {}", printable(&without_rust_types(&message))));
    if let Some(hint) = hint {
        eprint_line(format_args!("\n{cyan}hint{cyan:#}: {}", printable(hint)));
    }
}

/// Prints a line to standard error.
pub(crate) fn eprint_line(line: fmt::Arguments<'_>) {
    // If standard error cannot be written, there is nowhere to report it.
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// How a command ends whose results went to standard output.
pub(crate) fn printed(written: io::Result<()>, otherwise: Exit) -> Exit {
    match written {
        // A reader that has seen enough, such as `head`, is not a failure.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            print_error(&format!("cannot print the results: {error}"), None);
            Exit::BadInput
        }
        _ => otherwise,
    }
}
