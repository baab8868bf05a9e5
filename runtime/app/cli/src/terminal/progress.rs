//! Live progress on a terminal, with a line for every active run.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use vcr_base::units::format_ns;
use vcr_cluster::observe::Progress;
use vcr_scenario::{Reporter, SourceFile};

use crate::exit::eprint_line;
use crate::stop::{self, Cause, InOrder};
use crate::terminal::sparkline::ProgressHistory;
use crate::terminal::text::printable;

/// Shows runs on standard error, if it is a terminal.
pub(crate) struct TerminalReporter {
    quiet: bool,
    lines: Option<MultiProgress>,
    bars: Mutex<BTreeMap<String, ProgressBar>>,
    sources: Mutex<Vec<SourceFile>>,
    /// History of each run, by name.
    courses: Mutex<BTreeMap<String, ProgressHistory>>,
    /// Set at the first run, so that a signal does not lose results.
    in_order: OnceLock<InOrder>,
}

impl TerminalReporter {
    pub(crate) fn new(quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        Self {
            quiet,
            lines: shown.then(MultiProgress::new),
            bars: Mutex::default(),
            sources: Mutex::default(),
            courses: Mutex::default(),
            in_order: OnceLock::new(),
        }
    }

    /// The files that the scenario has named; complete when the scenario has ended.
    pub(crate) fn sources(&self) -> Vec<SourceFile> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on a signal does not end the process, so that results can be saved.
    pub(crate) fn keep_results(&self) {
        self.in_order.get_or_init(|| stop::in_order(|| {}));
    }

    /// Shows how many executions of a scenario are done.
    pub(crate) fn points(&self, done: usize, of: usize) {
        self.count("executions", done, of);
    }

    /// Removes the line for executions.
    pub(crate) fn end_points(&self) {
        if let Some(bar) = self.bars().remove("executions") {
            bar.finish_and_clear();
        }
    }

    /// Shows a bar with `done` of `of` items.
    fn count(&self, key: &str, done: usize, of: usize) {
        let Some(lines) = &self.lines else { return };
        let mut bars = self.bars();
        let bar = bars.entry(key.to_owned()).or_insert_with(|| {
            let style = ProgressStyle::with_template("  {prefix}  {bar:24} {pos} of {len}")
                .unwrap_or(ProgressStyle::default_bar());
            lines.add(ProgressBar::new(of as u64).with_style(style).with_prefix(key.to_owned()))
        });
        // Threads may report out of order.
        bar.set_position(bar.position().max(done as u64));
        if done == of
            && let Some(bar) = bars.remove(key)
        {
            bar.finish_and_clear();
        }
    }

    fn bars(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, ProgressBar>> {
        self.bars.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, text: &str) {
        let text = printable(text);
        match &self.lines {
            Some(lines) => lines.suspend(|| eprint_line(format_args!("{text}"))),
            None => eprint_line(format_args!("{text}")),
        }
    }
}

impl Reporter for TerminalReporter {
    fn has_read(&self, files: &[SourceFile]) {
        *self.sources.lock().unwrap_or_else(PoisonError::into_inner) = files.to_vec();
    }

    fn run_started(&self, name: &str) {
        self.keep_results();
        let Some(lines) = &self.lines else { return };
        let style =
            ProgressStyle::with_template("{spinner} {prefix}  {msg}").unwrap_or(ProgressStyle::default_spinner());
        let bar = lines.add(ProgressBar::new_spinner().with_style(style).with_prefix(name.to_owned()));
        bar.enable_steady_tick(Duration::from_millis(100));
        self.bars().insert(name.to_owned(), bar);
    }

    fn progress(&self, name: &str, progress: &Progress) {
        let bars = self.bars();
        let Some(bar) = bars.get(name) else { return };
        let mut courses = self.courses.lock().unwrap_or_else(PoisonError::into_inner);
        let course = courses.entry(name.to_owned()).or_default();
        course.note(progress, Instant::now());
        let left = course
            .left(progress)
            .map_or_else(String::new, |left| format!(" · about {} to go", format_ns(left.as_nanos() as f64)));
        let course = course.line();
        bar.set_message(format!(
            "{} virtual · {} of {} requests done · {} running, {} waiting · {} steps{left}{}{course}",
            format_ns(progress.now_ns as f64),
            progress.ended,
            progress.expected.unwrap_or(progress.arrived),
            progress.running,
            progress.waiting,
            progress.steps,
            if course.is_empty() { "" } else { "\n    " },
        ));
    }

    fn drawn(&self, name: &str, done: usize, of: usize) {
        self.count(&format!("{name} (draws)"), done, of);
    }

    fn run_ended(&self, name: &str) {
        self.courses.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some(bar) = self.bars().remove(name) {
            bar.finish_and_clear();
        }
    }

    fn print(&self, text: &str) {
        self.line(text);
    }

    fn warn(&self, text: &str) {
        if !self.quiet {
            self.line(&format!("warning: {text}"));
        }
    }

    fn stop(&self) -> Option<&'static str> {
        stop::cause().map(Cause::name)
    }
}
