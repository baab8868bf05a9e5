//! Runs in real time. Each event of virtual time is handled when a clock reaches it.
//!
//! An event is handled when the clock has passed its time. Its consequences start at the clock's time, not at the
//! planned one: steps take their real durations, and latencies are measured. Only requests count from their due
//! time, as on every target.

use super::Simulation;
use super::clock::{Reached, RunClock};
use crate::config::RunConfig;
use crate::error::SimError;
use crate::observe::{Observer, Progress};
use crate::report::{Report, TargetReport};

/// Runs `config` to its end in real time, by a clock. `target` is the target that the report names.
///
/// # Errors
/// See [`SimError`]; a run that only lost requests to faults is not an error.
pub fn simulate_in_real_time(
    config: RunConfig,
    observer: &mut dyn Observer,
    clock: &mut dyn RunClock,
    target: TargetReport,
) -> Result<Report, SimError> {
    config.check().map_err(SimError::Config)?;
    let mut simulation = Simulation::new(config, observer)?;
    simulation.clock.follow(clock);
    simulation.run()?;
    let send_delays_ns = simulation.clock.take_send_delays_ns();
    let mut report = simulation.into_report()?;
    report.set_target(target, send_delays_ns.unwrap_or_default());
    Ok(report)
}

impl<O: Observer> Simulation<'_, O> {
    /// Waits for an event planned at `at_ns`. Returns the time of its handling, or None if the observer ends the
    /// run in the meantime. In virtual time, the event is due immediately.
    pub(super) fn reach(&mut self, at_ns: u64) -> Option<u64> {
        loop {
            match self.clock.reach(at_ns) {
                Reached::Event(now_ns) => return Some(now_ns),
                Reached::Look(now_ns) if self.observation.stops(&mut self.fleet) => {
                    self.clock.advance_to(now_ns);
                    return None;
                }
                Reached::Look(now_ns) => {
                    let progress = Progress { now_ns, ..self.progress() };
                    self.observation.progress(&progress);
                }
            }
        }
    }
}
