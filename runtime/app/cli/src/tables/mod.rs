//! `vcr tables`: shows operator tables, and prices a model's steps with them.

pub(crate) mod args;
mod check;
mod json;
mod list;
mod price;

use std::io;

use serde_json::Value;
use vcr_latency::tables::{DATA_VARIABLE, INSTALL, Package, TablesError};

use crate::exit::{Exit, print_error, printed};
use crate::tables::args::{DataArgs, TablesCommand};

pub(crate) fn tables(command: &TablesCommand) -> Exit {
    match command {
        TablesCommand::List(args) => finish(list::list(args)),
        TablesCommand::Show(args) => finish(list::show(args)),
        TablesCommand::Check(args) => finish(check::check(args)),
        TablesCommand::Price(args) => price::price(args),
    }
}

/// The exit of a command that only prints. Prints the error if the command failed before.
fn finish(result: Result<io::Result<()>, TablesError>) -> Exit {
    match result {
        Ok(written) => printed(written, Exit::Passed),
        Err(error) => refused(&error),
    }
}

fn refused(error: &TablesError) -> Exit {
    match error {
        // The message names the setting of scenarios.
        TablesError::NoData | TablesError::NotThePackage { .. } => {
            let message = error.to_string().replacen("`data`", "--data", 1);
            let hint = format!("install it with `{INSTALL}`, then name its folder with --data or {DATA_VARIABLE}");
            print_error(&message, Some(&hint));
        }
        _ => print_error(error, error.hint().as_deref()),
    }
    Exit::BadInput
}

fn package(args: &DataArgs) -> Result<Package, TablesError> {
    Package::find(args.data.as_deref())
}

fn print_json(value: &Value) -> io::Result<()> {
    use io::Write as _;
    writeln!(anstream::stdout(), "{value:#}")
}
