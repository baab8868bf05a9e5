//! Calendar of a steady decode: which members to visit in each of the coming steps.

use crate::request::RequestId;

pub(super) const STEPS_PER_WORD: usize = u64::BITS as usize;

/// A ring of future steps, indexed by the clock of the steady decode. Its length is a power of two and at least two
/// words of bits, or 0 before the first use.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    /// Requests by step, in no order.
    steps: Vec<Vec<RequestId>>,
    /// One bit per step, set if the step has requests.
    busy: Vec<u64>,
}

impl Calendar {
    /// Allocates the ring for at least `steps` steps, unless it is already allocated.
    pub(super) fn cover(&mut self, steps: usize) {
        if self.steps.is_empty() {
            let steps = steps.next_power_of_two().max(2 * STEPS_PER_WORD);
            self.steps.resize(steps, Vec::new());
            self.busy.resize(steps / STEPS_PER_WORD, 0);
        }
    }

    #[inline]
    fn slot(&self, clock: u64) -> usize {
        clock as usize & (self.steps.len() - 1)
    }

    /// Enters a request for the step that is `steps` after `clock`, or for the last step that the ring covers.
    #[inline]
    pub(super) fn enter(&mut self, id: RequestId, clock: u64, steps: u32) {
        let steps = u64::from(steps).min(self.steps.len() as u64 - 1);
        let slot = self.slot(clock + steps);
        self.steps[slot].push(id);
        self.busy[slot / STEPS_PER_WORD] |= 1 << (slot % STEPS_PER_WORD);
    }

    #[inline]
    pub(super) fn due(&self, clock: u64) -> &[RequestId] {
        &self.steps[self.slot(clock)]
    }

    pub(super) fn take_due(&mut self, clock: u64, due: &mut Vec<RequestId>) {
        let slot = self.slot(clock);
        due.append(&mut self.steps[slot]);
        self.busy[slot / STEPS_PER_WORD] &= !(1 << (slot % STEPS_PER_WORD));
    }

    /// Bits of the steps from `clock` on that have requests: bit 0 is the step at `clock`.
    #[inline]
    pub(super) fn busy_from(&self, clock: u64) -> u64 {
        let slot = self.slot(clock);
        let (word, shift) = (slot / STEPS_PER_WORD, slot % STEPS_PER_WORD);
        let next = self.busy[(word + 1) & (self.busy.len() - 1)];
        let words = u128::from(next) << STEPS_PER_WORD | u128::from(self.busy[word]);
        (words >> shift) as u64
    }

    pub(super) fn clear(&mut self) {
        self.steps.iter_mut().for_each(Vec::clear);
        self.busy.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_due_in_their_step_and_busy_steps_go_around_the_ring() {
        let mut calendar = Calendar::default();
        calendar.cover(10);
        calendar.enter(RequestId(4), 100, 20);
        calendar.enter(RequestId(5), 100, 30);
        calendar.enter(RequestId(6), 120, 10);
        // The ring covers 128 steps, so this request is entered for the last of them.
        calendar.enter(RequestId(7), 100, 4_000_000_000);
        assert_eq!(calendar.busy_from(100), 1 << 20 | 1 << 30);
        assert_eq!(calendar.due(120), [RequestId(4)]);
        let mut due = Vec::new();
        calendar.take_due(130, &mut due);
        assert_eq!(due, [RequestId(5), RequestId(6)]);
        assert_eq!(calendar.busy_from(100), 1 << 20);
        calendar.take_due(120, &mut due);
        assert_eq!((calendar.busy_from(200), calendar.due(227)), (1 << 27, &[RequestId(7)][..]));
        calendar.clear();
        assert_eq!((calendar.busy_from(200), calendar.due(227)), (0, &[][..]));
    }
}
