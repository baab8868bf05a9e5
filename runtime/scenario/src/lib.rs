//! Scenarios: Rhai scripts that describe clusters, workloads and assertions.
//!
//! The only crate that knows Rhai. [`run_file`] executes a script, whose `run`
//! calls are simulations in virtual time, and returns the [`Outcome`]: every report, every
//! assertion, and one fingerprint over all of it. The vocabulary is
//! described in `docs/reference/scenarios`.

mod assertion;
pub mod expression;
mod parallel;
mod results;
mod script;
#[cfg(test)]
mod uncertainty_tests;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest, Sha256};
use vcr_cluster::Report;
use vcr_cluster::observe::Progress;
use vcr_input::MAX_SCRIPT_BYTES;
use vcr_output::OutputError;
use vcr_report::Source;

pub use assertion::AssertionResult;
pub use parallel::parallel;
pub use results::guest_telemetry::{GaugeReport, GuestReport, InstanceReport};
pub use results::out_file::{OutFile, STEPS_LIMIT_BYTES};
pub use results::provenance::Input;
pub use script::error::{Blame, ScenarioError};
pub use script::functions::FUNCTIONS;
pub use script::limits::{DEFAULT_MAX_RUNS, MAX_SCRIPT_OPERATIONS, MEMORY_HINT, check_room};
pub use vocabulary::latency::fitted;

use assertion::precheck;
use results::outputs::Outputs;
use results::provenance;
use script::context::Context;
use script::error;
use vocabulary::parameter;

/// Settings from outside the script.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Replaces the seed of every run.
    pub seed: Option<u64>,
    /// Values for `param(name, default)`.
    pub parameters: BTreeMap<String, String>,
    /// Maximum number of parallel runs within a `run_all`.
    pub threads: usize,
    /// Maximum number of runs of the scenario.
    pub max_runs: u64,
    /// How often each run is simulated again with drawn coefficients of its latency
    /// models, where these can be drawn.
    pub uncertainty: usize,
    /// The folder to write to.
    pub out: Option<PathBuf>,
    /// Files to write to the folder. None: all [default ones](OutFile::is_default), but steps
    /// and trace only while they have at most `steps_limit_bytes` together.
    pub files: Option<Vec<OutFile>>,
    /// See `files`.
    pub steps_limit_bytes: u64,
    /// Where to write the requests alone.
    pub requests: Option<PathBuf>,
    /// Whether files that exist are replaced.
    pub force: bool,
    /// Digest the files that the script reads, for a report that the caller writes or prints.
    /// With `out` they are digested in any case.
    pub digests_inputs: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            seed: None,
            parameters: BTreeMap::new(),
            threads: 1,
            max_runs: DEFAULT_MAX_RUNS,
            uncertainty: 0,
            out: None,
            files: None,
            steps_limit_bytes: STEPS_LIMIT_BYTES,
            requests: None,
            force: false,
            digests_inputs: false,
        }
    }
}

/// Receives the progress of a scenario. Runs may be parallel.
pub trait Reporter: Send + Sync {
    /// A run begins.
    fn run_started(&self, _name: &str) {}
    /// A run has made progress.
    fn progress(&self, _name: &str, _progress: &Progress) {}
    /// Draws of a run that are done, and of how many.
    fn drawn(&self, _name: &str, _done: usize, _of: usize) {}
    /// A run has ended or failed.
    fn run_ended(&self, _name: &str) {}
    /// The script printed something.
    fn print(&self, _text: &str) {}
    /// A warning.
    fn warn(&self, _text: &str) {}
    /// The reason to stop the scenario now with its results so far, if there is one, such as
    /// `SIGINT`. Polled regularly.
    fn stop(&self) -> Option<&'static str> {
        None
    }
}

/// Ignores all progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Reporter for Silent {}

/// The result of a scenario: the contents of `report.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Version of this schema.
    pub schema_version: u32,
    /// Version of vcr.
    pub vcr_version: &'static str,
    /// File name of the script.
    pub scenario: String,
    /// SHA-256 of the script, as hex.
    pub scenario_sha256: String,
    /// Versions of vLLM whose scheduling rules the engines follow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vllm_rules: Vec<&'static str>,
    /// The files that the script has read; empty unless they were digested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    /// The claim in the script's first comment, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Parameters with their values.
    pub parameters: BTreeMap<String, String>,
    /// Whether every assertion passed.
    pub passed: bool,
    /// Present if the scenario was stopped early: it then has the runs so far and the
    /// assertions that were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<Partial>,
    /// The assertions, in order.
    pub assertions: Vec<AssertionResult>,
    /// SHA-256 over the fingerprints of all runs, as hex.
    pub fingerprint: String,
    /// The guests that took part, in the order of the script.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestReport>,
    /// The runs, in order.
    #[serde(serialize_with = "serialize_reports")]
    pub runs: Vec<Arc<Report>>,
    /// Names of the files in the folder of [`RunOptions::out`].
    #[serde(skip)]
    pub files: Vec<&'static str>,
}

/// Why an outcome is partial.
#[derive(Clone, Debug, Serialize)]
pub struct Partial {
    /// The reason that [`Reporter::stop`] returned.
    pub stopped_by: &'static str,
}

fn serialize_reports<S: serde::Serializer>(reports: &[Arc<Report>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(reports.iter().map(Arc::as_ref))
}

/// Executes the scenario at `path`.
///
/// # Errors
/// When the script, a file it names or an option is bad, or when a guest or an
/// engine fails. Failed assertions are part of the outcome, not an error.
pub fn run_file(path: &Path, options: RunOptions, reporter: Arc<dyn Reporter>) -> Result<Outcome, ScenarioError> {
    let file = path.display().to_string();
    let input = |message: String, hint: Option<String>| ScenarioError {
        blame: Blame::Input,
        file: file.clone(),
        at: None,
        message,
        hint,
    };
    let source = vcr_input::read_text(path, MAX_SCRIPT_BYTES)
        .map_err(|error| input(format!("cannot read the scenario: {error}"), None))?;
    // Some editors begin a file with a byte order mark.
    let source = source.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(source);
    let unwritable = |error: &OutputError| input(error.to_string(), error.hint().map(str::to_owned));
    let outputs = Outputs::create(path, &options).map_err(|error| unwritable(&error))?;
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let claim = claim(&source);
    let context = Arc::new(Context::new(source, folder, options, reporter, outputs));
    let partial = execute(&context, &file)?;
    let mut outcome = outcome(&context, path, claim, partial);
    if outcome.runs.is_empty() && outcome.partial.is_none() {
        return Err(input(
            "the scenario made no run".to_owned(),
            Some("call run(#{ cluster: ..., workloads: [ ... ] })".to_owned()),
        ));
    }
    let outputs = context.state().outputs.take();
    if context.options.digests_inputs || outputs.is_some() {
        let digested = context.state().inputs.digest();
        outcome.inputs = digested.map_err(|error| input(format!("cannot digest an input: {error}"), None))?;
    }
    if let Some(outputs) = outputs.filter(|_| !outcome.runs.is_empty()) {
        let source = Source { name: outcome.scenario.clone(), text: context.source.clone() };
        let written = outputs.finish(&outcome.runs, &outcome, source).map_err(|error| unwritable(&error))?;
        if !written.left_out.is_empty() {
            let (names, limit) = (written.left_out.join(" and "), context.options.steps_limit_bytes / 1_000_000);
            context.reporter.warn(&format!(
                "{names} would be larger than {limit} MB and were not written; \
                 --files report,requests,steps,trace writes them whatever their size"
            ));
        }
        outcome.files = written.names;
    }
    Ok(outcome)
}

/// Executes the script; returns what stopped it early, if anything did.
fn execute(context: &Arc<Context>, file: &str) -> Result<Option<Partial>, ScenarioError> {
    let engine = vocabulary::script_engine(context);
    let script = engine.compile(&context.source).map_err(|error| error::from_parser(file, &context.source, &error))?;
    let watched = precheck::check(&script).map_err(|error| error::from_script(file, &error))?;
    context.state().watched = watched;
    if let Err(error) = engine.run_ast(&script) {
        return match context.reporter.stop() {
            Some(stopped_by) if error::is_stopped(&error) => Ok(Some(Partial { stopped_by })),
            _ => Err(error::from_script(file, &error)),
        };
    }
    // Also the config of a guest that is not used.
    let refused = context.state().refusals.first().cloned();
    if let Some(refusal) = refused {
        return Err(error::from_script(file, &refusal.error()));
    }
    let unused = parameter::check_all_used(context);
    unused.map(|()| None).map_err(|thrown| ScenarioError {
        blame: thrown.blame,
        file: file.to_owned(),
        at: None,
        message: thrown.message,
        hint: thrown.hint,
    })
}

fn outcome(context: &Context, path: &Path, claim: Option<String>, partial: Option<Partial>) -> Outcome {
    let state = context.state();
    let mut hash = Sha256::new();
    for report in &state.runs {
        hash.update(report.name.as_bytes());
        hash.update(report.fingerprint.as_bytes());
    }
    Outcome {
        schema_version: 2,
        vcr_version: env!("CARGO_PKG_VERSION"),
        scenario: path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        scenario_sha256: provenance::sha256_of(context.source.as_bytes()),
        vllm_rules: state.inputs.vllm_rules(),
        inputs: Vec::new(),
        claim,
        parameters: state.parameters.clone(),
        passed: partial.is_none() && state.assertions.iter().all(|check| check.passed),
        partial,
        assertions: state.assertions.clone(),
        fingerprint: hex::encode(hash.finalize()),
        guests: context.recorder.reports(),
        runs: state.runs.clone(),
        files: Vec::new(),
    }
}

/// The leading `//!` comment of a script, as one text.
fn claim(source: &str) -> Option<String> {
    let lines: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let text = lines.join(" ").trim().to_owned();
    (!text.is_empty()).then_some(text)
}
