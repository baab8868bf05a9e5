//! `vcr run` with several scenarios or packs, one by one or concurrently.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;
use vcr_base::input::remote::named;
use vcr_base::units::format_ns;
use vcr_cluster::observe::Progress;
use vcr_pack::Settings;
use vcr_scenario::{Blame, Judge, Outcome, Reporter, RunOptions, Scenario, ScenarioError, SourceFile, parallel};

use crate::args::RunArgs;
use crate::exit::{Exit, eprint_line, print_error, printed};
use crate::pack::{OpenedPack, Verdict, default_pack, pack_failure};
use crate::refusal::Refusal;
use crate::run::single::{Failed, command_again};
use crate::stop;
use crate::terminal::excerpt::with_line;
use crate::terminal::layout::Layout;
use crate::terminal::progress::TerminalReporter;
use crate::terminal::style::{GREEN, RED};
use crate::terminal::text::printable;
use crate::terminal::{step_summary, summary};

struct Job {
    file: PathBuf,
    scenario: Scenario,
    pack: Option<Arc<OpenedPack>>,
    options: RunOptions,
    /// The parameters of the command line that the scenario reads.
    parameters: Vec<(String, String)>,
    /// The settings for packing a failure.
    settings: Settings,
}

impl Job {
    /// Reads and compiles a scenario, or the scenario of a pack. It gets the parameters that it reads.
    fn open(args: &RunArgs, options: &RunOptions, file: &Path) -> Result<Self, Refusal> {
        let mut pack = OpenedPack::open(file)?;
        let scenario = Scenario::open(&pack.as_ref().map_or_else(|| file.to_owned(), OpenedPack::script))?;
        let known = scenario.parameters();
        let is_read = |name: &String| !known.are_all_known || known.names.contains(name);
        let own = args.parameters.iter().filter(|(name, _)| is_read(name)).cloned().collect();
        let mut parameters = options.parameters.clone();
        parameters.retain(|name, _| is_read(name));
        let out = args.out.as_ref().map(|folder| folder.join(stem(file)));
        let mut options = RunOptions { parameters, out, ..options.clone() };
        if let Some(pack) = &mut pack {
            pack.complete(&mut options);
        }
        let pack = pack.map(Arc::new);
        options.judges.extend(pack.clone().map(|pack| pack as Arc<dyn Judge>));
        let settings = Settings {
            parameters: options.parameters.clone(),
            seed: options.seed,
            uncertainty: args.uncertainty.unwrap_or(0),
        };
        Ok(Self { file: file.to_owned(), scenario, pack, options, parameters: own, settings })
    }

    fn run(&self, threads: usize, terminal: &Arc<TerminalReporter>) -> Done {
        let began = Instant::now();
        let reporter =
            FileReporter { terminal: Arc::clone(terminal), name: stem(&self.file), sources: Mutex::default() };
        let reporter = Arc::new(reporter);
        let result = self
            .scenario
            .run(RunOptions { threads, ..self.options.clone() }, Arc::clone(&reporter) as Arc<dyn Reporter>);
        let verdict = self.pack.as_ref().and_then(|pack| match &result {
            Ok(outcome) => outcome.partial.is_none().then(|| pack.compare(outcome)),
            Err(error) => Some(pack.compare_error(error)),
        });
        // A failing pack need not be packed again.
        let packable = self.pack.is_none().then(|| Packable {
            settings: self.settings.clone(),
            sources: reporter.sources.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        });
        Done {
            parameters: self.parameters.clone(),
            verdict,
            packable,
            result: Some(result),
            wall_ns: began.elapsed().as_nanos() as f64,
            ..Done::not_started(&self.file)
        }
    }
}

/// A file and its result; none if it was not started.
struct Done {
    file: PathBuf,
    /// The parameters of the command line that the scenario reads.
    parameters: Vec<(String, String)>,
    result: Option<Result<Outcome, ScenarioError>>,
    /// The comparison with the packed result.
    verdict: Option<Verdict>,
    packable: Option<Packable>,
    wall_ns: f64,
}

/// The parts of a failure's pack, except the result.
struct Packable {
    settings: Settings,
    sources: Vec<SourceFile>,
}

impl Done {
    fn not_started(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            parameters: Vec::new(),
            result: None,
            verdict: None,
            packable: None,
            wall_ns: 0.0,
        }
    }

    fn exit(&self) -> Exit {
        match &self.result {
            None => Exit::Passed,
            Some(Err(error)) => error.blame.into(),
            Some(Ok(outcome)) if outcome.passed => Exit::Passed,
            Some(Ok(_)) => Exit::CheckFailed,
        }
    }

    /// Packs a failed assertion, guest or engine.
    fn pack_failure(&self) {
        let (Some(packable), Some(result)) = (&self.packable, &self.result) else { return };
        let has_failed = match result {
            Ok(outcome) => !outcome.passed && outcome.partial.is_none(),
            Err(error) => error.blame == Blame::Fault,
        };
        if has_failed {
            pack_failure(&self.file, "", packable.settings.clone(), result.as_ref(), &packable.sources);
        }
    }
}

/// Prints results in the order of the files, each as soon as all earlier ones are printed.
struct InOrder<'a> {
    args: &'a RunArgs,
    next: usize,
    ready: BTreeMap<usize, Done>,
    printed: Vec<Done>,
    written: io::Result<()>,
}

impl InOrder<'_> {
    fn add(&mut self, index: usize, done: Done) {
        self.ready.insert(index, done);
        while let Some(done) = self.ready.remove(&self.next) {
            if self.written.is_ok() {
                self.written = print(self.args, &done);
            }
            self.printed.push(done);
            self.next += 1;
        }
    }
}

/// Runs all files. Returns the exit code, and the files that were read.
pub(crate) fn many(args: &RunArgs, options: &RunOptions) -> Result<(Exit, Vec<PathBuf>), Refusal> {
    let files: Vec<PathBuf> = std::iter::once(&args.file).chain(&args.several.more_files).cloned().collect();
    check_folders(args, &files)?;
    check_packs(args, &files)?;
    // All scenarios are compiled before the first run, so that a typo fails early.
    let all = files.iter().map(|file| Job::open(args, options, file)).collect::<Result<Vec<_>, _>>()?;
    check_parameters(&all, options)?;
    let jobs = usize::from(args.several.jobs.get()).min(files.len());
    let threads = (options.threads / jobs).max(1);
    let terminal = Arc::new(TerminalReporter::new(args.quiet));
    let has_failed = AtomicBool::new(false);
    let output = Mutex::new(InOrder { args, next: 0, ready: BTreeMap::new(), printed: Vec::new(), written: Ok(()) });
    let started = Instant::now();
    parallel(jobs, &all, |index, job| {
        let ends = stop::cause().is_some() || (args.several.fail_fast && has_failed.load(Ordering::Relaxed));
        let done = if ends { Done::not_started(&job.file) } else { job.run(threads, &terminal) };
        if done.exit() != Exit::Passed {
            has_failed.store(true, Ordering::Relaxed);
        }
        output.lock().unwrap_or_else(PoisonError::into_inner).add(index, done);
    });
    let InOrder { printed: all, mut written, .. } = output.into_inner().unwrap_or_else(PoisonError::into_inner);
    if args.json && written.is_ok() {
        written = write_json(&all);
    }
    for done in &all {
        match &done.result {
            Some(Ok(outcome)) => step_summary::append(outcome),
            Some(Err(error)) => step_summary::append_error(&done.file, error),
            None => {}
        }
    }
    let read = all.iter().filter_map(|done| done.result.as_ref()?.as_ref().ok());
    let read: Vec<PathBuf> = read.flat_map(|outcome| outcome.files_read.clone()).chain(files).collect();
    print_totals(args, &all, started);
    let worst = all.iter().map(Done::exit).max().unwrap_or(Exit::Passed);
    let exit = stop::cause().filter(|_| all.iter().any(was_cut)).map_or(worst, |cause| cause.exit());
    Ok((printed(written, exit), read))
}

/// Whether a signal ended the run or prevented its start.
fn was_cut(done: &Done) -> bool {
    done.result.as_ref().is_none_or(|result| result.as_ref().is_ok_and(|outcome| outcome.partial.is_some()))
}

/// Checks that file names differ, because each scenario gets a folder in `--out` named after its file.
fn check_folders(args: &RunArgs, files: &[PathBuf]) -> Result<(), Refusal> {
    let twice = (1..files.len()).find(|index| files[..*index].iter().any(|file| stem(file) == stem(&files[*index])));
    match twice.filter(|_| args.out.is_some()) {
        Some(index) => Err(Refusal::input(format!("--out: two scenarios are called `{}`", stem(&files[index])))
            .hint("each has its own folder there; run them one by one")),
        None => Ok(()),
    }
}

/// Checks that the packs of failures, named after the scenarios, have different paths.
fn check_packs(args: &RunArgs, files: &[PathBuf]) -> Result<(), Refusal> {
    let Some(output) = &args.pack_on_failure else { return Ok(()) };
    if !output.is_empty() {
        let refusal = Refusal::input(format!("--pack-on-failure={output} names one pack for several scenarios"));
        return Err(refusal.hint("leave out the name: each failure is packed into SCENARIO.vcr"));
    }
    let packs: Vec<PathBuf> = files.iter().map(|file| default_pack(file)).collect();
    match (1..packs.len()).find(|index| packs[..*index].contains(&packs[*index])) {
        Some(index) => Err(Refusal::input(format!(
            "--pack-on-failure: two scenarios are packed into `{}`",
            packs[index].display()
        ))
        .hint("run them one by one")),
        None => Ok(()),
    }
}

/// Checks that at least one file reads each parameter.
fn check_parameters(jobs: &[Job], options: &RunOptions) -> Result<(), Refusal> {
    let known: Vec<_> = jobs.iter().map(|job| job.scenario.parameters()).collect();
    let is_read = |name: &String| known.iter().any(|known| !known.are_all_known || known.names.contains(name));
    match options.parameters.keys().find(|name| !is_read(name)) {
        Some(unknown) => Err(Refusal::input(format!("none of the scenarios has a parameter `{unknown}`"))),
        None => Ok(()),
    }
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn print(args: &RunArgs, done: &Done) -> io::Result<()> {
    let written = print_result(args, done);
    if let Some(Ok(outcome)) = &done.result
        && !outcome.passed
        && outcome.partial.is_none()
    {
        let again = command_again(args, &done.file, &done.parameters, &outcome.runs);
        eprint_line(format_args!("reproduce with: {again}"));
    }
    for line in done.verdict.iter().flat_map(|verdict| &verdict.lines) {
        eprint_line(format_args!("{}: {line}", printable(&named(&done.file).display().to_string())));
    }
    if args.pack_on_failure.is_some() {
        done.pack_failure();
    }
    written
}

fn print_result(args: &RunArgs, done: &Done) -> io::Result<()> {
    let name = named(&done.file).display().to_string();
    let outcome = match &done.result {
        Some(Ok(outcome)) => outcome,
        Some(Err(error)) => {
            print_error(&with_line(error), error.hint.as_deref());
            return Ok(());
        }
        None => {
            eprint_line(format_args!("{}: not started", printable(&name)));
            return Ok(());
        }
    };
    if args.json {
        return Ok(());
    }
    let mut out = anstream::stdout().lock();
    if args.full {
        return summary::write(&mut out, outcome, Layout::of_stdout(true));
    }
    let is_passed = done.exit() == Exit::Passed;
    if args.quiet && is_passed {
        return Ok(());
    }
    let kept = outcome.assertions.iter().filter(|made| made.passed).count();
    let (style, mark) = if is_passed { (GREEN, '✓') } else { (RED, '✗') };
    let partial = if outcome.partial.is_some() { ", partial" } else { "" };
    let reached = match outcome.assertions.len() {
        0 if outcome.partial.is_some() => "no assertion was reached".to_owned(),
        of => format!("{kept} of {of} assertions passed"),
    };
    writeln!(out, "{style}{mark}{style:#} {}  {reached}{partial}", printable(&name))?;
    for broken in outcome.assertions.iter().filter(|made| !made.passed) {
        writeln!(out, "    {RED}{}{RED:#}", printable(&broken.text()))?;
    }
    Ok(())
}

#[derive(Serialize)]
#[serde(untagged)]
enum Element<'a> {
    Report(&'a Outcome),
    Failed(Failed),
}

/// Writes a JSON element for each file: its report or its error.
fn write_json(all: &[Done]) -> io::Result<()> {
    let elements = all.iter().map(|done| match &done.result {
        Some(Ok(outcome)) => Element::Report(outcome),
        Some(Err(error)) => Element::Failed(Failed::new(&done.file, error.to_string())),
        None => Element::Failed(Failed::new(&done.file, "not started".to_owned())),
    });
    let elements: Vec<Element<'_>> = elements.collect();
    let mut out = anstream::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &elements)?;
    writeln!(out)
}

/// Prints totals to standard error, because they differ between runs.
fn print_totals(args: &RunArgs, all: &[Done], started: Instant) {
    if args.quiet {
        return;
    }
    let passed = all.iter().filter(|done| done.result.is_some() && done.exit() == Exit::Passed).count();
    let slowest = all.iter().max_by(|one, other| one.wall_ns.total_cmp(&other.wall_ns));
    let slowest =
        slowest.map(|done| format!("; the slowest was {} in {}", named(&done.file).display(), format_ns(done.wall_ns)));
    let wall = format_ns(started.elapsed().as_nanos() as f64);
    eprint_line(format_args!("{passed} of {} scenarios passed in {wall}{}", all.len(), slowest.unwrap_or_default()));
}

/// Adds the file's name to runs and messages.
struct FileReporter {
    terminal: Arc<TerminalReporter>,
    name: String,
    /// Files that the scenario has named.
    sources: Mutex<Vec<SourceFile>>,
}

impl FileReporter {
    fn of(&self, text: &str) -> String {
        format!("{}: {text}", self.name)
    }
}

impl Reporter for FileReporter {
    fn has_read(&self, files: &[SourceFile]) {
        *self.sources.lock().unwrap_or_else(PoisonError::into_inner) = files.to_vec();
    }

    fn run_started(&self, name: &str) {
        self.terminal.run_started(&self.of(name));
    }

    fn progress(&self, name: &str, progress: &Progress) {
        self.terminal.progress(&self.of(name), progress);
    }

    fn drawn(&self, name: &str, done: usize, of: usize) {
        self.terminal.drawn(&self.of(name), done, of);
    }

    fn run_ended(&self, name: &str) {
        self.terminal.run_ended(&self.of(name));
    }

    fn print(&self, text: &str) {
        self.terminal.print(&self.of(text));
    }

    fn warn(&self, text: &str) {
        self.terminal.warn(&self.of(text));
    }

    fn stop(&self) -> Option<&'static str> {
        self.terminal.stop()
    }
}
