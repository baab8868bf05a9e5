//! Observers of runs, which write files, show progress and stop runs.

use std::sync::Arc;

use vcr_base::input::memory;
use vcr_cluster::Overload;
use vcr_cluster::observe::{Incident, Observer, Progress, StepRecord, StepSink};

use crate::results::run_files::RunFiles;
use crate::results::step_files::StepFiles;
use crate::script::context::Context;

/// Forwards observations of a run to its files and to the progress display.
pub(super) struct Watcher<'a> {
    pub(super) context: &'a Context,
    pub(super) name: &'a str,
    pub(super) files: Option<RunFiles>,
    pub(super) wants_series: bool,
}

impl Watcher<'_> {
    /// The files while they need steps. A run with a capture reports steps in any case.
    fn step_files(&self) -> Option<&Arc<StepFiles>> {
        self.files.as_ref().map(RunFiles::steps).filter(|files| files.are_wanted())
    }
}

impl Observer for Watcher<'_> {
    fn wants_series(&self) -> bool {
        self.wants_series
    }

    fn wants_steps(&self) -> bool {
        self.step_files().is_some()
    }

    fn step_sink(&self) -> Option<Arc<dyn StepSink>> {
        self.step_files().map(|files| Arc::clone(files) as Arc<dyn StepSink>)
    }

    fn wants_step_digests(&self) -> bool {
        self.context.options.keeps_step_digests
    }

    fn wants_stop(&self) -> bool {
        self.context.reporter.stop().is_some()
    }

    fn submitted(&mut self, worker: u32, tag: u64) {
        if let Some(files) = self.step_files() {
            files.arrived(worker, tag);
        }
    }

    fn aborted(&mut self, worker: u32, tag: u64) {
        if let Some(files) = self.step_files() {
            files.aborted(worker, tag);
        }
    }

    fn compiled(&mut self, worker: u32, tag: u64, compilation: vcr_core::Compilation) {
        if let Some(files) = self.step_files() {
            files.compiled(worker, tag, compilation);
        }
    }

    fn failed(&mut self, worker: u32, tag: u64) {
        if let Some(files) = self.step_files() {
            files.failed(worker, tag);
        }
    }

    fn scheduled(&mut self, worker: u32, engine: &vcr_core::AnyEngine) {
        if let Some(files) = self.step_files() {
            files.scheduled(worker, engine);
        }
    }

    fn started(&mut self, step: &StepRecord<'_>) {
        if let Some(files) = self.step_files() {
            files.started(step.worker, (step.start_ns, step.end_ns), step.plan, step.engine);
        }
    }

    fn applied(&mut self, worker: u32, start_ns: u64, end_ns: u64, engine: &vcr_core::AnyEngine) {
        if let Some(files) = self.step_files() {
            files.applied(worker, start_ns, end_ns, engine);
        }
    }

    fn incident(&mut self, worker: u32, at_ns: u64, incident: Incident) {
        let Some(files) = self.files.as_ref().map(RunFiles::steps) else { return };
        if incident.ends_engine() {
            files.ended(worker);
        }
        files.incident(worker, at_ns, incident);
    }

    fn progress(&mut self, progress: &Progress) {
        self.context.reporter.progress(self.name, progress);
    }

    fn overloaded(&mut self, overload: &Overload) {
        self.context.reporter.warn(&format!("run `{}`: {overload}", self.name));
    }

    fn check_limits(&mut self) -> Result<(), String> {
        memory::check().map_err(|error| error.to_string())
    }
}

/// Observes draws. Can stop them, and checks limits.
pub(super) struct DrawWatcher<'a> {
    pub(super) context: &'a Context,
}

impl Observer for DrawWatcher<'_> {
    fn wants_stop(&self) -> bool {
        self.context.reporter.stop().is_some()
    }

    fn check_limits(&mut self) -> Result<(), String> {
        memory::check().map_err(|error| error.to_string())
    }
}
