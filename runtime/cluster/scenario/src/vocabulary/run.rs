//! `run` and `run_all`: simulations.

pub(crate) mod parameter;
mod plan;
pub(super) mod search;
pub(crate) mod target;
mod watcher;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rhai::{Array, Dynamic, Engine, EvalAltResult, Map, NativeCallContext, Position};
use vcr_base::output::OutputFile;
use vcr_base::units::format_ns;
use vcr_cluster::observe::Observer;
use vcr_cluster::{MemoryEstimate, Report, RunConfig, SimError, Target, simulate};

use crate::assertion::draws::{DrawnRun, Draws};
use crate::parallel::parallel;
use crate::results::outputs::Outputs;
use crate::results::recording;
use crate::results::step_files::EnginePlace;
use crate::script::context::Context;
use crate::script::error::{Blame, Scripted, Thrown};
use crate::script::limits::{MEMORY_HINT, check_room};
use crate::script::options::{Options, describe};
use crate::script::register::with_options;
use crate::vocabulary::cluster::drawn::redrawn;
use plan::{PlannedRun, plan};
use watcher::{DrawWatcher, Watcher};

/// Error of a run without a latency model that can be drawn.
pub(crate) const NOTHING_TO_DRAW: &str = "no latency model of its pools has uncertain coefficients";

/// Share of the step time outside of a fitted range above which a warning is printed.
const MAX_OUTSIDE_RANGE: f64 = 0.05;

#[derive(Clone)]
pub(crate) struct RunResult {
    pub(crate) report: Arc<Report>,
    /// The runs with drawn coefficients, if requested and possible.
    pub(crate) draws: Option<Arc<Draws>>,
}

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "run", |context, options| {
        let call = options.call_position();
        let run = plan(context, options)?;
        let mut results = execute(context, vec![run], call)?;
        Ok(results.remove(0))
    });
    let context = Arc::clone(context);
    engine.register_fn("run_all", move |call: NativeCallContext<'_>, runs: Array| -> Scripted<Array> {
        let at = call.call_position();
        let mut planned = Vec::new();
        for run in runs {
            let Some(map) = run.clone().try_cast::<Map>() else {
                let message = format!("`run_all` takes an array of maps, one a run, but found {}", describe(&run));
                return Err(Thrown::input(message).at(at));
            };
            planned.push(plan(&context, Options::new("run_all", &context.source, &call, map))?);
        }
        if planned.is_empty() {
            return Err(Thrown::input("`run_all` needs at least one run").at(at));
        }
        let results = context.meter.outside(|| execute(&context, planned, at))?;
        Ok(results.into_iter().map(Dynamic::from).collect())
    });
}

/// A simulation: a run itself, or the run with drawn coefficients.
struct Task {
    run: usize,
    draw: Option<usize>,
}

enum Simulated {
    Run(Box<Report>),
    Draw(Box<DrawnRun>),
}

/// Executes all runs of `planned`, several in parallel, and returns the results in order.
fn execute(context: &Context, mut planned: Vec<PlannedRun>, call: Position) -> Scripted<Vec<RunResult>> {
    parameter::check_all_used(context).map_err(|thrown| thrown.at(call))?;
    context.meter.count_runs(planned.len(), context.options.max_runs).map_err(|thrown| thrown.at(call))?;
    let estimates = planned.iter().map(|run| run.config.memory_estimate());
    check_room(estimates.fold(MemoryEstimate::default(), MemoryEstimate::plus))
        .map_err(|problem| Thrown::input(problem).hint(MEMORY_HINT).at(call))?;
    let first_index = context.state().runs.len();
    for PlannedRun { config, .. } in &mut planned {
        config.name = context.state().run_names.unique(&config.name);
        context.state().inputs.engines_of(&config.topology);
    }
    if context.is_check {
        return Ok(planned.iter().map(|run| unmade(context, &run.config)).collect());
    }
    let tasks = tasks(context, &planned);
    let watched = context.state().watched.clone();
    let done: Vec<AtomicUsize> = planned.iter().map(|_| AtomicUsize::new(0)).collect();
    let simulate = |task: &Task| {
        let PlannedRun { config, target, is_limited, record, drawn } = &planned[task.run];
        let Some(draw) = task.draw else {
            let recording = record.as_deref().and_then(|path| recording(context, path)).transpose()?;
            let limited = is_limited.then_some(config.max_time_ns).flatten();
            let mut report = execute_one(context, config.clone(), (target, limited), first_index + task.run)?;
            if let Some((path, draft)) = recording {
                let block_size_tokens = config.topology.pools()[0].engine.block_size();
                recording::write(&report, block_size_tokens, &path, draft).map_err(|error| Thrown::from(&error))?;
                report.kept = None;
            }
            return Ok(Some(Simulated::Run(Box::new(report))));
        };
        let report = execute_draw(context, config, redrawn(config, drawn, draw), draw)?;
        let done = 1 + done[task.run].fetch_add(1, Ordering::Relaxed);
        context.reporter.drawn(&config.name, done, context.options.uncertainty);
        // A partial draw is not comparable with complete ones.
        Ok((!report.partial).then(|| Simulated::Draw(Box::new(DrawnRun::new(report, &watched)))))
    };
    // In real time, parallel runs would load each other.
    let is_virtual = planned.iter().all(|run| run.target.is_virtual());
    let threads = if is_virtual { context.options.threads } else { 1 };
    let outcomes = parallel(threads, &tasks, |_, task| match context.reporter.stop() {
        Some(_) => Ok(None),
        None => simulate(task),
    });
    let mut reports: Vec<Option<Box<Report>>> = planned.iter().map(|_| None).collect();
    let mut draws: Vec<Vec<DrawnRun>> = planned.iter().map(|_| Vec::new()).collect();
    let mut failure: Option<Thrown> = None;
    for (task, outcome) in tasks.iter().zip(outcomes) {
        match outcome {
            Ok(Some(Simulated::Run(report))) => reports[task.run] = Some(report),
            Ok(Some(Simulated::Draw(drawn))) => draws[task.run].push(*drawn),
            Ok(None) => {}
            Err(thrown) => {
                failure = Some(thrown);
                break;
            }
        }
    }
    let mut results = Vec::new();
    for ((report, runs), planned) in reports.into_iter().zip(draws).zip(&planned) {
        let Some(mut report) = report else { continue };
        let is_drawn = planned.can_be_drawn() && context.options.uncertainty > 0;
        let draws = (is_drawn && runs.len() == context.options.uncertainty)
            .then(|| Arc::new(Draws::new(watched.clone(), runs)));
        report.uncertainty = draws.as_ref().map(|draws| draws.uncertainty());
        let is_whole = (report.cut_short || !report.partial) && draws.is_some() == is_drawn;
        let report = Arc::new(*report);
        context.state().runs.push(Arc::clone(&report));
        results.extend(is_whole.then_some(RunResult { report, draws }));
    }
    if let Some(thrown) = failure {
        return Err(thrown.at(call));
    }
    // The script cannot continue without the missing results.
    if results.len() < planned.len() {
        return Err(Box::new(EvalAltResult::ErrorTerminated(Dynamic::UNIT, call)));
    }
    Ok(results)
}

/// The result of a run in a script that is only checked.
fn unmade(context: &Context, config: &RunConfig) -> RunResult {
    let report = Arc::new(Report::unmade(config));
    context.state().runs.push(Arc::clone(&report));
    RunResult { report, draws: None }
}

/// Runs without draws come first, because they take longest and write files.
fn tasks(context: &Context, planned: &[PlannedRun]) -> Vec<Task> {
    let mut tasks: Vec<Task> = (0..planned.len()).map(|run| Task { run, draw: None }).collect();
    if context.options.uncertainty == 0 {
        return tasks;
    }
    for (run, planned) in planned.iter().enumerate() {
        if planned.can_be_drawn() {
            tasks.extend((0..context.options.uncertainty).map(|draw| Task { run, draw: Some(draw) }));
        } else {
            let name = &planned.config.name;
            context.reporter.warn(&format!("run `{name}`: {NOTHING_TO_DRAW}; it has no intervals"));
        }
    }
    tasks
}

/// Executes run number `index`. `limit_ns` is a time limit from outside the script.
fn execute_one(
    context: &Context,
    config: RunConfig,
    (target, limit_ns): (&Target, Option<u64>),
    index: usize,
) -> Result<Report, Thrown> {
    let name = config.name.clone();
    let files = {
        let mut state = context.state();
        let open = |outputs: &mut Outputs| outputs.open_run(index, &name, EnginePlace::all_of(&config.topology));
        state.outputs.as_mut().map_or(Ok(None), open)
    };
    let files = files.map_err(|error| Thrown::from(&error))?;
    let wants_series = context.asks_series || context.state().outputs.as_ref().is_some_and(Outputs::wants_charts);
    let mut watcher = Watcher { context, name: &name, files, wants_series };
    if let Some(warning) = config.media_warning() {
        context.reporter.warn(&format!("run `{name}`: {warning}"));
    }
    context.reporter.run_started(&name);
    let result = carry_out(context, config, target, &mut watcher);
    context.reporter.run_ended(&name);
    let mut report = result?;
    if let Some(limit_ns) = limit_ns.filter(|_| report.cut_short) {
        report.partial = true;
        context.reporter.warn(&format!(
            "run `{name}` was ended at {}, with {} of {} requests unfinished; it is partial",
            format_ns(limit_ns as f64),
            report.unfinished_requests,
            report.requests.len(),
        ));
    }
    for fault in &report.late_faults {
        context.reporter.warn(&format!("run `{name}`: {fault}"));
    }
    for note in report.target.iter().flat_map(|target| &target.notes) {
        context.reporter.warn(&format!("run `{name}`: {note}"));
    }
    if report.outside_fitted_range > Some(MAX_OUTSIDE_RANGE)
        && let Some(text) = report.outside_fitted_range_text()
    {
        context.reporter.warn(&format!("run `{name}`: {text}: its times are extrapolated there"));
    }
    if let Some(coverage) = report.table_coverage.filter(|coverage| coverage.extrapolated > MAX_OUTSIDE_RANGE) {
        context.reporter.warn(&format!("run `{name}`: {coverage}"));
    }
    if let Some(files) = watcher.files {
        files.finish(&report, &context.recorder.of_run(&name)).map_err(|error| match &context.state().outputs {
            Some(outputs) => Thrown::from(&outputs.error(error)),
            None => Thrown::input(error.to_string()),
        })?;
    }
    Ok(report)
}

/// Simulates a run, or measures it on its target.
fn carry_out(
    context: &Context,
    config: RunConfig,
    target: &Target,
    observer: &mut dyn Observer,
) -> Result<Report, Thrown> {
    let name = config.name.clone();
    if target.is_virtual() {
        return simulate(config, observer).map_err(|error| sim_error(&name, error));
    }
    let driver = target::driver(context, target, &config)?;
    driver.run(target, config, observer).map_err(|error| target::thrown(&name, error))
}

fn execute_draw(context: &Context, run: &RunConfig, drawn: RunConfig, draw: usize) -> Result<Report, Thrown> {
    // No run has this name, so that the telemetry of guests in draws belongs to no run.
    let name = format!("{}\tdraw {draw}", run.name);
    let result =
        simulate(RunConfig { name: name.clone(), keeps_requests: false, ..drawn }, &mut DrawWatcher { context });
    context.recorder.forget(&name);
    result.map_err(|error| {
        let thrown = sim_error(&run.name, error);
        let of = context.options.uncertainty;
        Thrown { message: format!("{} (in draw {} of {of} of its coefficients)", thrown.message, draw + 1), ..thrown }
    })
}

/// Opens the draft of a run's capture, unless no capture is written. Opened before the run, so that an error is
/// found before the run takes its time.
fn recording(context: &Context, path: &str) -> Option<Result<(PathBuf, OutputFile), Thrown>> {
    if context.options.leaves_recordings_out {
        return None;
    }
    let path = context.folder.join(path);
    let mut state = context.state();
    let read = state.inputs.paths();
    let recordings = state.recordings.get_or_insert_with(|| vcr_base::output::Outputs::new(context.options.force));
    let draft = read.iter().try_for_each(|input| recordings.reads(input)).and_then(|()| recordings.create(&path));
    Some(draft.map(|draft| (path, draft)).map_err(|error| Thrown::from(&error)))
}

fn sim_error(name: &str, error: SimError) -> Thrown {
    let (blame, hint) = Blame::of(&error);
    Thrown { blame, message: format!("run `{name}`: {error}"), hint: hint.map(str::to_owned) }
}
