//! Remarks of a token source on its requests: the limited calls of `refuse` and `accept` within a step.

use vcr_core::tokens::AcceptedDrafts;

use crate::error::CallFault;
use crate::limits::Limits;

/// Bytes of a reason that are kept, as specified in `wit/`.
const REASON_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedRequest {
    pub(crate) slot: u32,
    pub(crate) reason: String,
}

/// The remarks of one or more calls, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Remarks {
    pub(crate) refused: Vec<RefusedRequest>,
    pub(crate) accepted: Vec<AcceptedDrafts>,
}

impl Remarks {
    pub(crate) fn clear(&mut self) {
        self.refused.clear();
        self.accepted.clear();
    }
}

pub(crate) struct RemarksOfCall {
    is_allowed: bool,
    made: Remarks,
    refused_max: usize,
    accepted_max: usize,
}

impl RemarksOfCall {
    pub(crate) fn new(limits: &Limits) -> Self {
        let (refused_max, accepted_max) = (limits.refusals_per_call, limits.acceptances_per_call);
        Self { is_allowed: false, made: Remarks::default(), refused_max, accepted_max }
    }

    /// Begins a call that may make remarks.
    pub(crate) fn allow(&mut self) {
        self.is_allowed = true;
    }

    /// Ends the call and moves its remarks to `remarks`.
    pub(crate) fn take(&mut self, remarks: &mut Remarks) {
        self.is_allowed = false;
        remarks.refused.append(&mut self.made.refused);
        remarks.accepted.append(&mut self.made.accepted);
    }

    pub(crate) fn refuse(&mut self, slot: u32, mut reason: String) -> Result<(), CallFault> {
        if !self.is_allowed {
            return Err(CallFault::RefusedOutsideStep);
        }
        if self.made.refused.len() >= self.refused_max {
            return Err(CallFault::TooManyRefusals { limit: self.refused_max });
        }
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        reason.shrink_to_fit();
        self.made.refused.push(RefusedRequest { slot, reason });
        Ok(())
    }

    pub(crate) fn accept(&mut self, slot: u32, count: u32) -> Result<(), CallFault> {
        if !self.is_allowed {
            return Err(CallFault::AcceptedOutsideStep);
        }
        if self.made.accepted.len() >= self.accepted_max {
            return Err(CallFault::TooManyAcceptances { limit: self.accepted_max });
        }
        self.made.accepted.push(AcceptedDrafts { slot, count });
        Ok(())
    }
}

/// The state of each slot: only running requests may get remarks, and a request is refused at most once.
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

    /// Checks the remarks of one call, those after the first `refused` and `accepted` entries; drops repeated
    /// refusals.
    pub(crate) fn check(&mut self, remarks: &mut Remarks, refused: usize, accepted: usize) -> Result<(), CallFault> {
        for one in &remarks.accepted[accepted..] {
            if self.0.get(one.slot as usize).is_none_or(|state| *state == SlotState::Vacant) {
                return Err(CallFault::AcceptedNoRequest { slot: one.slot });
            }
        }
        if remarks.refused.len() == refused {
            return Ok(());
        }
        for one in remarks.refused.split_off(refused) {
            if self.refuse(one.slot)? {
                remarks.refused.push(one);
            }
        }
        Ok(())
    }

    /// Returns whether this refusal of `slot` is the first.
    fn refuse(&mut self, slot: u32) -> Result<bool, CallFault> {
        let state = self.0.get_mut(slot as usize).filter(|state| **state != SlotState::Vacant);
        let state = state.ok_or(CallFault::RefusedNoRequest { slot })?;
        Ok(std::mem::replace(state, SlotState::Refused) == SlotState::Running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_are_bounded_in_number_and_bytes() {
        let limits = Limits { refusals_per_call: 2, acceptances_per_call: 1, ..Limits::default() };
        let mut call = RemarksOfCall::new(&limits);
        assert_eq!(call.refuse(1, String::new()), Err(CallFault::RefusedOutsideStep));
        assert_eq!(call.accept(1, 2), Err(CallFault::AcceptedOutsideStep));
        for _ in 0..2 {
            call.allow();
            call.refuse(1, "\u{e9}".repeat(5_000)).expect("the first of two");
            call.refuse(2, "x".repeat(1_025)).expect("the second of two");
            assert_eq!(call.refuse(3, String::new()), Err(CallFault::TooManyRefusals { limit: 2 }));
            call.accept(4, 2).expect("the only one");
            assert_eq!(call.accept(4, 2), Err(CallFault::TooManyAcceptances { limit: 1 }));
            let mut remarks = Remarks::default();
            call.take(&mut remarks);
            assert_eq!(
                remarks.refused.iter().map(|one| (one.slot, one.reason.len())).collect::<Vec<_>>(),
                [(1, 1024), (2, 1024)]
            );
            assert_eq!(remarks.accepted, [AcceptedDrafts { slot: 4, count: 2 }]);
            assert_eq!(call.refuse(1, String::new()), Err(CallFault::RefusedOutsideStep), "the call is over");
            assert_eq!(call.accept(1, 2), Err(CallFault::AcceptedOutsideStep), "the call is over");
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

    #[test]
    fn drafts_are_accepted_of_requests_that_run_or_are_refused_but_not_over() {
        let mut slots = RunningSlots::default();
        slots.start(2);
        let accept = |slot| AcceptedDrafts { slot, count: 1 };
        let refused = || vec![RefusedRequest { slot: 2, reason: String::new() }];
        let mut remarks = Remarks { refused: refused(), accepted: vec![accept(2), accept(2)] };
        assert_eq!(slots.check(&mut remarks, 0, 0), Ok(()));
        remarks.refused.extend(refused());
        assert_eq!(slots.check(&mut remarks, 1, 1), Ok(()), "it may still want tokens");
        assert_eq!((remarks.refused.len(), remarks.accepted.len()), (1, 2));
        slots.end(2);
        for slot in [1, 2, 3] {
            let mut remarks = Remarks { accepted: vec![accept(9), accept(slot)], ..Remarks::default() };
            assert_eq!(slots.check(&mut remarks, 0, 1), Err(CallFault::AcceptedNoRequest { slot }));
        }
    }
}
