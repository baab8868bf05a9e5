//! Scenarios: Rhai scripts that describe clusters, workloads and assertions.
//!
//! This is the only crate that uses Rhai. [`run_file`] executes a script, whose `run` calls simulate in virtual
//! time unless they name a target. It returns the [`Outcome`]: every report, every assertion, and one fingerprint
//! over all runs. `docs/reference/scenarios` describes the vocabulary.

mod assertion;
mod checked;
pub mod expression;
mod knee;
mod parallel;
mod results;
mod scenario;
mod script;
pub mod search;
mod tokens;
#[cfg(test)]
mod uncertainty_tests;
mod vocabulary;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use vcr_cluster::observe::Progress;
use vcr_cluster::{Report, Target, TargetDriver};
use vcr_compare::Compared;
use vcr_trace::import::table::Column;

pub use assertion::AssertionResult;
pub use checked::Checked;
pub use parallel::parallel;
pub use results::guest_telemetry::{GaugeReport, GuestReport, InstanceReport};
pub use results::out_file::{OutFile, STEPS_LIMIT_BYTES};
pub use results::pictures::timeline_of;
pub use results::provenance::{Input, SourceFile};
pub use results::requests::compared_requests;
pub use scenario::Scenario;
pub use script::calls::Parameters;
pub use script::error::{Blame, ScenarioError};
pub use script::functions::FUNCTIONS;
pub use script::limits::{DEFAULT_MAX_RUNS, MAX_SCRIPT_OPERATIONS, MEMORY_HINT, check_room};
pub use tokens::{Tokenize, Tokenizers};
pub use vocabulary::engine::compat::COMPAT_TABLE;
pub use vocabulary::latency::fitted;
pub use vocabulary::plugin::HostPlugin;

use search::SearchReport;

/// Settings from outside the script.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Overrides the seed of every run.
    pub seed: Option<u64>,
    /// Number of the repetition, which is added to the seed of every run.
    pub repetition: u64,
    /// Values for `param(name, default)`.
    pub parameters: BTreeMap<String, String>,
    /// Maximum number of threads, for the runs of a `run_all` and for a single run.
    pub threads: usize,
    /// Maximum number of runs of the scenario.
    pub max_runs: u64,
    /// Maximum virtual time of each run, in nanoseconds. Runs that reach it are marked partial, and the script
    /// continues with their results.
    pub max_time_ns: Option<u64>,
    /// Number of further simulations of each run with drawn coefficients, if its latency models allow draws.
    pub uncertainty: usize,
    /// Folder of the output files.
    pub out: Option<PathBuf>,
    /// Overrides the target of every run.
    pub target: Option<Target>,
    /// Executes runs on targets other than virtual time; None in builds without such targets.
    pub targets: Option<Arc<dyn TargetDriver>>,
    /// Files to write to the folder. None writes all [default files](OutFile::is_default). Steps and trace are then
    /// dropped if they exceed `steps_limit_bytes` together.
    pub files: Option<Vec<OutFile>>,
    /// Limit of the default files `steps` and `trace`; see `files`.
    pub steps_limit_bytes: u64,
    /// Path of an additional file with only the requests.
    pub requests: Option<PathBuf>,
    /// Whether existing files are replaced.
    pub force: bool,
    /// Files of a pack that replace the files of the script, by their names in the script.
    pub files_by_name: BTreeMap<String, PathBuf>,
    /// Whether to write no captures even if the script asks for them, because the scenario is packed or executed
    /// many times.
    pub leaves_recordings_out: bool,
    /// Whether to keep a digest of each step.
    pub keeps_step_digests: bool,
    /// Whether to keep time series of every run's engines, for charts that are written later.
    pub keeps_series: bool,
    /// Plugins of the calling program for `plugin(name)`: latency models, routers and scheduling policies.
    pub plugins: BTreeMap<String, HostPlugin>,
    /// Whether to digest the files that the script reads, for a report that the caller writes or prints. With
    /// `out`, files are always digested.
    pub digests_inputs: bool,
    /// Tokenizers for data sets without stated lengths.
    pub tokenizers: Option<Tokenizers>,
    /// Further checks after the script's, in this order. They are skipped if the scenario is stopped.
    pub judges: Vec<Arc<dyn Judge>>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            seed: None,
            repetition: 0,
            parameters: BTreeMap::new(),
            threads: 1,
            max_runs: DEFAULT_MAX_RUNS,
            max_time_ns: None,
            uncertainty: 0,
            out: None,
            target: None,
            targets: None,
            files: None,
            steps_limit_bytes: STEPS_LIMIT_BYTES,
            requests: None,
            force: false,
            files_by_name: BTreeMap::new(),
            leaves_recordings_out: false,
            keeps_step_digests: false,
            keeps_series: false,
            plugins: BTreeMap::new(),
            digests_inputs: false,
            tokenizers: None,
            judges: Vec::new(),
        }
    }
}

/// Receives the progress of a scenario. Runs may be parallel.
pub trait Reporter: Send + Sync {
    /// A run has begun.
    fn run_started(&self, _name: &str) {}
    /// A run has made progress.
    fn progress(&self, _name: &str, _progress: &Progress) {}
    /// `done` of the `of` draws of a run are done.
    fn drawn(&self, _name: &str, _done: usize, _of: usize) {}
    /// A run has ended or failed.
    fn run_ended(&self, _name: &str) {}
    /// The script printed something.
    fn print(&self, _text: &str) {}
    /// The script has ended or failed after naming these files.
    fn has_read(&self, _files: &[SourceFile]) {}
    fn warn(&self, _text: &str) {}
    /// The reason to stop the scenario now with its results so far, such as `SIGINT`; None to continue. Called
    /// regularly.
    fn stop(&self) -> Option<&'static str> {
        None
    }
}

/// Checks the results of a scenario in addition to the script's assertions. The results are listed with the
/// assertions of every output, because they also decide whether the scenario passes.
pub trait Judge: Send + Sync + fmt::Debug {
    /// The checked conditions and their results.
    fn judge(&self, outcome: &Outcome) -> Vec<AssertionResult>;
}

/// Ignores all progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Reporter for Silent {}

/// The result of a scenario. Its fields are the contents of `report.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub schema_version: u32,
    pub vcr_version: &'static str,
    /// File name of the script.
    pub scenario: String,
    /// SHA-256 of the script, as hex.
    pub scenario_sha256: String,
    /// vLLM versions whose scheduling rules the engines follow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vllm_rules: Vec<&'static str>,
    /// The files that the script has read; empty unless files are digested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    /// The script's leading comment, which states what it shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Parameters with their values.
    pub parameters: BTreeMap<String, String>,
    /// Whether every assertion passed.
    pub passed: bool,
    /// The reason why the scenario was stopped early, if it was. The outcome then covers the runs and assertions until
    /// then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<Partial>,
    /// The assertions of the script, in order, followed by the results of [`RunOptions::judges`].
    pub assertions: Vec<AssertionResult>,
    /// The searches of the script, in the order in which they ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<SearchReport>,
    /// The comparisons of the script, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "serialize_comparisons")]
    pub comparisons: Vec<Arc<Compared>>,
    /// The gate decisions of the script, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "serialize_gates")]
    pub gates: Vec<Arc<vcr_gate::Report>>,
    /// SHA-256 over the fingerprints of all runs, as hex.
    pub fingerprint: String,
    /// The guests with an instance in any run, in the order of the script.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestReport>,
    /// The runs, in order.
    #[serde(serialize_with = "serialize_reports")]
    pub runs: Vec<Arc<Report>>,
    /// Names of the files in [`RunOptions::out`].
    #[serde(skip)]
    pub files: Vec<&'static str>,
    /// Paths of the files that the script has read.
    #[serde(skip)]
    pub files_read: Vec<PathBuf>,
}

impl Outcome {
    /// Writes one of the files that depend only on results, as `--out` does. `source` is the script. Time series of
    /// engines need [`RunOptions::keeps_series`].
    ///
    /// # Errors
    /// If the writer fails, or the file can only be written during runs.
    pub fn write_file(&self, file: OutFile, source: &str, out: &mut (impl Write + Send)) -> io::Result<()> {
        results::outputs::write_file(self, file, source, out)
    }

    /// The requests of all runs as columns, like `requests.csv`.
    #[must_use]
    pub fn request_columns(&self) -> Vec<Column> {
        results::pictures::request_table(&self.runs).into_columns()
    }
}

/// The reason why an outcome is partial.
#[derive(Clone, Debug, Serialize)]
pub struct Partial {
    /// The reason from [`Reporter::stop`], or `error` for an error of the script.
    pub stopped_by: &'static str,
    /// The error of the script, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

fn serialize_reports<S: serde::Serializer>(reports: &[Arc<Report>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(reports.iter().map(Arc::as_ref))
}

fn serialize_comparisons<S: serde::Serializer>(all: &[Arc<Compared>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(Arc::as_ref))
}

fn serialize_gates<S: serde::Serializer>(all: &[Arc<vcr_gate::Report>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(Arc::as_ref))
}

/// Executes the scenario at `path`.
///
/// # Errors
/// When the script, a file that it names, or an option is invalid, or when a guest or an engine fails. Failed
/// assertions are not errors, but part of the outcome.
pub fn run_file(path: &Path, options: RunOptions, reporter: Arc<dyn Reporter>) -> Result<Outcome, ScenarioError> {
    Scenario::open(path)?.run(options, reporter)
}
