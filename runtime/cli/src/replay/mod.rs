//! `vcr replay`: the inputs of Dynamo's offline replay, with results in its terms.

pub(crate) mod args;
mod capacity;
pub(crate) mod check;
mod files;
mod setup;
mod show;
pub(crate) mod sweep;
pub(crate) mod tick_args;
pub(crate) mod ticks;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use vcr_cluster::observe::{Observer, Progress, StepRecord};
use vcr_cluster::{Overload, Report, simulate};
use vcr_dynamo::report::Summary;
use vcr_input::memory;
use vcr_scenario::{Blame, Reporter};
use vcr_trace::Trace;
use vcr_units::format_ns;

use crate::exit::{Exit, print_error, printed, tell};
use crate::refusal::Refusal;
use crate::stop;
use crate::terminal::progress::TerminalReporter;
use args::ReplayArgs;
use capacity::Capacity;
use setup::Setup;

pub(crate) fn replay(args: &ReplayArgs) -> Exit {
    if let Some(bytes) = args.run.memory_limit {
        memory::set_limit(bytes);
    }
    let done = match args.ticks.engine {
        Some(_) => ticks::replay(args),
        None => check::check(args).and_then(|()| match args.sweep.sweeps.is_empty() {
            true => replay_once(args),
            false => sweep::sweep(args),
        }),
    };
    done.unwrap_or_else(|refusal| {
        print_error(&refusal.message, refusal.hint.as_deref());
        refusal.exit
    })
}

/// A replay that has ended.
pub(crate) struct Replayed {
    run: Report,
    summary: Summary,
    warnings: Vec<String>,
    trace: Option<Arc<Trace>>,
    /// The account of `--capacity`.
    capacity: Option<serde_json::Value>,
}

impl Replayed {
    /// Replays once and writes the files that were asked for.
    pub(crate) fn execute(args: &ReplayArgs, reporter: &dyn Reporter) -> Result<Self, Refusal> {
        let files = files::Files::open(args)?;
        let trace = setup::read_trace(args)?;
        let setup = setup::setup(args, trace.as_ref())?;
        for warning in &setup.warnings {
            reporter.warn(warning);
        }
        let (config, warnings, mut settings) = (setup.config, setup.warnings, setup.settings);
        let started = Instant::now();
        let mut capacity = args.output.capacity.then(Capacity::default);
        let run = run(config, reporter, capacity.as_mut())?;
        if args.output.host_times {
            settings.wall_time_ms = Some(started.elapsed().as_secs_f64() * 1000.0);
        }
        let summary = Summary::of(&run, &settings);
        let capacity = capacity.map(|capacity| capacity.json(&run));
        let replayed = Self { run, summary, warnings, trace, capacity };
        replayed.results(args, reporter.stop()).write_files(files)?;
        Ok(replayed)
    }

    /// Whether it was stopped before its end.
    pub(crate) fn is_partial(&self) -> bool {
        self.run.partial
    }

    /// The report, as `--json` prints it.
    pub(crate) fn write_json(&self, args: &ReplayArgs, out: &mut dyn Write) -> io::Result<()> {
        self.results(args, None).write_json(out)
    }

    fn results<'a>(&'a self, args: &'a ReplayArgs, stopped_by: Option<&'static str>) -> show::Results<'a> {
        let Self { run, summary, warnings, trace, capacity } = self;
        let stopped_by = stopped_by.filter(|_| run.partial);
        let (trace, capacity) = (trace.as_deref(), capacity.as_ref());
        show::Results { args, run, summary, warnings, trace, stopped_by, capacity }
    }
}

fn replay_once(args: &ReplayArgs) -> Result<Exit, Refusal> {
    let reporter = TerminalReporter::new(args.output.quiet);
    let replayed = Replayed::execute(args, &reporter)?;
    let stopped = if replayed.is_partial() { stop::cause() } else { None };
    let printed_all = replayed.results(args, reporter.stop()).print(&mut anstream::stdout().lock());
    let Replayed { run, summary, .. } = &replayed;
    if let Some(cause) = stopped {
        let at = format_ns(run.duration_ms * 1e6);
        let (done, of) = (summary.completed_requests, summary.num_requests);
        tell(format_args!(
            "stopped by {} at {at} of virtual time, with {done} of {of} requests done; these results are partial",
            cause.name()
        ));
        return Ok(printed(printed_all, cause.exit()));
    }
    Ok(printed(printed_all, Exit::Passed))
}

/// Runs it, and shows how far it is.
fn run(
    config: vcr_cluster::RunConfig,
    reporter: &dyn Reporter,
    capacity: Option<&mut Capacity>,
) -> Result<Report, Refusal> {
    let name = config.name.clone();
    reporter.run_started(&name);
    let done = simulate(config, &mut Watcher { reporter, name: &name, capacity });
    reporter.run_ended(&name);
    done.map_err(|error| {
        let (blame, hint) = Blame::of(&error);
        let refusal = Refusal { exit: blame.into(), ..Refusal::input(error.to_string()) };
        Refusal { hint: hint.map(str::to_owned), ..refusal }
    })
}

struct Watcher<'a> {
    reporter: &'a dyn Reporter,
    name: &'a str,
    capacity: Option<&'a mut Capacity>,
}

impl Observer for Watcher<'_> {
    fn wants_steps(&self) -> bool {
        self.capacity.is_some()
    }

    fn wants_series(&self) -> bool {
        self.capacity.is_some()
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        if let Some(capacity) = &mut self.capacity {
            capacity.started(step);
        }
    }

    fn wants_stop(&self) -> bool {
        self.reporter.stop().is_some()
    }

    fn progress(&mut self, progress: &Progress) {
        self.reporter.progress(self.name, progress);
    }

    fn overloaded(&mut self, overload: &Overload<'_>) {
        self.reporter.warn(&overload.to_string());
    }

    fn check_limits(&mut self) -> Result<(), String> {
        memory::check().map_err(|error| error.to_string())
    }
}
