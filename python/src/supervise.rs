//! Work on a thread of its own, while Python's thread waits: other threads of Python run, Ctrl-C
//! ends the work in order, and progress reaches a callback.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use vcr::library::Reporter;
use vcr_cluster::observe::Progress;

use crate::error::internal;

/// Time between two looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Least time between two reports on the progress of a run.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Stack of the working thread, at least as large as a program's first thread's: scripts nest
/// calls.
const STACK_BYTES: usize = 16 << 20;

/// Passes progress, printed texts and warnings on to Python.
pub(crate) struct Relay {
    callback: Option<Py<PyAny>>,
    is_stopped: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When the progress of a run was last reported.
    reported: BTreeMap<String, Instant>,
    /// Each once, in order.
    warnings: Vec<String>,
    /// The first exception of the callback.
    raised: Option<PyErr>,
}

impl Relay {
    /// `callback` takes the arguments of `vcr.Progress`.
    pub(crate) fn new(callback: Option<Py<PyAny>>) -> Arc<Self> {
        Arc::new(Self { callback, is_stopped: AtomicBool::new(false), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request_stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Calls Python; its first exception ends the work.
    fn call(&self, of: impl FnOnce(Python<'_>) -> PyResult<()>) {
        if let Err(error) = Python::attach(of) {
            self.request_stop();
            self.state().raised.get_or_insert(error);
        }
    }

    fn report(&self, name: &str, state: &str, progress: Option<&Progress>) {
        let Some(callback) = &self.callback else { return };
        let (now_ns, arrived, ended) = progress.map_or((0, 0, 0), |it| (it.now_ns, it.arrived, it.ended));
        let (running, waiting, steps) = progress.map_or((0, 0, 0), |it| (it.running, it.waiting, it.steps));
        self.call(|py| {
            let arguments = (name, state, now_ns, arrived, ended, running, waiting, steps);
            callback.call1(py, arguments).map(|_| ())
        });
    }
}

impl Reporter for Relay {
    fn run_started(&self, name: &str) {
        self.report(name, "started", None);
    }

    fn progress(&self, name: &str, progress: &Progress) {
        if self.callback.is_none() {
            return;
        }
        let now = Instant::now();
        let is_due = match self.state().reported.get(name) {
            Some(last) => now.duration_since(*last) >= REPORT_EVERY,
            None => true,
        };
        if is_due {
            self.state().reported.insert(name.to_owned(), now);
            self.report(name, "running", Some(progress));
        }
    }

    fn run_ended(&self, name: &str) {
        self.state().reported.remove(name);
        self.report(name, "ended", None);
    }

    fn print(&self, text: &str) {
        self.call(|py| py.import("builtins")?.getattr("print")?.call1((text,)).map(|_| ()));
    }

    fn warn(&self, text: &str) {
        let mut state = self.state();
        if !state.warnings.iter().any(|known| known == text) {
            state.warnings.push(text.to_owned());
        }
    }

    fn stop(&self) -> Option<&'static str> {
        // As the command names the signal that Python turns into KeyboardInterrupt.
        self.is_stopped.load(Ordering::Relaxed).then_some("SIGINT")
    }
}

/// Does `work` on a thread of its own. Then issues warnings, or raises the exception of Ctrl-C or
/// of the callback.
pub(crate) fn supervised<T: Send>(py: Python<'_>, relay: &Arc<Relay>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let (done, interrupt) = py.detach(|| in_thread(relay, work));
    if let Some(error) = interrupt.or_else(|| relay.state().raised.take()) {
        return Err(error);
    }
    let warnings = std::mem::take(&mut relay.state().warnings);
    if !warnings.is_empty() {
        let category = py.import("vcr._errors")?.getattr("VcrWarning")?;
        for text in warnings {
            // Of the caller of the package's own function.
            py.import("warnings")?.getattr("warn")?.call1((text, &category, 2))?;
        }
    }
    done.ok_or_else(|| internal("a thread panicked"))
}

/// The result of work, unless it panicked; and an exception that came while waiting for it.
fn in_thread<T: Send>(relay: &Relay, work: impl FnOnce() -> T + Send) -> (Option<T>, Option<PyErr>) {
    thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel(1);
        let worker =
            thread::Builder::new().name("vcr".to_owned()).stack_size(STACK_BYTES).spawn_scoped(scope, move || {
                let done = work();
                // The receiver lives as long as this thread.
                _ = send.send(done);
            });
        if let Err(error) = worker {
            return (None, Some(PyException::new_err(format!("cannot start a thread: {error}"))));
        }
        let mut interrupt = None;
        loop {
            match receive.recv_timeout(LOOK_EVERY) {
                Ok(done) => return (Some(done), interrupt),
                Err(RecvTimeoutError::Disconnected) => return (None, interrupt),
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = Python::attach(|py| py.check_signals()) {
                        relay.request_stop();
                        interrupt.get_or_insert(error);
                    }
                }
            }
        }
    })
}
