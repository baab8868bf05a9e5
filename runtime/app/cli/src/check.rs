//! `vcr check`: reads and plans scenarios without running them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use vcr_base::input::remote::named;
use vcr_scenario::{Checked, RunOptions, Scenario};

use crate::exit::{Exit, eprint_line, print_error, printed};
use crate::help::with_check_exit_codes;
use crate::terminal::excerpt::with_line;
use crate::terminal::progress::TerminalReporter;
use crate::terminal::style::{DIM, GREEN};
use crate::terminal::text::{counted, printable};
use crate::values::parameter;

pub(crate) const EXAMPLES: &str = with_check_exit_codes!(
    "Examples:
  vcr check scenarios/pd_burst.rhai
  vcr check scenarios/pd_burst.rhai -e copies=24

It parses the script and executes it without its runs: names, types and units of all options,
the metrics of assertions, traces and other files, and guests with their configurations."
);

/// Options of `vcr check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The scenarios.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Set a parameter, as for `vcr run`.
    #[arg(short = 'e', long = "env", value_name = "KEY=VALUE", value_parser = parameter)]
    parameters: Vec<(String, String)>,

    /// Print only errors and warnings.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn check(args: &CheckArgs) -> Exit {
    let parameters: BTreeMap<String, String> = args.parameters.iter().cloned().collect();
    let mut exit = Exit::Passed;
    for file in &args.files {
        let options = RunOptions { parameters: parameters.clone(), ..RunOptions::default() };
        let reporter = Arc::new(TerminalReporter::new(false));
        match Scenario::open(file).and_then(|scenario| scenario.check(options, reporter)) {
            Ok(checked) => {
                if let written @ Err(_) = print(file, &checked, args.quiet) {
                    return printed(written, exit);
                }
            }
            Err(error) => {
                print_error(&with_line(&error), error.hint.as_deref());
                exit = exit.max(error.blame.into());
            }
        }
    }
    exit
}

fn print(file: &Path, checked: &Checked, quiet: bool) -> io::Result<()> {
    let name = printable(&named(file).display().to_string()).into_owned();
    for parameter in &checked.unused {
        eprint_line(format_args!(
            "warning: {name}: nothing reads the value of the parameter `{}`",
            printable(parameter)
        ));
    }
    if let Some(why) = &checked.unchecked {
        eprint_line(format_args!("warning: {name}: {}", printable(why)));
    }
    if quiet {
        return Ok(());
    }
    let mut out = anstream::stdout().lock();
    let Checked { runs, assertions, searches, files_read, .. } = checked;
    write!(out, "{GREEN}✓{GREEN:#} {name}: {}, {}", counted(*runs, "run"), counted(*assertions, "assertion"))?;
    if *searches > 0 {
        write!(out, ", {searches} {}", if *searches == 1 { "search" } else { "searches" })?;
    }
    writeln!(out)?;
    for (key, value) in &checked.parameters {
        writeln!(out, "    {DIM}-e{DIM:#} {}={}", printable(key), printable(value))?;
    }
    for file in files_read {
        writeln!(out, "    {DIM}reads{DIM:#} {}", printable(&named(file).display().to_string()))?;
    }
    Ok(())
}
