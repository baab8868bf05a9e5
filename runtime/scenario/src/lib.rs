//! Scenarios: Rhai scripts that describe clusters, workloads and promises.
//!
//! The only crate that knows Rhai. [`run_file`] executes a script, whose `run`
//! calls are simulations in virtual time, and gives the [`Outcome`]: every
//! report, every promise, and one fingerprint over all of it. The vocabulary is
//! described in `docs/scenarios.md`.

mod autoscale;
mod check;
mod cluster;
mod compat;
mod context;
mod distribution;
mod engine;
mod error;
pub mod expression;
mod fault;
mod guest;
mod latency;
mod options;
mod output;
mod parameter;
mod policy;
mod pool_guest;
mod precheck;
mod promise;
mod router;
mod run;
mod side_by_side;
mod tiers;
mod told;
mod vocabulary;
mod workload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest, Sha256};
use vcr_cluster::Report;
use vcr_cluster::observe::Progress;

pub use check::Check;
pub use error::{Blame, ScenarioError};
pub use side_by_side::side_by_side;
pub use told::{GaugeReport, GuestReport, SeatReport};
pub use vocabulary::FUNCTIONS;

/// Script operations after which a scenario counts as never ending.
pub const MAX_SCRIPT_OPERATIONS: u64 = 50_000_000;

/// What a user sets from outside the script.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Replaces the seed of every run.
    pub seed: Option<u64>,
    /// Values for `param(name, default)`.
    pub parameters: BTreeMap<String, String>,
    /// Runs that go on side by side within a `run_all`.
    pub threads: usize,
    /// Where to write report, requests, steps and trace.
    pub out: Option<PathBuf>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { seed: None, parameters: BTreeMap::new(), threads: 1, out: None }
    }
}

/// Hears of a scenario while it goes on. Runs may be side by side.
pub trait Reporter: Send + Sync {
    /// A run begins.
    fn run_started(&self, _name: &str) {}
    /// A run goes on.
    fn progress(&self, _name: &str, _progress: &Progress) {}
    /// A run is over, well or not.
    fn run_ended(&self, _name: &str) {}
    /// The script printed something.
    fn print(&self, _text: &str) {}
    /// Something is odd but no error.
    fn warn(&self, _text: &str) {}
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Reporter for Silent {}

/// What came of a scenario: the contents of `report.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Version of this schema.
    pub schema_version: u32,
    /// File name of the script.
    pub scenario: String,
    /// The claim in the script's first comment, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Parameters with their values.
    pub parameters: BTreeMap<String, String>,
    /// Whether every promise was kept.
    pub passed: bool,
    /// The promises, in order.
    pub checks: Vec<Check>,
    /// SHA-256 over the fingerprints of all runs, as hex.
    pub fingerprint: String,
    /// The guests that took part, in the order of the script.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestReport>,
    /// The runs, in order.
    #[serde(serialize_with = "serialize_reports")]
    pub runs: Vec<Arc<Report>>,
}

fn serialize_reports<S: serde::Serializer>(reports: &[Arc<Report>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(reports.iter().map(Arc::as_ref))
}

/// Executes the scenario at `path`.
///
/// # Errors
/// When the script, a file it names or an option is bad, or when a guest or an
/// engine fails. Broken promises are no error but part of the outcome.
pub fn run_file(path: &Path, options: RunOptions, reporter: Arc<dyn Reporter>) -> Result<Outcome, ScenarioError> {
    let file = path.display().to_string();
    let input = |message: String, hint: Option<String>| ScenarioError {
        blame: Blame::Input,
        file: file.clone(),
        at: None,
        message,
        hint,
    };
    let source =
        std::fs::read_to_string(path).map_err(|error| input(format!("cannot read the scenario: {error}"), None))?;
    let outputs = match &options.out {
        None => None,
        Some(folder) => Some(
            output::Outputs::create(folder)
                .map_err(|error| input(format!("cannot write to `{}`: {error}", folder.display()), None))?,
        ),
    };
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let claim = claim(&source);
    let context = Arc::new(context::Context::new(source, folder, options, reporter, outputs));
    execute(&context, &file)?;
    let outcome = outcome(&context, path, claim);
    if outcome.runs.is_empty() {
        return Err(input(
            "the scenario made no run".to_owned(),
            Some("call run(#{ cluster: ..., workloads: [ ... ] })".to_owned()),
        ));
    }
    let state = context.state();
    if let Some(outputs) = &state.outputs {
        let written = outputs.finish(outcome.runs.len(), &outcome);
        written.map_err(|error| input(format!("cannot write the outputs: {error}"), None))?;
    }
    drop(state);
    Ok(outcome)
}

fn execute(context: &Arc<context::Context>, file: &str) -> Result<(), ScenarioError> {
    let engine = vocabulary::engine(context);
    let script = engine.compile(&context.source).map_err(|error| {
        let position = error.position();
        ScenarioError {
            blame: Blame::Input,
            file: file.to_owned(),
            at: position.line().map(|line| (line, position.position().unwrap_or(1))),
            message: error.err_type().to_string(),
            hint: None,
        }
    })?;
    precheck::check(&script).map_err(|error| error::from_script(file, &error))?;
    engine.run_ast(&script).map_err(|error| error::from_script(file, &error))?;
    let unused = parameter::check_all_used(context);
    unused.map_err(|thrown| ScenarioError {
        blame: thrown.blame,
        file: file.to_owned(),
        at: None,
        message: thrown.message,
        hint: thrown.hint,
    })
}

fn outcome(context: &context::Context, path: &Path, claim: Option<String>) -> Outcome {
    let state = context.state();
    let mut hash = Sha256::new();
    for report in &state.runs {
        hash.update(report.name.as_bytes());
        hash.update(report.fingerprint.as_bytes());
    }
    Outcome {
        schema_version: 1,
        scenario: path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        claim,
        parameters: state.parameters.clone(),
        passed: state.checks.iter().all(|check| check.passed),
        checks: state.checks.clone(),
        fingerprint: hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        guests: context.recorder.reports(),
        runs: state.runs.clone(),
    }
}

/// The leading `//!` comment of a script, as one text.
fn claim(source: &str) -> Option<String> {
    let lines: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let text = lines.join(" ").trim().to_owned();
    (!text.is_empty()).then_some(text)
}
