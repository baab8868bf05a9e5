use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use vcr_base::input::remote::with_urls;
use vcr_scenario::Blame;

use crate::terminal::text::{printable, without_rust_types};

/// The result of a command. `meaning` describes each code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Success.
    Passed = 0,
    /// A failed assertion or a difference.
    CheckFailed = 1,
    /// A user error.
    BadInput = 2,
    /// An error while running.
    Fault = 3,
    /// Decision `hold` of a gate.
    Held = 10,
    /// Decision `rollback` of a gate.
    RolledBack = 20,
    /// Ended by `--timeout`; the code of `timeout(1)`.
    TimedOut = 124,
    /// Ended by SIGINT; the code of shells.
    Interrupted = 130,
    /// Ended by SIGTERM; the code of shells.
    Terminated = 143,
}

impl Exit {
    /// All exits, by code.
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

/// Prints an error in the format of all commands: the message, then the hint.
pub(crate) fn print_error(message: &dyn fmt::Display, hint: Option<&str>) {
    use anstyle::{AnsiColor, Style};
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let cyan = Style::new().bold().fg_color(Some(AnsiColor::Cyan.into()));
    let message = message.to_string();
    eprint_line(format_args!("{red}error{red:#}: {}", printable(&without_rust_types(&with_urls(&message)))));
    if let Some(hint) = hint {
        eprint_line(format_args!("\n{cyan}hint{cyan:#}: {}", printable(&with_urls(hint))));
    }
}

/// Prints a line to standard error.
pub(crate) fn eprint_line(line: fmt::Arguments<'_>) {
    // A failure cannot be reported anywhere.
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// The exit of a command after its results were written to standard output.
pub(crate) fn printed(written: io::Result<()>, otherwise: Exit) -> Exit {
    match written {
        // A closed pipe, such as of `head`, is not a failure.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            print_error(&format!("cannot print the results: {error}"), None);
            Exit::BadInput
        }
        _ => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn exits_are_in_the_order_of_their_codes() {
        assert!(Exit::ALL.is_sorted() && Exit::ALL.is_sorted_by_key(|exit| *exit as u8));
    }
}
