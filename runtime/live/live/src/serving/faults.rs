//! Faults of a whole engine, and the decisions of a failure injector.

use std::time::Duration;

use vcr_wire::FinishReason;

use crate::error::LiveError;
use crate::faults::active::{Asked, EngineFault};
use crate::lifecycle::End;
use crate::requests::slot_of;
use crate::serving::Serving;

impl Serving {
    /// Lets the failure injector decide on the events since the last call.
    ///
    /// # Errors
    /// When the guest or a link fails.
    pub(crate) fn run_injector(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let since_start_ns = self.context.since_start_ns(now_ns);
        for action in self.injector.decide(since_start_ns, self.counters.steps)? {
            match self.faults.ask(action, since_start_ns) {
                None => {}
                Some(Asked::Engine(fault)) => self.apply_fault(fault, now_ns)?,
                Some(Asked::FailRequest { slot }) => self.fail_slot(slot, now_ns)?,
            }
        }
        Ok(())
    }

    /// Ends a request with an error; an unused slot is ignored.
    fn fail_slot(&mut self, slot: u32, now_ns: u64) -> Result<(), LiveError> {
        let found = self.requests.iter().find(|request| slot_of(request.tag) == slot as usize);
        let Some(tag) = found.map(|request| request.tag) else { return Ok(()) };
        if let Some(request) = self.drop_request(tag, FinishReason::Error) {
            self.egress.outputs.send_finish(request.client, &[&request.id], FinishReason::Error, None, now_ns)?;
        }
        Ok(())
    }

    /// Stalls or crashes the engine.
    ///
    /// # Errors
    /// When the library fails.
    pub(crate) fn apply_fault(&mut self, fault: EngineFault, now_ns: u64) -> Result<(), LiveError> {
        let rank = self.context.rank;
        match fault {
            EngineFault::Stall { for_ns } => {
                tracing::warn!(rank, duration = ?Duration::from_nanos(for_ns), "a fault stalls the engine");
                self.stepper.stall(for_ns, now_ns);
            }
            EngineFault::Crash { restart_ns, sends_dead } => {
                tracing::warn!(rank, restart_after = ?restart_ns.map(Duration::from_nanos), "a fault ends the engine");
                if sends_dead {
                    self.egress.outputs.send_dead()?;
                }
                self.lifecycle.end(End::Crashed { restart_ns });
            }
        }
        self.snapshot.expire();
        Ok(())
    }

    /// Ends all engines of the process as ones that cannot go on.
    pub(crate) fn fail_process(&self) {
        for shared in self.shared.iter() {
            shared.fail_soon();
        }
    }
}
