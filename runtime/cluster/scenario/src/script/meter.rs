//! Measures the resources that a script uses, and ends it when they exceed their limits.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rhai::Dynamic;
use rustix::time::{ClockId, clock_gettime};
use vcr_base::input::memory;
use vcr_base::units::format_bytes;

use crate::script::error::Thrown;
use crate::script::limits::{MAX_SCRIPT_OPERATIONS, MAX_SCRIPT_TIME, MEMORY_HINT};

/// Maximum memory of all values of a script together.
const MAX_VALUE_BYTES: u64 = 256 << 20;
/// Maximum number of lines that a script may print.
const MAX_PRINTED_LINES: u64 = 100_000;
const MAX_PRINTED_BYTES: u64 = 16 << 20;

/// Number of operations between two checks of memory and time. One operation may take a few MiB.
pub(crate) const OPERATIONS_PER_LOOK: u64 = 64;

thread_local! {
    /// Processor time of this thread at the last call of [`processor_time`].
    static ACCOUNTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Processor time of this thread since the last call.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let now = Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0));
    now.saturating_sub(ACCOUNTED.replace(now))
}

/// Resources that a script has used so far.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Resident memory that does not belong to the script's values: the process before the script, and its runs,
    /// traces and guests.
    other_bytes: AtomicU64,
    /// Number of operations. Includes operations of functions that the vocabulary calls, which the script engine
    /// does not count.
    operations: AtomicU64,
    /// Number of tokens of the script that were read so far.
    tokens: AtomicU64,
    /// Processor time of reading tokens and executing operations, in nanoseconds.
    time_ns: AtomicU64,
    runs: AtomicU64,
    printed_lines: AtomicU64,
    printed_bytes: AtomicU64,
    is_exceeded: AtomicBool,
    /// The error of the first exceeded limit, if any.
    exceeded: Mutex<Option<Thrown>>,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            other_bytes: AtomicU64::new(memory::resident_bytes().unwrap_or(0)),
            operations: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            time_ns: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            printed_lines: AtomicU64::new(0),
            printed_bytes: AtomicU64::new(0),
            is_exceeded: AtomicBool::new(false),
            exceeded: Mutex::new(None),
        }
    }

    /// Executes code whose memory and time do not count for the script.
    pub(crate) fn outside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.count_time();
        let before = memory::resident_bytes().unwrap_or(0);
        let result = work();
        processor_time();
        let taken = memory::resident_bytes().unwrap_or(0).saturating_sub(before);
        self.other_bytes.fetch_add(taken, Ordering::Relaxed);
        result
    }

    /// Counts runs before they begin. Fails if there are too many.
    pub(crate) fn count_runs(&self, runs: usize, max_runs: u64) -> Result<(), Thrown> {
        let before = self.runs.fetch_add(runs as u64, Ordering::Relaxed);
        if before.saturating_add(runs as u64) <= max_runs {
            return Ok(());
        }
        let hint = "look for a loop that never ends; --max-runs N allows more";
        Err(Thrown::input(format!("the scenario makes more than {max_runs} runs")).hint(hint))
    }

    /// Counts a text before it is printed. Returns whether it may be printed.
    pub(crate) fn may_print(&self, text: &str) -> bool {
        let lines = 1 + self.printed_lines.fetch_add(1, Ordering::Relaxed);
        let bytes = text.len() as u64 + self.printed_bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
        if lines <= MAX_PRINTED_LINES && bytes <= MAX_PRINTED_BYTES {
            return true;
        }
        let size = format_bytes(MAX_PRINTED_BYTES as f64);
        let message = format!("the script prints more than {MAX_PRINTED_LINES} lines, or {size}");
        self.exceed(Thrown::input(message).hint("look for a loop that never ends"));
        false
    }

    fn exceed(&self, problem: Thrown) {
        self.exceeded.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(problem);
        self.is_exceeded.store(true, Ordering::Relaxed);
    }

    /// Adds the processor time since the last call. Returns the total.
    fn count_time(&self) -> Duration {
        let time_ns = u64::try_from(processor_time().as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.time_ns.fetch_add(time_ns, Ordering::Relaxed).saturating_add(time_ns))
    }

    fn look_at_time(&self) {
        if self.count_time() > MAX_SCRIPT_TIME {
            let seconds = MAX_SCRIPT_TIME.as_secs();
            let message = format!("the operations of the script take more than {seconds} s of processor time");
            self.exceed(Thrown::input(message).hint("look for a loop that copies large texts, arrays or maps"));
        }
    }

    fn look_at_memory(&self) {
        let values = memory::resident_bytes().unwrap_or(0).saturating_sub(self.other_bytes.load(Ordering::Relaxed));
        if values > MAX_VALUE_BYTES {
            let limit = format_bytes(MAX_VALUE_BYTES as f64);
            let message = format!("the values of the script take more than {limit} of memory together");
            self.exceed(Thrown::input(message).hint("keep numbers of a run (`value(...)`), not lists of them"));
        } else if let Err(error) = memory::check() {
            self.exceed(Thrown::input(format!("the script cannot continue: {error}")).hint(MEMORY_HINT));
        }
    }

    /// Counts a token that is read. Returns the reason if reading must end.
    pub(crate) fn end_of_reading(&self) -> Option<String> {
        let tokens = 1 + self.tokens.fetch_add(1, Ordering::Relaxed);
        let is_late = tokens.is_multiple_of(OPERATIONS_PER_LOOK) && self.count_time() > MAX_SCRIPT_TIME;
        let seconds = MAX_SCRIPT_TIME.as_secs();
        is_late.then(|| format!("reading the script takes more than {seconds} s of processor time; make it shorter"))
    }

    /// Counts an operation. Returns the number of operations so far.
    pub(crate) fn count_operation(&self) -> u64 {
        1 + self.operations.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the script must end after this many operations, as the error to end it with.
    pub(crate) fn end_of_script(&self, operations: u64) -> Option<Dynamic> {
        if operations > MAX_SCRIPT_OPERATIONS {
            let message = format!("the script did not end within {MAX_SCRIPT_OPERATIONS} operations");
            self.exceed(Thrown::input(message).hint("look for a loop that never ends; runs themselves do not count"));
        } else if operations.is_multiple_of(OPERATIONS_PER_LOOK) {
            self.look_at_memory();
            self.look_at_time();
        }
        if !self.is_exceeded.load(Ordering::Relaxed) {
            return None;
        }
        self.exceeded.lock().unwrap_or_else(PoisonError::into_inner).clone().map(Dynamic::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_prints_are_counted() {
        let meter = Meter::new();
        assert!(meter.count_runs(3, 5).is_ok() && meter.count_runs(2, 5).is_ok());
        let error = meter.count_runs(1, 5).expect_err("six");
        assert_eq!(error.message, "the scenario makes more than 5 runs");
        let long = "x".repeat(1 << 20);
        assert!((0..16).all(|_| meter.may_print(&long)));
        assert!(meter.end_of_script(1).is_none());
        assert!(!meter.may_print("x"));
        assert!(meter.end_of_script(1).is_some());
    }

    #[test]
    fn the_time_of_operations_has_a_limit() {
        let meter = Meter::new();
        assert!(meter.end_of_script(OPERATIONS_PER_LOOK).is_none());
        meter.time_ns.store(u64::try_from(MAX_SCRIPT_TIME.as_nanos()).expect("a minute") + 1, Ordering::Relaxed);
        assert!(meter.end_of_script(1).is_none(), "it is not looked at each time");
        assert!(meter.end_of_script(OPERATIONS_PER_LOOK).is_some());
        let mut ends = (0..OPERATIONS_PER_LOOK).filter_map(|_| meter.end_of_reading());
        assert!(ends.next().is_some_and(|end| end.contains("60 s of processor time")), "reading counts, too");
    }
}
