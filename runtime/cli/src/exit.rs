//! Exit codes.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use vcr_scenario::Blame;

use crate::terminal::text::{printable, without_rust_types};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All went well and every assertion passed.
    Passed = 0,
    /// At least one assertion failed, or what was compared is not equal.
    CheckFailed = 1,
    /// Bad usage or bad input.
    BadInput = 2,
    /// A guest or an engine failed.
    Fault = 3,
    /// `vcr gate` holds a release.
    Held = 10,
    /// `vcr gate` rolls a release back.
    RolledBack = 20,
    /// `--timeout` has passed; as `timeout(1)` says it.
    TimedOut = 124,
    /// Ended by SIGINT; as shells say it.
    Interrupted = 130,
    /// Ended by SIGTERM; as shells say it.
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<Blame> for Exit {
    fn from(blame: Blame) -> Self {
        match blame {
            Blame::Input => Self::BadInput,
            Blame::Fault => Self::Fault,
        }
    }
}

/// Prints an error as every command does: what, then what to do.
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
        // A reader that has seen enough, such as `head`, is no failure.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            print_error(&format!("cannot print the results: {error}"), None);
            Exit::BadInput
        }
        _ => otherwise,
    }
}
