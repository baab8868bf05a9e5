//! Telemetry of a guest: counters, gauges, trace marks and log lines.
//!
//! Telemetry does not change the simulation. It appears in the report of a run, in its Perfetto trace and in the
//! metrics of a live engine. Telemetry beyond the limits is dropped and counted. More than 1,024 of these calls
//! within one call of the guest fail the run. Native builds, such as the guest's own tests, drop all telemetry.

#[cfg(target_arch = "wasm32")]
use crate::bindings::shared::vcr::guest::observe as host;

/// Stand-ins for native builds.
#[cfg(not(target_arch = "wasm32"))]
mod host {
    pub(super) fn count(_name: &str, _by: u64) {}
    pub(super) fn gauge(_name: &str, _at_ns: u64, _value: f64) {}
    pub(super) fn annotate(_at_ns: u64, _text: &str) {}
    pub(super) fn log(_text: &str) {}
}

/// Adds `by` to the counter `name`: 1 to 64 lower-case letters, digits and underscores, beginning with a letter. By
/// convention the name ends with the unit.
pub fn count(name: &str, by: u64) {
    host::count(name, by);
}

/// Sets the gauge `name` to the finite `value` from `at_ns` on, which must not decrease. Report only visible changes.
pub fn gauge(name: &str, at_ns: u64, value: f64) {
    host::gauge(name, at_ns, value);
}

/// Marks the instant `at_ns` in the trace of the guest's engine.
pub fn annotate(at_ns: u64, text: &str) {
    host::annotate(at_ns, text);
}

/// Writes a line to the log.
pub fn log(text: &str) {
    host::log(text);
}
