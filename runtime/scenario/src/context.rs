//! What one scenario run remembers while its script executes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use vcr_cluster::Report;
use vcr_guest::GuestModule;
use vcr_trace::Trace;

use crate::check::Check;
use crate::output::Outputs;
use crate::told::Recorder;
use crate::{Reporter, RunOptions};

/// State shared by the vocabulary functions of one script.
pub(crate) struct Context {
    pub(crate) source: String,
    /// Relative paths in the script start here.
    pub(crate) folder: PathBuf,
    pub(crate) options: RunOptions,
    pub(crate) reporter: Arc<dyn Reporter>,
    /// The guests, and what they tell.
    pub(crate) recorder: Arc<Recorder>,
    /// The longest that a call of a guest may take, for live engines.
    pub(crate) guest_wall_time: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Parameters the script has asked for, with their values as text.
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) runs: Vec<Arc<Report>>,
    pub(crate) checks: Vec<Check>,
    pub(crate) outputs: Option<Outputs>,
    /// Guests and traces are loaded once, however often they are named.
    pub(crate) guests: BTreeMap<PathBuf, GuestModule>,
    pub(crate) traces: BTreeMap<(Vec<PathBuf>, String), Arc<Trace>>,
}

impl Context {
    pub(crate) fn new(
        source: String,
        folder: PathBuf,
        options: RunOptions,
        reporter: Arc<dyn Reporter>,
        outputs: Option<Outputs>,
    ) -> Self {
        let recorder = Arc::new(Recorder::new(outputs.is_some()));
        let state = Mutex::new(State { outputs, ..State::default() });
        Self { source, folder, options, reporter, recorder, guest_wall_time: None, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means that a vocabulary function panicked, which is a
        // bug that has been reported already.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A path of the script as seen from the process.
    pub(crate) fn resolve(&self, path: &str) -> PathBuf {
        self.folder.join(Path::new(path))
    }
}
