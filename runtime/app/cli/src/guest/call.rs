//! `vcr guest call`.

use std::io::{self, Write};

use serde_json::Value;
use vcr_guest::HandCallError;

use crate::exit::{Exit, print_error, printed};
use crate::guest::args::CallArgs;
use crate::guest::check::{blamed, load, not_json};
use crate::guest::config::read_config;

pub(crate) fn call_command(args: &CallArgs) -> Exit {
    let input = match input(&args.input) {
        Ok(input) => input,
        Err(message) => return not_json(&message),
    };
    let (module, config) = match load(&args.path, args.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    match vcr_guest::call(&module, config.json(), args.seed, &args.function, &input) {
        Ok(answer) => printed(writeln!(io::stdout().lock(), "{answer:#}"), Exit::Passed),
        Err(HandCallError::Guest(error)) => {
            print_error(&error, error.hint().as_deref());
            let is_of_config = matches!(&error, vcr_guest::GuestError::Call { call: "configure", .. });
            if is_of_config { blamed(&error) } else { Exit::Fault }
        }
        Err(error) => {
            print_error(&error, Some("`wit/` lists the functions of each world and their parameters"));
            Exit::BadInput
        }
    }
}

/// The input as JSON: the text itself, or the content of the file that `@FILE` names.
fn input(text: &str) -> Result<Value, String> {
    let (read, what) = match text.strip_prefix('@') {
        Some(name) => (read_config(name)?, format!("the input `{name}`")),
        None => (text.to_owned(), "the input".to_owned()),
    };
    serde_json::from_str(&read).map_err(|error| format!("{what} is not JSON: {error}"))
}
