//! The event queue: what happens next in virtual time.
//!
//! Ties are broken by kind and then by order of scheduling, never by anything
//! that could differ from run to run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens at an instant.
///
/// The order of the variants is the order at equal times: steps end before
/// transfers, faults strike between what has happened and what is new, and
/// arrivals see everything else of their instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A worker's step ends, unless the worker was restarted since.
    StepEnd { worker: u32, incarnation: u32 },
    /// A link's next transfer completes, unless its load changed since.
    LinkProgress { link: u32, version: u64 },
    /// The last byte of a transfer arrives.
    TransferDelivered { tag: u64, attempt: u32 },
    /// A fault of the plan strikes.
    Fault { index: u32 },
    /// A crashed worker is up again.
    WorkerUp { worker: u32 },
    /// A slow-down of a worker is over.
    SlowDownEnd { worker: u32, fault: u32 },
    /// A workload's next request or session starts.
    Arrival { workload: u32 },
    /// A session's next turn starts.
    NextTurn { session: u32 },
}

/// Events by time.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<(u64, Event, u64)>>,
    scheduled: u64,
}

impl EventQueue {
    pub(crate) fn push(&mut self, at_ns: u64, event: Event) {
        self.heap.push(Reverse((at_ns, event, self.scheduled)));
        self.scheduled += 1;
    }

    pub(crate) fn next_time(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_ns, ..))| *at_ns)
    }

    /// The next event if it happens at `at_ns`.
    pub(crate) fn pop_at(&mut self, at_ns: u64) -> Option<Event> {
        let due = self.next_time() == Some(at_ns);
        due.then(|| self.heap.pop().map(|Reverse((_, event, _))| event)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_go_by_kind_then_by_order() {
        let mut queue = EventQueue::default();
        queue.push(5, Event::Arrival { workload: 0 });
        queue.push(5, Event::StepEnd { worker: 1, incarnation: 0 });
        queue.push(3, Event::Arrival { workload: 1 });
        assert_eq!(queue.next_time(), Some(3));
        assert_eq!(queue.pop_at(3), Some(Event::Arrival { workload: 1 }));
        assert_eq!(queue.pop_at(3), None);
        assert_eq!(queue.pop_at(5), Some(Event::StepEnd { worker: 1, incarnation: 0 }));
        assert_eq!(queue.pop_at(5), Some(Event::Arrival { workload: 0 }));
    }
}
