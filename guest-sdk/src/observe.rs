//! Telemetry of a guest: counters, gauges, marks in the trace
//! and lines of a log.
//!
//! None of it changes the simulation. It appears in the report of a run, in its Perfetto trace and
//! in the metrics of a live engine. It is limited; beyond the limits it is dropped and counted, but
//! more than 1,024 calls of these functions in one call of the guest fail the run. In native
//! builds, such as the guest's own tests, it is dropped.

#[cfg(target_arch = "wasm32")]
use crate::bindings::shared::vcr::guest::observe as host;

/// The same functions where there is no host.
#[cfg(not(target_arch = "wasm32"))]
mod host {
    pub(super) fn count(_name: &str, _by: u64) {}
    pub(super) fn gauge(_name: &str, _at_ns: u64, _value: f64) {}
    pub(super) fn annotate(_at_ns: u64, _text: &str) {}
    pub(super) fn log(_text: &str) {}
}

/// Adds `by` to the counter `name`: 1 to 64 lower-case letters, digits and
/// underscores, a letter first; by convention it ends with its unit.
pub fn count(name: &str, by: u64) {
    host::count(name, by);
}

/// Sets the gauge `name` to the finite `value` from `at_ns` on, which must not be before its
/// previous time. The trace shows its course, so only report visible changes.
pub fn gauge(name: &str, at_ns: u64, value: f64) {
    host::gauge(name, at_ns, value);
}

/// Marks the instant `at_ns` in the trace of the guest's engine.
pub fn annotate(at_ns: u64, text: &str) {
    host::annotate(at_ns, text);
}

/// Writes a line to the log of guests.
pub fn log(text: &str) {
    host::log(text);
}
