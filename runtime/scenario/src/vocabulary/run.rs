//! `run` and `run_all`: simulations.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rhai::{Array, Dynamic, Engine, EvalAltResult, Map, NativeCallContext, Position};
use vcr_cluster::observe::{Incident, Observer, Progress, StepRecord};
use vcr_cluster::{MemoryEstimate, Overload, Report, RunConfig, SimError, Target, simulate};
use vcr_input::memory;
use vcr_output::OutputFile;

use crate::assertion::draws::{DrawnRun, Draws};
use crate::parallel::parallel;
use crate::results::outputs::Outputs;
use crate::results::recording;
use crate::results::run_files::{EnginePlace, RunFiles};
use crate::script::context::Context;
use crate::script::error::{Blame, Scripted, Thrown};
use crate::script::limits::{MEMORY_HINT, check_room};
use crate::script::options::{Options, describe};
use crate::script::register::with_options;
use crate::vocabulary::capture::workloads;
use crate::vocabulary::cluster::ClusterSpec;
use crate::vocabulary::drawn::{DrawnPool, redrawn};
use crate::vocabulary::fault::FaultSpec;
use crate::vocabulary::{parameter, target};

/// Seed of a run that neither the scenario nor the user seeds.
const DEFAULT_SEED: u64 = 1;

/// What is wrong with a run that is to be drawn and cannot be.
pub(crate) const NOTHING_TO_DRAW: &str = "no latency model of its pools knows how uncertain its coefficients are";

/// Share of the step time outside of a fitted range that is warned of.
const MAX_OUTSIDE_RANGE: f64 = 0.05;

/// The result of a run, as scripts hold it.
#[derive(Clone)]
pub(crate) struct RunResult {
    pub(crate) report: Arc<Report>,
    /// The same run with drawn coefficients, where that was asked for and possible.
    pub(crate) draws: Option<Arc<Draws>>,
}

/// A run to be made.
struct PlannedRun {
    config: RunConfig,
    target: Target,
    /// The capture to write, as the script names it.
    record: Option<String>,
    /// By pool.
    drawn: Vec<Option<DrawnPool>>,
}

impl PlannedRun {
    fn can_be_drawn(&self) -> bool {
        self.target.is_virtual() && self.drawn.iter().any(Option::is_some)
    }
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

fn plan(context: &Context, mut options: Options<'_>) -> Scripted<PlannedRun> {
    let name = options.name("name");
    let name = probed_name(context, name);
    let cluster = options.made::<ClusterSpec>("cluster", "made by cluster(#{ ... })");
    options.required::<()>("cluster", cluster.as_ref().map(|_| ()));
    let workloads = workloads(context, &mut options);
    let faults = elements::<FaultSpec>(&mut options, "faults", "faults such as crash(#{ ... })");
    let seed = options.u64("seed");
    let max_retries = options.u32("retries").unwrap_or(0);
    let max_time_ns = options.duration_ns("max_time");
    let target = target::taken(context, &mut options);
    let record = options.string("record");
    if record.as_deref().is_some_and(|path| Path::new(path).file_name().is_none()) {
        options.problem("record", "invalid `record`: expected the path of a file");
    }
    let faults = match &cluster {
        None => Vec::new(),
        Some(cluster) => resolve_faults(&faults, cluster, &mut options),
    };
    for (index, workload) in workloads.iter().enumerate() {
        if workloads[..index].iter().any(|other| other.name == workload.name) {
            let message = format!("two workloads are called `{}`; give each a `name`", workload.name);
            options.problem("workloads", message);
        }
    }
    let call = options.call_position();
    options.finish()?;
    let cluster = cluster.expect("a missing cluster is a problem of the options");
    let config = RunConfig {
        name,
        seed: context.options.seed.or(seed).unwrap_or(DEFAULT_SEED).wrapping_add(context.options.repetition),
        topology: cluster.topology,
        workloads,
        faults,
        max_retries,
        max_time_ns,
        samples_steps: true,
    };
    // Checked here rather than in the run, for the position of the error.
    config.check().map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Thrown::input(lines.join("\n  ")).at(call)
    })?;
    if !target.is_virtual() {
        target::driver(context, &target, &config).map_err(|thrown| thrown.at(call))?;
    }
    Ok(PlannedRun { config, target, record, drawn: cluster.drawn })
}

/// The name of a run: its own, and the values that searches try now.
fn probed_name(context: &Context, own: Option<String>) -> String {
    let probes = context.state().probes.join(" ");
    match (own, probes.is_empty()) {
        (own, true) => own.unwrap_or_else(|| "run".to_owned()),
        (Some(own), false) => format!("{own} {probes}"),
        (None, false) => probes,
    }
}

fn resolve_faults(
    specs: &[FaultSpec],
    cluster: &ClusterSpec,
    options: &mut Options<'_>,
) -> Vec<vcr_cluster::FaultConfig> {
    let mut faults = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        match spec.on(&cluster.topology) {
            Ok(fault) => faults.push(fault),
            Err(problem) => options.problem("faults", format!("fault {} {problem}", index + 1)),
        }
    }
    faults
}

/// The elements of an array option, all of one kind.
fn elements<T: Clone + Send + Sync + 'static>(options: &mut Options<'_>, name: &'static str, wanted: &str) -> Vec<T> {
    let mut found = Vec::new();
    for (index, value) in options.array(name).unwrap_or_default().into_iter().enumerate() {
        match value.clone().try_cast::<T>() {
            Some(element) => found.push(element),
            None => {
                let message = format!("`{name}` must hold {wanted}, but element {} is {}", index + 1, describe(&value));
                options.problem(name, message);
            }
        }
    }
    found
}

/// A simulation to be made: of a run as it is, or with drawn coefficients.
struct Task {
    run: usize,
    draw: Option<usize>,
}

/// Its outcome.
enum Simulated {
    Run(Box<Report>),
    Draw(Box<DrawnRun>),
}

/// Makes all runs of `planned`, several at a time, and keeps the results in order.
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
        let PlannedRun { config, target, record, drawn } = &planned[task.run];
        let Some(draw) = task.draw else {
            let recording = record.as_deref().and_then(|path| recording(context, path)).transpose()?;
            let report = execute_one(context, config.clone(), target, first_index + task.run)?;
            if let Some((path, draft)) = recording {
                recording::write(&report, &path, draft).map_err(|error| Thrown::from(&error))?;
            }
            return Ok(Some(Simulated::Run(Box::new(report))));
        };
        let report = execute_draw(context, config, redrawn(config, drawn, draw), draw)?;
        let done = 1 + done[task.run].fetch_add(1, Ordering::Relaxed);
        context.reporter.drawn(&config.name, done, context.options.uncertainty);
        // Half a run is no sample of whole ones.
        Ok((!report.partial).then(|| Simulated::Draw(Box::new(DrawnRun::new(report, &watched)))))
    };
    // In real time runs would be each other's load.
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
        let is_whole = !report.partial && draws.is_some() == is_drawn;
        let report = Arc::new(*report);
        context.state().runs.push(Arc::clone(&report));
        results.extend(is_whole.then_some(RunResult { report, draws }));
    }
    if let Some(thrown) = failure {
        return Err(thrown.at(call));
    }
    // The script cannot evaluate partial results.
    if results.len() < planned.len() {
        return Err(Box::new(EvalAltResult::ErrorTerminated(Dynamic::UNIT, call)));
    }
    Ok(results)
}

/// The result of a run that is not made.
fn unmade(context: &Context, config: &RunConfig) -> RunResult {
    let workloads = config.workloads.iter().map(|workload| workload.name.as_str());
    let report = Arc::new(Report::empty(&config.name, config.seed, workloads));
    context.state().runs.push(Arc::clone(&report));
    RunResult { report, draws: None }
}

/// The runs as they are come first: they take the longest, and have files.
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

fn execute_one(context: &Context, config: RunConfig, target: &Target, index: usize) -> Result<Report, Thrown> {
    let name = config.name.clone();
    let files = {
        let mut state = context.state();
        let open = |outputs: &mut Outputs| outputs.open_run(index, &name, EnginePlace::all_of(&config.topology));
        state.outputs.as_mut().map_or(Ok(None), open)
    };
    let files = files.map_err(|error| Thrown::from(&error))?;
    let wants_series = context.asks_series || context.state().outputs.as_ref().is_some_and(Outputs::wants_charts);
    let mut watcher = Watcher { context, name: &name, files, wants_series };
    context.reporter.run_started(&name);
    let result = carry_out(context, config, target, &mut watcher);
    context.reporter.run_ended(&name);
    let report = result?;
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

/// Simulates draw number `draw` of a run.
fn execute_draw(context: &Context, run: &RunConfig, drawn: RunConfig, draw: usize) -> Result<Report, Thrown> {
    // No run can be called so: what guests tell in draws is nobody's.
    let name = format!("{}\tdraw {draw}", run.name);
    let result = simulate(RunConfig { name: name.clone(), ..drawn }, &mut DrawWatcher { context });
    context.recorder.forget(&name);
    result.map_err(|error| {
        let thrown = sim_error(&run.name, error);
        let of = context.options.uncertainty;
        Thrown { message: format!("{} (in draw {} of {of} of its coefficients)", thrown.message, draw + 1), ..thrown }
    })
}

/// The path and the draft of a run's capture, unless none is written. Opened before the run,
/// which may take long.
fn recording(context: &Context, path: &str) -> Option<Result<(PathBuf, OutputFile), Thrown>> {
    if context.options.leaves_recordings_out {
        return None;
    }
    let path = context.folder.join(path);
    let mut state = context.state();
    let read = state.inputs.paths();
    let recordings = state.recordings.get_or_insert_with(|| vcr_output::Outputs::new(context.options.force));
    let draft = read.iter().try_for_each(|input| recordings.reads(input)).and_then(|()| recordings.create(&path));
    Some(draft.map(|draft| (path, draft)).map_err(|error| Thrown::from(&error)))
}

fn sim_error(name: &str, error: SimError) -> Thrown {
    let (blame, hint) = Blame::of(&error);
    Thrown { blame, message: format!("run `{name}`: {error}"), hint: hint.map(str::to_owned) }
}

/// Passes observations of a run to its files and to the progress display.
struct Watcher<'a> {
    context: &'a Context,
    name: &'a str,
    files: Option<RunFiles>,
    wants_series: bool,
}

impl Observer for Watcher<'_> {
    fn wants_series(&self) -> bool {
        self.wants_series
    }

    fn wants_steps(&self) -> bool {
        self.files.as_ref().is_some_and(RunFiles::wants_steps)
    }

    fn wants_step_digests(&self) -> bool {
        self.context.options.keeps_step_digests
    }

    fn wants_stop(&self) -> bool {
        self.context.reporter.stop().is_some()
    }

    fn submitted(&mut self, worker: u32, tag: u64) {
        if let Some(files) = &mut self.files {
            files.submitted(worker, tag);
        }
    }

    fn aborted(&mut self, worker: u32, tag: u64) {
        if let Some(files) = &mut self.files {
            files.aborted(worker, tag);
        }
    }

    fn scheduled(&mut self, worker: u32, engine: &vcr_core::AnyEngine) {
        if let Some(files) = &mut self.files {
            files.scheduled(worker, engine);
        }
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        if let Some(files) = &mut self.files {
            files.started(step);
        }
    }

    fn applied(&mut self, worker: u32, start_ns: u64, end_ns: u64, engine: &vcr_core::AnyEngine) {
        if let Some(files) = &mut self.files {
            files.applied(worker, start_ns, end_ns, engine);
        }
    }

    fn incident(&mut self, worker: u32, at_ns: u64, incident: Incident) {
        if let Some(files) = &mut self.files {
            files.incident(worker, at_ns, incident);
        }
    }

    fn progress(&mut self, progress: &Progress) {
        self.context.reporter.progress(self.name, progress);
    }

    fn overloaded(&mut self, overload: &Overload<'_>) {
        self.context.reporter.warn(&format!("run `{}`: {overload}", self.name));
    }

    fn check_limits(&mut self) -> Result<(), String> {
        memory::check().map_err(|error| error.to_string())
    }
}

/// Lets a draw be stopped, and keep to the limits.
struct DrawWatcher<'a> {
    context: &'a Context,
}

impl Observer for DrawWatcher<'_> {
    fn wants_stop(&self) -> bool {
        self.context.reporter.stop().is_some()
    }

    fn check_limits(&mut self) -> Result<(), String> {
        memory::check().map_err(|error| error.to_string())
    }
}
