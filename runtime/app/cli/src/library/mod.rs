//! The commands as functions that return results; used by the Python package.
//!
//! A function takes the words of a command line without the program's name, so its options, rules and errors are
//! those of the command. It prints nothing and handles no signals: a caller stops a run through its [`Reporter`].

mod simulations;
mod sweep;
mod tables;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use vcr_dynamo::ticks::TickReport;
use vcr_scenario::{HostPlugin, OutFile, Outcome, RunOptions, Scenario};
use vcr_trace::import::table::Column;

use crate::args::{Command, RunArgs};
use crate::pack::OpenedPack;
use crate::replay::{Replayed, args::ReplayArgs, ticks};
use crate::terminal::text::{without_parse_messages, without_rust_types};
use crate::words::parsed;
use crate::{compare, run};

pub use crate::refusal::{Place, Refusal};
pub use simulations::Simulations;
pub use sweep::{InputFile, Sweep};
pub use tables::{capture_columns, step_columns, write_columns};
pub use vcr_scenario::{Reporter, parallel};
pub use vcr_trace::import::table::{self, Cells};

/// A scenario that is not in a file, and its name in results and errors.
#[derive(Clone, Debug)]
pub struct Source {
    /// File name. Relative paths start at its folder.
    pub name: String,
    /// The script.
    pub text: String,
}

/// Inputs of `vcr run` in addition to the command line.
#[derive(Debug, Default)]
pub struct RunExtras {
    /// Replaces the file on the command line.
    pub source: Option<Source>,
    /// Plugins for `plugin(name)` of the script, by name.
    pub plugins: std::collections::BTreeMap<String, HostPlugin>,
    /// Whether to record engine states over time for the page's charts.
    pub keeps_series: bool,
}

/// An executed scenario.
#[derive(Debug)]
pub struct Run {
    /// The results.
    pub outcome: Outcome,
    source: String,
}

impl Run {
    /// Writes a file of `--out` that needs only the results.
    ///
    /// # Errors
    /// Errors of `out`, or a file that must be written during the runs.
    pub fn write(&self, file: OutFile, out: &mut (impl Write + Send)) -> io::Result<()> {
        self.outcome.write_file(file, &self.source, out)
    }

    /// The requests of all runs.
    #[must_use]
    pub fn requests(&self) -> Vec<Column> {
        self.outcome.request_columns()
    }
}

/// Executes one scenario or pack once. The report equals that of `vcr run --json`.
///
/// # Errors
/// The errors of the command, and options for repeated executions.
pub fn run(words: &[OsString], extras: RunExtras, reporter: Arc<dyn Reporter>) -> Result<Run, Refusal> {
    let args = run_args(words)?;
    if args.questions.search.is_some() || !args.questions.sweeps.is_empty() || args.questions.repeat.is_some() {
        return Err(Refusal::input("expected one execution; sweeps, searches and repetitions are `vcr.sweep`"));
    }
    if !args.several.more_files.is_empty() || args.several.watch {
        return Err(Refusal::input("expected one scenario, to be run once"));
    }
    let mut options = RunOptions { digests_inputs: true, ..run::options(&args)? };
    if let Some(bytes) = args.memory_limit {
        vcr_base::input::memory::set_limit(bytes);
    }
    options.plugins = extras.plugins;
    options.keeps_series = extras.keeps_series;
    let mut pack = None;
    let scenario = match extras.source {
        Some(source) => compile(&source)?,
        None => {
            pack = OpenedPack::open(&args.file)?;
            Scenario::open(&pack.as_ref().map_or_else(|| args.file.clone(), OpenedPack::script))?
        }
    };
    if let Some(pack) = &mut pack {
        pack.complete(&mut options);
    }
    let source = scenario.source().to_owned();
    let outcome = scenario.run(options, reporter).map_err(|error| Refusal::of_script(error, &source))?;
    Ok(Run { outcome, source })
}

/// Checks a scenario without running it.
pub fn check(words: &[OsString], extras: RunExtras) -> Result<(), Refusal> {
    let args = run_args(words)?;
    let mut options = run::options(&args)?;
    options.plugins = extras.plugins;
    let scenario = match extras.source {
        Some(source) => compile(&source)?,
        None => Scenario::open(&args.file)?,
    };
    let checked = scenario.check(options, Arc::new(vcr_scenario::Silent));
    checked.map(|_| ()).map_err(|error| Refusal::of_script(error, scenario.source()))
}

fn compile(source: &Source) -> Result<Scenario, Refusal> {
    let compiled = Scenario::compile(Path::new(&source.name), source.text.clone());
    compiled.map_err(|error| Refusal::of_script(error, &source.text))
}

/// A completed or stopped replay.
pub struct Replay(Ended);

enum Ended {
    Workers { args: Box<ReplayArgs>, replayed: Box<Replayed> },
    Ticks(Box<TickReport>),
}

impl Replay {
    /// Whether the replay was stopped early.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        match &self.0 {
            Ended::Workers { replayed, .. } => replayed.is_partial(),
            Ended::Ticks(report) => report.stopped_by.is_some(),
        }
    }

    /// Writes the report of `vcr replay --json`.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.0 {
            Ended::Workers { args, replayed } => replayed.write_json(args, out),
            Ended::Ticks(report) => ticks::write_json(out, report),
        }
    }
}

/// Replays a trace once.
///
/// # Errors
/// The errors of `vcr replay`, and options of sweeps.
pub fn replay(words: &[OsString], reporter: &dyn Reporter) -> Result<Replay, Refusal> {
    let Command::Replay(args) = command(words)? else {
        return Err(Refusal::input("expected the options of `vcr replay`"));
    };
    if !args.sweep.sweeps.is_empty() {
        return Err(Refusal::input("expected one replay; sweeps are `vcr.sweep`"));
    }
    if args.ticks.engine.is_some() {
        return Ok(Replay(Ended::Ticks(Box::new(ticks::report(&args, reporter)?))));
    }
    crate::replay::check::check(&args)?;
    let replayed = Box::new(Replayed::execute(&args, reporter)?);
    Ok(Replay(Ended::Workers { args: args.into_inner(), replayed }))
}

/// Compares two runs or captures; returns the output of `vcr compare --json`.
///
/// # Errors
/// When a side cannot be read, or the sides have nothing in common.
pub fn compare(words: &[OsString]) -> Result<String, Refusal> {
    let Command::Compare(args) = command(words)? else {
        return Err(Refusal::input("expected the options of `vcr compare`"));
    };
    let comparison = compare::comparison(&args).map_err(Refusal::input)?;
    let mut text = Vec::new();
    let written = comparison.write_json(&mut text);
    written.map_err(|error| Refusal::input(format!("cannot write the comparison: {error}")))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn run_args(words: &[OsString]) -> Result<RunArgs, Refusal> {
    match command(words)? {
        Command::Run(args) => Ok(*args.into_inner()),
        _ => Err(Refusal::input("expected the options of `vcr run`")),
    }
}

/// Enables inputs and outputs at URLs, as in the program.
fn reach_objects() {
    #[cfg(feature = "store")]
    {
        static INSTALLED: std::sync::Once = std::sync::Once::new();
        INSTALLED.call_once(vcr_store::Store::install);
    }
    vcr_base::input::remote::look_again();
}

/// Parses words. The errors are those of the command line, without usage.
fn command(words: &[OsString]) -> Result<Command, Refusal> {
    reach_objects();
    let words = std::iter::once(OsString::from("vcr")).chain(words.iter().cloned()).collect();
    let parsed = parsed(words).map_err(|error| {
        let text = without_parse_messages(error.render().to_string());
        let text = text.split("\n\nUsage:").next().unwrap_or_default();
        let text = text.split("\n\nFor more information").next().unwrap_or_default();
        let text = text.strip_prefix("error: ").unwrap_or(text).trim_end();
        match text.split_once("\n\n") {
            Some((message, hint)) => {
                let hint = hint.trim_start().trim_start_matches("tip: ");
                Refusal::input(without_rust_types(message)).hint(hint)
            }
            None => Refusal::input(without_rust_types(text)),
        }
    });
    Ok(parsed?.command)
}
