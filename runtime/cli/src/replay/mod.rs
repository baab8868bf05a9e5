//! `vcr replay`: the inputs of Dynamo's offline replay, with results in its terms.

pub(crate) mod args;
mod capacity;
mod check;
mod files;
mod setup;
mod show;
pub(crate) mod sweep;
pub(crate) mod tick_args;
mod ticks;

use std::time::Instant;

use vcr_cluster::observe::{Observer, Progress, StepRecord};
use vcr_cluster::{Overload, Report, simulate};
use vcr_dynamo::report::Summary;
use vcr_input::memory;
use vcr_scenario::{Blame, Reporter};
use vcr_units::format_ns;

use crate::exit::{Exit, print_error, printed, tell};
use crate::progress::TerminalReporter;
use crate::refusal::Refusal;
use crate::stop;
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

fn replay_once(args: &ReplayArgs) -> Result<Exit, Refusal> {
    let files = files::Files::open(args)?;
    let trace = setup::read_trace(args)?;
    let setup = setup::setup(args, trace.as_ref())?;
    let reporter = TerminalReporter::new(args.output.quiet);
    for warning in &setup.warnings {
        reporter.warn(warning);
    }
    let (config, warnings, mut settings) = (setup.config, setup.warnings, setup.settings);
    let started = Instant::now();
    let mut capacity = args.output.capacity.then(Capacity::default);
    let run = run(config, &reporter, capacity.as_mut())?;
    if args.output.host_times {
        settings.wall_time_ms = Some(started.elapsed().as_secs_f64() * 1000.0);
    }
    let summary = Summary::of(&run, &settings);
    let stopped = if run.partial { stop::cause() } else { None };
    let results = show::Results {
        args,
        run: &run,
        summary: &summary,
        warnings: &warnings,
        trace: trace.as_deref(),
        stopped,
        capacity: capacity.map(|capacity| capacity.json(&run)),
    };
    results.write_files(files)?;
    let printed_all = results.print(&mut anstream::stdout().lock());
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
    reporter: &TerminalReporter,
    capacity: Option<&mut Capacity>,
) -> Result<Report, Refusal> {
    let name = config.name.clone();
    reporter.run_started(&name);
    let done = simulate(config, &mut Watcher { reporter, name: &name, capacity });
    reporter.run_ended(&name);
    done.map_err(|error| {
        let (blame, hint) = Blame::of(&error);
        Refusal { exit: blame.into(), message: error.to_string(), hint: hint.map(str::to_owned) }
    })
}

struct Watcher<'a> {
    reporter: &'a TerminalReporter,
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
        stop::cause().is_some()
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
