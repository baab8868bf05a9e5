//! `vcr replay`: what Dynamo's offline replay takes, answered in its terms.

pub(crate) mod args;
mod check;
mod setup;
mod show;
mod sweep;

use std::time::Instant;

use vcr_cluster::observe::{Observer, Progress};
use vcr_cluster::{Report, simulate};
use vcr_dynamo::DynamoError;
use vcr_dynamo::report::Summary;
use vcr_scenario::{Blame, Reporter, ScenarioError};

use crate::exit::{Exit, print_error, printed};
use crate::progress::TerminalReporter;
use args::ReplayArgs;
use setup::Setup;

/// Why nothing came of it.
pub(crate) struct Refusal {
    exit: Exit,
    message: String,
    hint: Option<String>,
}

impl Refusal {
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self { exit: Exit::BadInput, message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<DynamoError> for Refusal {
    fn from(error: DynamoError) -> Self {
        Self::input(error.to_string())
    }
}

impl From<ScenarioError> for Refusal {
    fn from(error: ScenarioError) -> Self {
        Self { exit: error.blame.into(), message: error.to_string(), hint: error.hint }
    }
}

pub(crate) fn replay(args: &ReplayArgs) -> Exit {
    let done = check::check(args).and_then(|()| match args.sweep.sweeps.is_empty() {
        true => replay_once(args),
        false => sweep::sweep(args),
    });
    done.unwrap_or_else(|refusal| {
        print_error(&refusal.message, refusal.hint.as_deref());
        refusal.exit
    })
}

fn replay_once(args: &ReplayArgs) -> Result<Exit, Refusal> {
    let trace = setup::read_trace(args)?;
    let setup = setup::setup(args, trace.as_ref())?;
    let reporter = TerminalReporter::new(args.output.quiet);
    for warning in &setup.warnings {
        reporter.warn(warning);
    }
    let (config, warnings, mut settings) = (setup.config, setup.warnings, setup.settings);
    let started = Instant::now();
    let run = run(config, &reporter)?;
    if args.output.host_times {
        settings.wall_time_ms = Some(started.elapsed().as_secs_f64() * 1000.0);
    }
    let summary = Summary::of(&run, &settings);
    let results = show::Results { args, run: &run, summary: &summary, warnings: &warnings, trace: trace.as_deref() };
    results.write_files()?;
    Ok(printed(results.print(&mut anstream::stdout().lock()), Exit::Passed))
}

/// Runs it, and shows how far it is.
fn run(config: vcr_cluster::RunConfig, reporter: &TerminalReporter) -> Result<Report, Refusal> {
    let name = config.name.clone();
    reporter.run_started(&name);
    let done = simulate(config, &mut Watcher { reporter, name: &name });
    reporter.run_ended(&name);
    done.map_err(|error| {
        let (blame, hint) = Blame::of(&error);
        Refusal { exit: blame.into(), message: error.to_string(), hint: hint.map(str::to_owned) }
    })
}

struct Watcher<'a> {
    reporter: &'a TerminalReporter,
    name: &'a str,
}

impl Observer for Watcher<'_> {
    fn progress(&mut self, progress: &Progress) {
        self.reporter.progress(self.name, progress);
    }
}
