//! A failure injector that calls a guest.

use std::collections::BTreeSet;

use vcr_core::fault::{DURATION_NS_MAX, FailureInjector, FaultAction, FaultBatch, FaultError, FaultEvent};

use crate::adapters::running::Running;
use crate::error::{ActionProblem, CallFault};
use crate::latest::FaultInstance;
use crate::limits::Limits;

/// Largest size of an action in the memory of a guest.
pub(crate) const ACTION_BYTES: usize = 24;

pub(crate) struct GuestFaults {
    limits: Limits,
    running: Running<dyn FaultInstance>,
    /// Slots of requests that can still fail.
    live: BTreeSet<u32>,
}

impl GuestFaults {
    pub(crate) fn new(name: String, limits: Limits, instance: Box<dyn FaultInstance>) -> Self {
        Self { limits, running: Running::new(name, instance), live: BTreeSet::new() }
    }
}

impl FailureInjector for GuestFaults {
    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), FaultError> {
        let decided_before = actions.len();
        let Self { limits, running, live } = self;
        let result = running.call("decide", |instance| {
            let has_utility = note_events(batch.events, live);
            // The answer may fail every request.
            let budget = limits.budget(batch.events.len(), (live.len() + 1) * ACTION_BYTES);
            let answer = instance.decide(batch, budget)?;
            check(&answer, live, has_utility)?;
            actions.extend(answer);
            Ok(())
        });
        result.map_err(|failure| {
            actions.truncate(decided_before);
            FaultError { injector: failure.guest, reason: failure.reason }
        })
    }
}

/// Updates `live`. Returns whether the events contain a utility call.
pub(crate) fn note_events(events: &[FaultEvent<'_>], live: &mut BTreeSet<u32>) -> bool {
    let mut has_utility = false;
    for event in events {
        match *event {
            FaultEvent::Arrived { slot, .. } => drop(live.insert(slot)),
            FaultEvent::Ended { slot } => drop(live.remove(&slot)),
            FaultEvent::Utility { .. } => has_utility = true,
            FaultEvent::Emitted { .. } => {}
        }
    }
    has_utility
}

pub(crate) fn check(answer: &[FaultAction], live: &mut BTreeSet<u32>, has_utility: bool) -> Result<(), CallFault> {
    for (index, action) in answer.iter().enumerate() {
        let problem = match *action {
            FaultAction::FailRequest { slot } if !live.remove(&slot) => ActionProblem::NoSuchRequest,
            FaultAction::Stall { duration_ns: time_ns }
            | FaultAction::Crash { restart_after_ns: Some(time_ns) }
            | FaultAction::DelayMessage { by_ns: time_ns }
                if time_ns > DURATION_NS_MAX =>
            {
                ActionProblem::TooLong
            }
            FaultAction::FailUtility if !has_utility => ActionProblem::NoUtilityCall,
            _ => continue,
        };
        return Err(CallFault::BadAction { index, action: *action, problem });
    }
    Ok(())
}
