//! Scenarios: Rhai scripts that describe clusters, workloads and assertions.
//!
//! The only crate that knows Rhai. [`run_file`] executes a script, whose `run`
//! calls are simulations in virtual time, and returns the [`Outcome`]: every report, every
//! assertion, and one fingerprint over all of it. The vocabulary is
//! described in `docs/reference/scenarios`.

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
    /// Replaces the seed of every run.
    pub seed: Option<u64>,
    /// Added to the seed of every run: the number of the repetition.
    pub repetition: u64,
    /// Values for `param(name, default)`.
    pub parameters: BTreeMap<String, String>,
    /// Maximum number of threads: for the runs of a `run_all`, and for a single run.
    pub threads: usize,
    /// Maximum number of runs of the scenario.
    pub max_runs: u64,
    /// Ends each run at this virtual time, in nanoseconds. Runs that it cuts short are marked
    /// partial; the script continues with their results.
    pub max_time_ns: Option<u64>,
    /// Number of further simulations of each run with drawn coefficients of its latency models, if these can
    /// be drawn.
    pub uncertainty: usize,
    /// The folder to write to.
    pub out: Option<PathBuf>,
    /// Replaces the target of every run.
    pub target: Option<Target>,
    /// Carries out runs on targets other than virtual time; none in builds without them.
    pub targets: Option<Arc<dyn TargetDriver>>,
    /// Files to write to the folder. None: all [default ones](OutFile::is_default), but steps
    /// and trace only while they have at most `steps_limit_bytes` together.
    pub files: Option<Vec<OutFile>>,
    /// See `files`.
    pub steps_limit_bytes: u64,
    /// Path for the requests alone.
    pub requests: Option<PathBuf>,
    /// Whether files that exist are replaced.
    pub force: bool,
    /// Files of a pack that replace the files that the script names, by their names in it.
    pub files_by_name: BTreeMap<String, PathBuf>,
    /// Write no captures of runs, even if the script asks for them: it is executed to be packed, or
    /// many times.
    pub leaves_recordings_out: bool,
    /// Keep a digest of each step of the runs.
    pub keeps_step_digests: bool,
    /// Keep the engines of every run over time, for the charts of a page that is written later.
    pub keeps_series: bool,
    /// Latency models, routers and scheduling policies of the program that has the scenario
    /// executed, for `plugin(name)`.
    pub plugins: BTreeMap<String, HostPlugin>,
    /// Digest the files that the script reads, for a report that the caller writes or prints.
    /// With `out` they are digested in any case.
    pub digests_inputs: bool,
    /// The tokenizers for data sets without stated lengths.
    pub tokenizers: Option<Tokenizers>,
    /// Checks in addition to the script's, in this order. Stopped scenarios are not judged.
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
    /// The files that the script has named, when it has ended or failed.
    fn has_read(&self, _files: &[SourceFile]) {}
    fn warn(&self, _text: &str) {}
    /// The reason to stop the scenario now with its results so far, if there is one, such as
    /// `SIGINT`. Polled regularly.
    fn stop(&self) -> Option<&'static str> {
        None
    }
}

/// Checks the results of a scenario beyond the assertions of its script. Its results are among the
/// assertions of every output, because they decide whether the scenario passes.
pub trait Judge: Send + Sync + fmt::Debug {
    /// The checked conditions and their results.
    fn judge(&self, outcome: &Outcome) -> Vec<AssertionResult>;
}

/// Ignores all progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Reporter for Silent {}

/// The result of a scenario: the contents of `report.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub schema_version: u32,
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
    /// The assertions of the script, in order, followed by the results of [`RunOptions::judges`].
    pub assertions: Vec<AssertionResult>,
    /// The searches that the script has made, in the order of their ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub searches: Vec<SearchReport>,
    /// The comparisons that the script made, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "serialize_comparisons")]
    pub comparisons: Vec<Arc<Compared>>,
    /// The decisions about releases that the script made, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "serialize_gates")]
    pub gates: Vec<Arc<vcr_gate::Report>>,
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
    /// The files that the script has read, as seen from the process.
    #[serde(skip)]
    pub files_read: Vec<PathBuf>,
}

impl Outcome {
    /// Writes one of the files that are made only of results, as `--out` does; `source` is the text of the
    /// script. Charts of engines over time need [`RunOptions::keeps_series`].
    ///
    /// # Errors
    /// If the writer fails, or the file is one that is written while runs are made.
    pub fn write_file(&self, file: OutFile, source: &str, out: &mut (impl Write + Send)) -> io::Result<()> {
        results::outputs::write_file(self, file, source, out)
    }

    /// The requests of all runs, with the columns of `requests.csv`.
    #[must_use]
    pub fn request_columns(&self) -> Vec<Column> {
        results::pictures::request_table(&self.runs).into_columns()
    }
}

/// Why an outcome is partial.
#[derive(Clone, Debug, Serialize)]
pub struct Partial {
    /// The reason that [`Reporter::stop`] returned, or `error` for one of the script.
    pub stopped_by: &'static str,
    /// The error, if it was one.
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
/// When the script, a file it names or an option is bad, or when a guest or an
/// engine fails. Failed assertions are part of the outcome, not an error.
pub fn run_file(path: &Path, options: RunOptions, reporter: Arc<dyn Reporter>) -> Result<Outcome, ScenarioError> {
    Scenario::open(path)?.run(options, reporter)
}
