//! `vcr guest vocabulary`.

use std::fs::OpenOptions;
use std::io::{self, Write};

use crate::exit::{Exit, print_error, printed};
use crate::guest::args::VocabularyArgs;
use crate::terminal::text::counted;

pub(crate) fn vocabulary_command(args: &VocabularyArgs) -> Exit {
    let config = match vcr_trace::import::vocabulary(&args.tokenizer) {
        Ok(config) => config,
        Err(error) => {
            print_error(&error, None);
            return Exit::BadInput;
        }
    };
    let Some(output) = &args.output else {
        return printed(writeln!(io::stdout().lock(), "{config}"), Exit::Passed);
    };
    let mut open = OpenOptions::new();
    open.write(true);
    if args.force {
        open.create(true).truncate(true)
    } else {
        open.create_new(true)
    };
    let written = open.open(output).and_then(|mut file| writeln!(file, "{config}"));
    if let Err(error) = written {
        let hint = (error.kind() == io::ErrorKind::AlreadyExists).then_some("give another name, or --force");
        print_error(&format!("cannot write `{}`: {error}", output.display()), hint);
        return Exit::BadInput;
    }
    let pieces = config["vocabulary"].as_object().map_or(0, serde_json::Map::len);
    printed(writeln!(io::stdout().lock(), "{}: {} of text", output.display(), counted(pieces, "piece")), Exit::Passed)
}
