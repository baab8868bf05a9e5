//! Runs in real time: the events of virtual time, each handled when a clock says that it is due.
//!
//! Owns the caller's clock, and by how much requests arrive late. An event is handled when the
//! clock has passed its time, and what it brings about starts at the clock's time, not at the
//! planned one: steps take what they really took, and latencies are measured. Only requests
//! count from the time at which they were due, as on every target.

use super::Simulation;
use crate::config::RunConfig;
use crate::error::SimError;
use crate::ledger::metrics::Samples;
use crate::observe::{Observer, Progress};
use crate::report::{Report, TargetReport};

/// Interval at which the observer is asked whether to end the run.
const LOOK_INTERVAL_NS: u64 = 50_000_000;

/// A clock that a run waits for.
pub trait RunClock: Send {
    /// Nanoseconds since the start of the run; they never run backwards.
    fn now_ns(&mut self) -> u64;
    /// Waits until then, or for less.
    fn wait_until(&mut self, at_ns: u64);
}

/// The clock of a run that has one.
pub(super) struct RealTime<'o> {
    clock: &'o mut dyn RunClock,
    next_look_ns: u64,
    send_delays_ns: Samples,
}

/// Runs `config` to its end in real time, by a clock; `target` is how its report names that.
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
    simulation.real_time = Some(RealTime { clock, next_look_ns: 0, send_delays_ns: Samples::default() });
    simulation.run()?;
    let send_delays_ns = simulation.real_time.take().map(|real_time| real_time.send_delays_ns);
    let mut report = simulation.into_report()?;
    report.set_target(target, send_delays_ns.unwrap_or_default());
    Ok(report)
}

impl<O: Observer> Simulation<'_, O> {
    /// Waits until an event is due that is planned at `at_ns`. The time then; none if the
    /// observer ends the run meanwhile. In virtual time it is due at once.
    pub(super) fn reach(&mut self, at_ns: u64) -> Option<u64> {
        loop {
            let Some(real_time) = &mut self.real_time else { return Some(at_ns) };
            let now_ns = real_time.clock.now_ns().max(self.now_ns);
            if now_ns >= real_time.next_look_ns {
                real_time.next_look_ns = now_ns + LOOK_INTERVAL_NS;
                if self.observation.stops(&mut self.fleet) {
                    self.now_ns = now_ns;
                    return None;
                }
                let progress = Progress { now_ns, ..self.progress() };
                self.observation.progress(&progress);
                continue;
            }
            if at_ns <= now_ns {
                return Some(now_ns);
            }
            let next_look_ns = real_time.next_look_ns;
            real_time.clock.wait_until(at_ns.min(next_look_ns));
        }
    }

    /// The planned time of the next event that the clock has passed meanwhile.
    pub(super) fn overdue_ns(&self) -> Option<u64> {
        self.real_time.as_ref()?;
        self.events.next_time().filter(|at_ns| *at_ns <= self.now_ns)
    }

    /// A request arrives that was due at `self.due_ns`.
    pub(super) fn note_send_delay(&mut self) {
        if let Some(real_time) = &mut self.real_time {
            real_time.send_delays_ns.push(self.now_ns - self.due_ns, 1);
        }
    }
}
