//! `vcr replay`: runs the inputs of Dynamo's offline replay and reports in its terms.

pub(crate) mod args;
mod capacity;
pub(crate) mod check;
mod files;
mod host;
mod online;
pub(crate) mod profile_args;
mod setup;
mod show;
pub(crate) mod sweep;
mod telemetry;
pub(crate) mod tick_args;
pub(crate) mod ticks;

use std::io::{self, Write};
use std::sync::Arc;

use vcr_base::input::memory;
use vcr_base::units::format_ns;
use vcr_cluster::observe::{Observer, Progress, StepRecord, Telemetry};
use vcr_cluster::{Overload, Report, RunConfig, simulate};
use vcr_dynamo::report::Summary;
use vcr_scenario::{Blame, Reporter};
use vcr_trace::Trace;

use crate::exit::{Exit, eprint_line, printed};
use crate::refusal::Refusal;
use crate::stop;
use crate::terminal::progress::TerminalReporter;
use crate::terminal::write_at_once;
use args::{ReplayArgs, ReplayMode};
use capacity::Capacity;
use host::{HostClocks, HostUse};
use setup::Setup;
use telemetry::TelemetryFile;

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
    done.unwrap_or_else(Refusal::print)
}

/// Name of the time limit in reports.
const MAX_TIME: &str = "--max-sim-time";

/// A completed or stopped replay.
pub(crate) struct Replayed {
    run: Report,
    summary: Summary,
    /// The source of the times of steps.
    times: &'static str,
    warnings: Vec<String>,
    trace: Option<Arc<Trace>>,
    /// The cause that ended the replay early, if any.
    stopped_by: Option<&'static str>,
    /// Results of `--capacity`.
    capacity: Option<serde_json::Value>,
    /// Resources used on this machine, if requested.
    host: Option<HostUse>,
}

impl Replayed {
    /// Replays once and writes the requested files.
    pub(crate) fn execute(args: &ReplayArgs, reporter: &dyn Reporter) -> Result<Self, Refusal> {
        let mut files = files::Files::open(args)?;
        let trace = setup::read_trace(args)?;
        let setup = setup::setup(args, trace.as_ref())?;
        for warning in &setup.warnings {
            reporter.warn(warning);
        }
        let (config, times, warnings, mut settings) = (setup.config, setup.times, setup.warnings, setup.settings);
        let clocks = args.output.host_times.then(HostClocks::start);
        let mut capacity = args.output.capacity.then(Capacity::default);
        let mut telemetry = match args.output.telemetry.clone().zip(files.telemetry.take()) {
            None => None,
            Some((path, file)) => {
                Some(TelemetryFile::new(path, file, args.output.telemetry_interval, &config.topology)?)
            }
        };
        let how = match args.run.replay_mode {
            ReplayMode::Offline => How::Simulated,
            ReplayMode::Online => How::Live,
        };
        let watched = Watched { capacity: capacity.as_mut(), telemetry: telemetry.as_mut() };
        let run = run(config, how, reporter, watched)?;
        telemetry.map_or(Ok(()), TelemetryFile::finish)?;
        let host = clocks.map(|clocks| clocks.stop());
        settings.wall_time_ms = host.map(|host| host.wall_ms());
        let summary = Summary::of(&run, &settings);
        let capacity = capacity.map(|capacity| capacity.json(&run));
        let stopped_by = match (run.partial, run.cut_short) {
            (true, _) => reporter.stop(),
            (false, cut_short) => cut_short.then_some(MAX_TIME),
        };
        let replayed = Self { run, summary, times, warnings, trace, stopped_by, capacity, host };
        replayed.results(args).write_files(files)?;
        Ok(replayed)
    }

    /// Whether the replay ended early.
    pub(crate) fn is_partial(&self) -> bool {
        self.run.partial
    }

    pub(crate) fn write_json(&self, args: &ReplayArgs, out: &mut dyn Write) -> io::Result<()> {
        self.results(args).write_json(out)
    }

    fn results<'a>(&'a self, args: &'a ReplayArgs) -> show::Results<'a> {
        let Self { run, summary, times, warnings, trace, stopped_by, capacity, host } = self;
        let (trace, capacity, host) = (trace.as_deref(), capacity.as_ref(), host.as_ref());
        show::Results { args, run, summary, times, warnings, trace, stopped_by: *stopped_by, capacity, host }
    }
}

fn replay_once(args: &ReplayArgs) -> Result<Exit, Refusal> {
    let reporter = TerminalReporter::new(args.output.quiet);
    let replayed = Replayed::execute(args, &reporter)?;
    let stopped = if replayed.is_partial() { stop::cause() } else { None };
    let printed_all = write_at_once(|out| replayed.results(args).print(out));
    let Replayed { run, summary, stopped_by, .. } = &replayed;
    if let Some(cause) = stopped_by.filter(|_| stopped.is_some() || !args.output.quiet) {
        let at = format_ns(run.duration_ms * 1e6);
        let (done, of) = (summary.completed_requests, summary.num_requests);
        eprint_line(format_args!(
            "stopped by {cause} at {at} of virtual time, with {done} of {of} requests done; these results are partial"
        ));
    }
    Ok(printed(printed_all, stopped.map_or(Exit::Passed, stop::Cause::exit)))
}

/// Executes the run and shows its progress.
fn run(config: RunConfig, how: How, reporter: &dyn Reporter, watched: Watched<'_>) -> Result<Report, Refusal> {
    let name = config.name.clone();
    reporter.run_started(&name);
    let mut watcher = Watcher { reporter, name: &name, watched };
    let done = match how {
        How::Live => online::run(config, reporter, &mut watcher),
        How::Simulated => simulate(config, &mut watcher).map_err(|error| {
            let (blame, hint) = Blame::of(&error);
            let refusal = Refusal { exit: blame.into(), ..Refusal::input(error.to_string()) };
            Refusal { hint: hint.map(str::to_owned), ..refusal }
        }),
    };
    reporter.run_ended(&name);
    done
}

/// Virtual or real time.
#[derive(Clone, Copy, Debug)]
enum How {
    /// Virtual time.
    Simulated,
    /// Real time.
    Live,
}

/// Observers of a run.
#[derive(Default)]
struct Watched<'a> {
    capacity: Option<&'a mut Capacity>,
    telemetry: Option<&'a mut TelemetryFile>,
}

struct Watcher<'a> {
    reporter: &'a dyn Reporter,
    name: &'a str,
    watched: Watched<'a>,
}

impl Observer for Watcher<'_> {
    fn wants_steps(&self) -> bool {
        self.watched.capacity.is_some()
    }

    fn wants_series(&self) -> bool {
        self.watched.capacity.is_some() || self.watched.telemetry.is_some()
    }

    fn telemetry_interval_ns(&self) -> Option<u64> {
        self.watched.telemetry.as_ref().map(|file| file.interval_ns())
    }

    fn telemetry(&mut self, telemetry: &Telemetry<'_>) {
        if let Some(file) = &mut self.watched.telemetry {
            file.write(telemetry);
        }
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        if let Some(capacity) = &mut self.watched.capacity {
            capacity.started(step);
        }
    }

    fn wants_stop(&self) -> bool {
        self.reporter.stop().is_some() || self.watched.telemetry.as_ref().is_some_and(|file| file.has_failed())
    }

    fn progress(&mut self, progress: &Progress) {
        self.reporter.progress(self.name, progress);
    }

    fn overloaded(&mut self, overload: &Overload) {
        self.reporter.warn(&overload.to_string());
    }

    fn check_limits(&mut self) -> Result<(), String> {
        memory::check().map_err(|error| error.to_string())
    }
}
