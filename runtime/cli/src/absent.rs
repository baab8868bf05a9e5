//! Commands whose feature this build lacks: known by name, and refused with the
//! name of the feature.

use std::ffi::OsString;

use clap::Args;

use crate::exit::{Exit, print_error};

/// Any arguments.
#[derive(Debug, Args)]
pub(crate) struct AbsentArgs {
    /// Not looked at.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<OsString>,
}

pub(crate) fn refused(command: &str, feature: &str) -> Exit {
    let (message, hint) = message(command, feature);
    print_error(&message, Some(hint));
    Exit::BadInput
}

/// Error and hint for a command line that needs `feature`.
pub(crate) fn message(command_line: &str, feature: &str) -> (String, &'static str) {
    let message = format!("this build of vcr lacks the feature `{feature}`, which `{command_line}` needs");
    (message, "build it with `cargo build --release --features full`")
}
