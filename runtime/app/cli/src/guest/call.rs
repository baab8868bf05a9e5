//! `vcr guest call`.

use std::io::{self, Read, Write};

use serde_json::{Deserializer, Value};
use vcr_guest::{HandCallError, HandInstance};

use crate::exit::{Exit, print_error, printed};
use crate::guest::args::CallArgs;
use crate::guest::check::{blamed, load, not_json};
use crate::guest::config::read_config;

pub(crate) fn call_command(args: &CallArgs) -> Exit {
    let inputs = match inputs(&args.input) {
        Ok(inputs) => inputs,
        Err(message) => return not_json(&message),
    };
    let (module, config) = match load(&args.path, args.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    let mut instance = match HandInstance::new(&module, config.json(), args.seed) {
        Ok(instance) => instance,
        Err(error) => return failed(&error, None),
    };
    if args.example {
        return match instance.example(&args.function) {
            Ok(example) => printed(writeln!(io::stdout(), "{example:#}"), Exit::Passed),
            Err(error) => failed(&error, None),
        };
    }
    for (index, input) in inputs.documents.enumerate() {
        let call = (!inputs.is_one).then_some(index + 1);
        let input = match input {
            Ok(input) => input,
            Err(message) => {
                print_error(&message, Some("give one JSON object for each call"));
                return Exit::BadInput;
            }
        };
        let answer = match instance.call(&args.function, &input) {
            Ok(answer) => answer,
            Err(error) => return failed(&error, call),
        };
        let mut out = io::stdout().lock();
        let written = if inputs.is_one { writeln!(out, "{answer:#}") } else { writeln!(out, "{answer}") };
        if written.is_err() {
            return printed(written, Exit::Passed);
        }
    }
    Exit::Passed
}

/// Reports a call that gave no valid answer. `call` is its number, if there are several.
fn failed(error: &HandCallError, call: Option<usize>) -> Exit {
    let message = call.map_or_else(|| error.to_string(), |call| format!("call {call}: {error}"));
    match error {
        HandCallError::Guest(error) => {
            print_error(&message, error.hint().as_deref());
            let is_of_config = matches!(error, vcr_guest::GuestError::Call { call: "configure", .. });
            if is_of_config { blamed(error) } else { Exit::Fault }
        }
        _ => {
            print_error(&message, Some("add `--example` for an input that fits; `vcr guest wit` prints the interface"));
            Exit::BadInput
        }
    }
}

struct Inputs {
    documents: Box<dyn Iterator<Item = Result<Value, String>>>,
    /// Whether the input is a single object rather than a list or stream.
    is_one: bool,
}

/// The inputs as JSON: from the text, the file of `@FILE`, or standard input, which is read incrementally.
fn inputs(text: &str) -> Result<Inputs, String> {
    if text == "-" {
        return Ok(Inputs { documents: Box::new(documents(io::stdin(), "standard input".to_owned())), is_one: false });
    }
    let (read, what) = match text.strip_prefix('@') {
        Some(name) => (read_config(name)?, format!("the input `{name}`")),
        None => (text.to_owned(), "the input".to_owned()),
    };
    let mut read: Vec<Value> = documents(read.as_bytes(), what).collect::<Result<_, _>>()?;
    let is_one = read.len() == 1 && !read[0].is_array();
    if let [Value::Array(list)] = &mut read[..] {
        read = std::mem::take(list);
    }
    Ok(Inputs { documents: Box::new(read.into_iter().map(Ok)), is_one })
}

fn documents<'a>(reader: impl Read + 'a, what: String) -> impl Iterator<Item = Result<Value, String>> + 'a {
    let documents = Deserializer::from_reader(reader).into_iter();
    documents.map(move |document| document.map_err(|error| format!("{what} is not JSON: {error}")))
}
