//! `vcr guest call`.

use std::io::{self, Write};

use serde_json::Value;
use vcr_guest::{GuestModule, HandCallError, Limits};

use crate::exit::{Exit, print_error, printed};
use crate::guest::args::CallArgs;
use crate::guest::check::{Config, blamed, config};
use crate::guest::config::read_config;

pub(crate) fn call_command(args: &CallArgs) -> Exit {
    let read = input(&args.input).and_then(|input| Ok((input, args.config.as_deref().map(config).transpose()?)));
    let (input, given) = match read {
        Ok(read) => read,
        Err(message) => {
            print_error(&message, Some("give a JSON document such as '{}', or a file that holds one"));
            return Exit::BadInput;
        }
    };
    let module = match GuestModule::load(&args.path, Limits::default()) {
        Ok(module) => module,
        Err(error) => {
            print_error(&error, error.hint().as_deref());
            return blamed(&error);
        }
    };
    let config = Config::of(given, &module);
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
