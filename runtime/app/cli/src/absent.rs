//! Commands and options that this build lacks. They are refused with the name of the missing feature.

#[cfg(not(all(feature = "live", feature = "serve", feature = "fit")))]
pub(crate) use command::{AbsentArgs, refused};

pub(crate) fn message(command_line: &str, feature: &str) -> (String, &'static str) {
    let message = format!("this build of vcr lacks the feature `{feature}`, which `{command_line}` needs");
    (message, "build it with `cargo build --release --features full`")
}

/// Commands that are missing as a whole.
#[cfg(not(all(feature = "live", feature = "serve", feature = "fit")))]
mod command {
    use std::ffi::OsString;

    use clap::Args;

    use crate::exit::{Exit, print_error};

    /// Any arguments.
    #[derive(Debug, Args)]
    pub(crate) struct AbsentArgs {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _arguments: Vec<OsString>,
    }

    pub(crate) fn refused(command: &str, feature: &str) -> Exit {
        let (message, hint) = super::message(command, feature);
        print_error(&message, Some(hint));
        Exit::BadInput
    }
}
