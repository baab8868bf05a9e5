//! Executes one scenario with different parameters and seeds, concurrently.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vcr_cluster::Target;
use vcr_scenario::{Blame, OutFile, Reporter, RunOptions, Scenario, Silent, SourceFile, parallel};

use crate::args::RunArgs;
use crate::pack::OpenedPack;
use crate::refusal::Refusal;
use crate::run::args::QuestionArgs;
use crate::run::measured::Measured;
use crate::stop::{self, Cause};
use crate::terminal::progress::TerminalReporter;

#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Name of the execution in errors.
    pub(crate) label: String,
    /// Parameters in addition to the common ones.
    pub(crate) parameters: Vec<(String, String)>,
    /// Number of the repetition, from 0.
    pub(crate) repetition: u64,
}

/// A compiled scenario, and the state shared by its executions.
pub(crate) struct Points {
    scenario: Scenario,
    /// Owns the files of the pack.
    pack: Option<OpenedPack>,
    options: RunOptions,
    threads: usize,
    /// The folder that gets a folder for each execution, if any.
    out: Option<PathBuf>,
    reporter: Arc<PointReporter>,
    files_read: Mutex<BTreeSet<PathBuf>>,
}

impl Points {
    /// Makes the executions of a scenario. Points set the parameters `names`; `text` is a script that is not in a
    /// file.
    pub(crate) fn new(
        path: &Path,
        text: Option<&str>,
        mut options: RunOptions,
        names: &[&str],
        quiet: bool,
    ) -> Result<Self, Refusal> {
        if let Some(twice) = names.iter().find(|name| options.parameters.contains_key(**name)) {
            return Err(Refusal::input(format!("the parameter `{twice}` is given twice"))
                .hint("a search or a sweep sets it; leave out its -e"));
        }
        let mut pack = if text.is_some() { None } else { OpenedPack::open(path)? };
        if let Some(pack) = &mut pack {
            pack.complete(&mut options);
            // The results of points differ from the packed result.
            options.keeps_step_digests = false;
        }
        options.leaves_recordings_out = true;
        let scenario = match text {
            Some(text) => Scenario::compile(path, text.to_owned()).map_err(|error| Refusal::of_script(error, text))?,
            None => Scenario::open(&pack.as_ref().map_or_else(|| path.to_owned(), OpenedPack::script))?,
        };
        let known = scenario.parameters();
        if known.are_all_known
            && let Some(unknown) = names.iter().find(|name| !known.names.contains(**name))
        {
            let has = known.names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let hint = if has.is_empty() { "it takes none".to_owned() } else { format!("it takes {has}") };
            return Err(Refusal::input(format!("the scenario has no parameter `{unknown}`")).hint(hint));
        }
        let reporter = PointReporter { inner: TerminalReporter::new(quiet), warned: Mutex::default() };
        let threads = options.threads;
        let out = options.out.take();
        if out.is_some() {
            // Only the files that the page needs, because step logs of all points would fill a disk.
            options.files.get_or_insert_with(|| vec![OutFile::Report, OutFile::Charts, OutFile::Html]);
        }
        let files_read = Mutex::new(text.is_none().then(|| path.to_owned()).into_iter().collect());
        Ok(Self { scenario, pack, options, threads, out, reporter: Arc::new(reporter), files_read })
    }

    /// Executes points and returns their results in order; none for a stopped point. A failed assertion or an
    /// infeasible point is a result. A fault of a guest or an engine, or an invalid parameter value, ends all
    /// executions. `ended` is called with each result as soon as it exists.
    pub(crate) fn execute(
        &self,
        points: &[Point],
        ended: &(dyn Fn(usize, &Measured) + Sync),
    ) -> Result<Vec<Option<Measured>>, Refusal> {
        // Concurrent runs would add load to the same server.
        let at_once = if self.is_in_real_time() { 1 } else { self.threads.clamp(1, points.len().max(1)) };
        let threads = (self.threads / at_once).max(1);
        let (done, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let results = parallel(at_once, points, |index, point| {
            // Points start in order, so all points before the first failure are complete.
            if has_failed.load(Ordering::Relaxed) || stop::cause().is_some() {
                return Ok(None);
            }
            let reporter = Arc::new(Labelled { of: Arc::clone(&self.reporter), label: point.label.clone() });
            let measured = self.execute_one(point, threads, reporter);
            match &measured {
                Ok(Some(measured)) => ended(index, measured),
                Ok(None) => {}
                Err(_) => has_failed.store(true, Ordering::Relaxed),
            }
            self.reporter.inner.points(1 + done.fetch_add(1, Ordering::Relaxed), points.len());
            measured
        });
        self.reporter.inner.end_points();
        results.into_iter().collect()
    }

    fn options_of(&self, point: &Point, threads: usize) -> RunOptions {
        let mut parameters: BTreeMap<String, String> = self.options.parameters.clone();
        parameters.extend(point.parameters.iter().cloned());
        let pairs = point.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let out = self.out.as_ref().map(|out| out.join(folder_of(pairs, point.repetition)));
        RunOptions { parameters, threads, out, repetition: point.repetition, ..self.options.clone() }
    }

    /// Checks a point without running it. Returns the files that it names.
    pub(crate) fn check_one(&self, point: &Point) -> Result<Vec<SourceFile>, Refusal> {
        let checked = self.scenario.check(self.options_of(point, 1), Arc::new(Silent));
        checked.map(|checked| checked.sources).map_err(|error| Refusal::from(error).of(&point.label))
    }

    /// Whether `--target` selects real time.
    pub(crate) fn is_in_real_time(&self) -> bool {
        self.options.target.as_ref().is_some_and(|target| *target != Target::Virtual)
    }

    /// Whether the scenario is in a pack, which has all its inputs.
    pub(crate) fn is_packed(&self) -> bool {
        self.pack.is_some()
    }

    /// Executes a point; none if it was stopped.
    pub(crate) fn execute_one(
        &self,
        point: &Point,
        threads: usize,
        reporter: Arc<dyn Reporter>,
    ) -> Result<Option<Measured>, Refusal> {
        let options = self.options_of(point, threads);
        let outcome = match self.scenario.run(options, reporter) {
            Ok(outcome) => outcome,
            Err(error) if error.blame == Blame::Input => return Ok(Some(Measured::infeasible(error, &point.label))),
            Err(error) => return Err(Refusal::from(error).of(&point.label)),
        };
        // The files of a pack are temporary; the pack itself is already listed.
        if self.pack.is_none() {
            self.files_read.lock().unwrap_or_else(PoisonError::into_inner).extend(outcome.files_read.iter().cloned());
        }
        Ok(outcome.partial.is_none().then(|| Measured::of(&outcome)))
    }

    /// The scenario, and all files that executions have read so far.
    pub(crate) fn files_read(&self) -> Vec<PathBuf> {
        self.files_read.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Name of an execution's folder in the folder of `--out`.
pub(crate) fn folder_of<'a>(parameters: impl Iterator<Item = (&'a str, &'a str)>, repetition: u64) -> String {
    let parts: Vec<String> = parameters.map(|(name, value)| format!("{name}={value}")).collect();
    let is_plain = |c: char| c.is_alphanumeric() || "=.,-+ ".contains(c);
    let name: String = parts.join(",").chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    match repetition {
        0 => name,
        _ => format!("{name}-seed-{}", repetition + 1),
    }
}

/// All options that affect the results of points, except the swept ones.
pub(crate) fn settings(args: &RunArgs, options: &RunOptions) -> String {
    let QuestionArgs { search, until, tolerance, repeat, .. } = &args.questions;
    let RunOptions { seed, parameters, max_runs, max_time_ns, uncertainty, .. } = options;
    let RunArgs { target, .. } = args;
    format!("{:?}", (seed, parameters, max_runs, max_time_ns, uncertainty, target, search, until, tolerance, repeat))
}

struct PointReporter {
    inner: TerminalReporter,
    /// Warnings that were printed already.
    warned: Mutex<BTreeSet<String>>,
}

/// Prints each warning once, with the label of its point. Drops the script's output, which every point would repeat.
struct Labelled {
    of: Arc<PointReporter>,
    label: String,
}

impl Reporter for Labelled {
    fn run_started(&self, _name: &str) {
        self.of.inner.keep_results();
    }

    fn warn(&self, text: &str) {
        if self.of.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
            self.of.inner.warn(&format!("{}: {text}", self.label));
        }
    }

    fn stop(&self) -> Option<&'static str> {
        stop::cause().map(Cause::name)
    }
}
