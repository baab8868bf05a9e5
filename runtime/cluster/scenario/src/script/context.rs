//! State of a scenario while its script executes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use vcr_base::input::remote;
use vcr_cluster::Report;
use vcr_compare::Compared;

use crate::assertion::AssertionResult;
use crate::assertion::draws::Watched;
use crate::results::guest_telemetry::Recorder;
use crate::results::outputs::Outputs;
use crate::results::provenance::Inputs;
use crate::script::error::Thrown;
use crate::script::loaded::Loaded;
use crate::script::meter::Meter;
use crate::script::refusal::Refusal;
use crate::search::SearchReport;
use crate::{Reporter, RunOptions};

/// State that the vocabulary's functions share.
pub(crate) struct Context {
    pub(crate) source: String,
    /// Base folder of relative paths in the script.
    pub(crate) folder: PathBuf,
    pub(crate) options: RunOptions,
    pub(crate) reporter: Arc<dyn Reporter>,
    pub(crate) recorder: Arc<Recorder>,
    /// Maximum duration of a guest's call, for live engines.
    pub(crate) guest_wall_time: Option<Duration>,
    pub(crate) meter: Meter,
    /// Whether the script is only checked, without making runs.
    pub(crate) is_check: bool,
    /// Whether the script reads time series of engines, which cost some time.
    pub(crate) asks_series: bool,
    /// Files loaded by all executions of the script.
    pub(crate) loaded: Arc<Loaded>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Values of the script's parameters, as text.
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) runs: Vec<Arc<Report>>,
    pub(crate) run_names: RunNames,
    pub(crate) assertions: Vec<AssertionResult>,
    pub(crate) comparisons: Vec<Arc<Compared>>,
    pub(crate) gates: Vec<Arc<vcr_gate::Report>>,
    /// Statistics that draws must compute for the script's assertions.
    pub(crate) watched: Vec<Watched>,
    pub(crate) outputs: Option<Outputs>,
    /// The captures that runs write; None before the first one.
    pub(crate) recordings: Option<vcr_base::output::Outputs>,
    pub(crate) inputs: Inputs,
    /// Configurations that guests refused, in the order of the script.
    pub(crate) refusals: Vec<Arc<Refusal>>,
    /// Whether the script read a missing result during a check. Its further behaviour may then differ from that of
    /// a real execution.
    pub(crate) has_read_results: bool,
    /// Whether a warning says that the environment names no operator tables.
    pub(crate) lacks_tables: bool,
    /// URLs that cannot be fetched, and why.
    pub(crate) unreadable: BTreeMap<PathBuf, String>,
    /// Searches that have ended.
    pub(crate) searches: Vec<SearchReport>,
    /// Current values of the searches in progress, innermost last. Names of runs contain them.
    pub(crate) probes: Vec<String>,
}

#[derive(Default)]
pub(crate) struct RunNames {
    taken: BTreeSet<String>,
    /// For each name that several runs use, the number to try for the next run.
    next_copy: BTreeMap<String, u64>,
}

impl RunNames {
    /// Returns `name`, with a number appended if another run already has it.
    pub(crate) fn unique(&mut self, name: &str) -> String {
        let mut unique = name.to_owned();
        while !self.taken.insert(unique.clone()) {
            let copy = self.next_copy.entry(name.to_owned()).or_insert(2);
            unique = format!("{name} {copy}");
            *copy += 1;
        }
        unique
    }
}

impl Context {
    pub(crate) fn new(
        source: String,
        folder: PathBuf,
        options: RunOptions,
        reporter: Arc<dyn Reporter>,
        outputs: Option<Outputs>,
    ) -> Self {
        let recorder = Arc::new(Recorder::new(outputs.as_ref().is_some_and(Outputs::wants_course)));
        let state = Mutex::new(State { outputs, ..State::default() });
        let (loaded, meter) = (Arc::default(), Meter::new());
        Self {
            source,
            folder,
            options,
            reporter,
            recorder,
            guest_wall_time: None,
            meter,
            is_check: false,
            asks_series: false,
            loaded,
            state,
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means that a vocabulary function panicked, which was already reported.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Shows the script's printed text, up to a limit. In a check, results of runs are placeholders: nothing is
    /// shown from the first run on.
    pub(crate) fn print(&self, text: &str) {
        let has_placeholders = self.is_check && !self.state().runs.is_empty();
        if !has_placeholders && self.meter.may_print(text) {
            self.reporter.print(text);
        }
    }

    /// Whether a result that the script reads now is missing, because the script is only checked.
    pub(crate) fn reads_unmade_result(&self) -> bool {
        self.state().has_read_results |= self.is_check;
        self.is_check
    }

    /// The real path of a path in the script; for a URL, the path of its local copy. [`reads`](Self::reads) refuses
    /// a URL that cannot be fetched.
    pub(crate) fn resolve(&self, path: &str) -> PathBuf {
        if let Some(file) = self.options.files_by_name.get(path) {
            return file.clone();
        }
        let path = match remote::url(Path::new(path)) {
            Some(url) => PathBuf::from(url),
            None => self.folder.join(path),
        };
        match remote::local(&path) {
            Ok(local) => local.into_owned(),
            Err(error) => {
                self.state().unreadable.insert(path.clone(), remote::refusal(&error));
                path
            }
        }
    }

    /// Refuses to read a file that outputs will replace, or a URL that cannot be fetched.
    pub(crate) fn reads(&self, path: &Path) -> Result<(), Thrown> {
        if let Some(reason) = self.state().unreadable.get(path) {
            return Err(Thrown::input(reason.clone()));
        }
        let Some(outputs) = &mut self.state().outputs else { return Ok(()) };
        outputs.reads(path).map_err(|error| Thrown::from(&error))
    }
}
