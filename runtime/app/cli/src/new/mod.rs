//! `vcr new scenario`: creates a scenario that runs unchanged.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use crate::deferred::Deferred;
use crate::exit::{Exit, print_error, printed};
use crate::help::with_plain_exit_codes;

pub(crate) const EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr new scenario peak --from burst      # writes peak.rhai
  vcr new scenario split --from pd
  vcr new scenario drill --from faults
  vcr new scenario monday --from trace    # writes monday.rhai and monday.jsonl"
);

#[derive(Debug, Subcommand)]
pub(crate) enum NewCommand {
    /// Create a scenario that runs and passes unchanged.
    #[command(after_help = EXAMPLES)]
    Scenario(Deferred<NewScenarioArgs>),
}

/// Options of `vcr new scenario`.
#[derive(Debug, Args)]
pub(crate) struct NewScenarioArgs {
    /// Name of the scenario, with or without `.rhai`.
    name: PathBuf,

    /// Template to begin with.
    #[arg(long, value_name = "TEMPLATE", default_value = "burst")]
    from: Template,
}

/// A scenario to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Template {
    /// A burst on a pool of engines.
    Burst,
    /// Recorded arrivals.
    Trace,
    /// Disaggregated prefill and decode.
    Pd,
    /// An engine that crashes.
    Faults,
}

impl Template {
    fn script(self) -> &'static str {
        match self {
            Self::Burst => include_str!("burst.rhai"),
            Self::Trace => include_str!("trace.rhai"),
            Self::Pd => include_str!("pd.rhai"),
            Self::Faults => include_str!("faults.rhai"),
        }
    }
}

/// The trace of the template `trace`, and its placeholder in the template.
const TRACE: &str = include_str!("trace.jsonl");
const TRACE_NAME: &str = "TRACE.jsonl";

pub(crate) fn new(command: &NewCommand) -> Exit {
    let NewCommand::Scenario(args) = command;
    let has_extension = args.name.extension().is_some_and(|extension| extension == "rhai");
    let name = if has_extension { args.name.with_extension("") } else { args.name.clone() };
    let (script, trace) = (name.with_added_extension("rhai"), name.with_added_extension("jsonl"));
    let Some(trace_name) = trace.file_name().and_then(|name| name.to_str()) else {
        print_error(&"invalid name: expected a file name", None);
        return Exit::BadInput;
    };
    let mut files = vec![(script.as_path(), args.from.script().replace(TRACE_NAME, trace_name))];
    if args.from == Template::Trace {
        files.push((trace.as_path(), TRACE.to_owned()));
    }
    if let Some((path, _)) = files.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        print_error(&format!("`{}` exists", path.display()), Some("choose another name; no file is replaced"));
        return Exit::BadInput;
    }
    for (path, text) in &files {
        if let Err(error) = write(path, text) {
            print_error(&format!("cannot write `{}`: {error}", path.display()), None);
            return Exit::BadInput;
        }
    }
    let names: Vec<String> = files.iter().map(|(path, _)| path.display().to_string()).collect();
    let shown = script.display();
    let mut out = io::stdout().lock();
    let written = writeln!(out, "wrote {}\n\n  vcr check {shown}\n  vcr run {shown}", names.join(", "));
    printed(written, Exit::Passed)
}

/// Fails if the file exists, even if it was created just now.
fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::File::create_new(path)?.write_all(text.as_bytes())
}
