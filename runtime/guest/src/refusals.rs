//! Requests that a token source refuses: the calls of `refuse` that it makes
//! during a step, bounded in number and bytes.

use crate::error::CallFault;
use crate::limits::Limits;

/// Bytes of a reason that are kept, as `wit/` says.
const REASON_BYTES_MAX: usize = 1024;

/// A request that the guest refused in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedRequest {
    pub(crate) slot: u32,
    pub(crate) reason: String,
}

/// The refusals of an instance's current call.
pub(crate) struct Refusals {
    is_allowed: bool,
    made: Vec<RefusedRequest>,
    made_max: usize,
}

impl Refusals {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { is_allowed: false, made: Vec::new(), made_max: limits.refusals_per_call }
    }

    /// The call that begins may refuse requests.
    pub(crate) fn allow(&mut self) {
        self.is_allowed = true;
    }

    /// Moves the refusals of the call that ended to `refused`.
    pub(crate) fn take(&mut self, refused: &mut Vec<RefusedRequest>) {
        self.is_allowed = false;
        refused.append(&mut self.made);
    }

    /// # Errors
    /// When the current call may not refuse requests, or refused too many.
    pub(crate) fn add(&mut self, slot: u32, mut reason: String) -> Result<(), CallFault> {
        if !self.is_allowed {
            return Err(CallFault::RefusedOutsideStep);
        }
        if self.made.len() >= self.made_max {
            return Err(CallFault::TooManyRefusals { limit: self.made_max });
        }
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        reason.shrink_to_fit();
        self.made.push(RefusedRequest { slot, reason });
        Ok(())
    }
}

/// The requests of a source, so that only those that run are refused, and each
/// once.
#[derive(Debug, Default)]
pub(crate) struct RunningSlots(Vec<SlotState>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    #[default]
    Vacant,
    Running,
    Refused,
}

impl RunningSlots {
    pub(crate) fn start(&mut self, slot: u32) {
        let index = slot as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, SlotState::Vacant);
        }
        self.0[index] = SlotState::Running;
    }

    pub(crate) fn end(&mut self, slot: u32) {
        if let Some(state) = self.0.get_mut(slot as usize) {
            *state = SlotState::Vacant;
        }
    }

    /// Whether the refusal of `slot` is its first.
    ///
    /// # Errors
    /// When no request has the slot.
    pub(crate) fn refuse(&mut self, slot: u32) -> Result<bool, CallFault> {
        let state = self.0.get_mut(slot as usize).filter(|state| **state != SlotState::Vacant);
        let state = state.ok_or(CallFault::RefusedNoRequest { slot })?;
        Ok(std::mem::replace(state, SlotState::Refused) == SlotState::Running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_bounded_in_number_and_bytes() {
        let mut refusals = Refusals::new(&Limits { refusals_per_call: 2, ..Limits::default() });
        assert_eq!(refusals.add(1, String::new()), Err(CallFault::RefusedOutsideStep));
        for _ in 0..2 {
            refusals.allow();
            refusals.add(1, "\u{e9}".repeat(5_000)).expect("the first of two");
            refusals.add(2, "x".repeat(1_025)).expect("the second of two");
            assert_eq!(refusals.add(3, String::new()), Err(CallFault::TooManyRefusals { limit: 2 }));
            let mut refused = Vec::new();
            refusals.take(&mut refused);
            assert_eq!(
                refused.iter().map(|one| (one.slot, one.reason.len())).collect::<Vec<_>>(),
                [(1, 1024), (2, 1024)]
            );
            assert_eq!(refusals.add(1, String::new()), Err(CallFault::RefusedOutsideStep), "the call is over");
        }
    }

    #[test]
    fn only_running_requests_are_refused_and_once() {
        let mut slots = RunningSlots::default();
        slots.start(2);
        assert_eq!(slots.refuse(2), Ok(true));
        assert_eq!(slots.refuse(2), Ok(false));
        slots.end(2);
        for slot in [1, 2, 3] {
            assert_eq!(slots.refuse(slot), Err(CallFault::RefusedNoRequest { slot }));
        }
        slots.start(2);
        assert_eq!(slots.refuse(2), Ok(true), "another request has the slot");
    }
}
