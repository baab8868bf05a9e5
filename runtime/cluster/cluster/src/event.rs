//! The event queue of virtual time.
//!
//! Ties are broken by kind and then by order of scheduling, so that they never differ between runs.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use vcr_core::RequestId;

use crate::config::PoolRole;
use crate::ledger::record::Outcome;

/// An event at an instant.
///
/// The order of the variants is the order at equal times. Steps end before transfers. Faults come after completed
/// work and before new work. Arrivals come after all other events except autoscalers' decisions, which come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A worker's step ends, unless the worker was restarted since.
    StepEnd {
        worker: u32,
        incarnation: u32,
    },
    /// A token of a request with per-request times is due, unless the worker was restarted since.
    TokenDue {
        worker: u32,
        incarnation: u32,
    },
    /// The next event of a request that is answered at recorded times.
    Played {
        tag: u64,
    },
    /// The client has the complete answer, and the request ends.
    Answered {
        tag: u64,
        outcome: Outcome,
    },
    /// A link's next transfer completes, unless the link's load has changed since.
    LinkProgress {
        link: u32,
        version: u64,
    },
    /// The last byte of a transfer arrives.
    TransferDelivered {
        tag: u64,
        attempt: u32,
    },
    /// A load from a worker's KV tiers may have made progress, unless the worker was restarted since.
    TierProgress {
        worker: u32,
        incarnation: u32,
    },
    /// The compilation of a request's grammar ends at a worker, unless the worker was restarted since.
    GrammarCompiled {
        tag: u64,
        worker: u32,
        incarnation: u32,
        succeeds: bool,
    },
    /// A planned fault takes effect.
    Fault {
        index: u32,
    },
    /// A worker that crashed or was started is up, unless its restart was called off.
    WorkerUp {
        worker: u32,
        incarnation: u32,
    },
    SlowDownEnd {
        worker: u32,
        fault: u32,
    },
    /// A stall of a worker may be over, unless the worker was restarted since.
    StallEnd {
        worker: u32,
        incarnation: u32,
    },
    /// A worker frees KV that no decode engine has fetched, unless the worker was restarted since.
    HeldKvExpires {
        worker: u32,
        incarnation: u32,
        id: RequestId,
    },
    /// A client cancels its request, if the reason still applies.
    GiveUp {
        tag: u64,
    },
    /// The replicas of a pool's KV router learn of each other's requests.
    RouterWakes {
        pool: PoolRole,
    },
    /// A workload's next request or session starts.
    Arrival {
        workload: u32,
    },
    /// A workload may add a user.
    UserComes {
        workload: u32,
    },
    /// A client sends the request `after` again.
    NextAttempt {
        after: u64,
    },
    /// The next turn of a session starts; `slot` identifies the waiting session.
    NextTurn {
        workload: u32,
        session: u64,
        slot: u32,
    },
    /// A request of a trace with dependencies starts.
    Ready {
        workload: u32,
        node: u64,
    },
    /// A new request reaches its first pool.
    Submitted {
        tag: u64,
    },
    /// The autoscaler of a pool decides.
    ScaleTick {
        pool: PoolRole,
    },
}

// The heap moves each event several times, so events must be small.
const _: () = assert!(size_of::<Event>() <= 24);

/// Events by time.
///
/// Step ends are stored by pool: there are many, and they concern other engines only if requests move between
/// engines. Arrivals of sessions are separate because some callers can ignore them.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    step_ends: Vec<BinaryHeap<Entry>>,
    /// Arrivals of sessions: time and workload.
    arrivals: BinaryHeap<Reverse<(u64, u32)>>,
    others: BinaryHeap<Entry>,
    /// Cancellations by clients: time and request. Most are removed before they are due.
    give_ups: BTreeSet<(u64, u64)>,
    scheduled: u64,
    /// Number of autoscaler ticks in `others`.
    ticks: usize,
    /// Number of KV-hold expiries in `others`.
    expiries: usize,
}

type Entry = Reverse<(u64, Event, u64)>;

impl EventQueue {
    pub(crate) fn new(pools: usize) -> Self {
        Self { step_ends: (0..pools).map(|_| BinaryHeap::new()).collect(), ..Self::default() }
    }

    /// Schedules an event other than the end of a step.
    pub(crate) fn push(&mut self, at_ns: u64, event: Event) {
        if let Event::Arrival { workload } = event {
            // Arrivals of one workload at one instant are interchangeable.
            self.arrivals.push(Reverse((at_ns, workload)));
            return;
        }
        self.ticks += usize::from(matches!(event, Event::ScaleTick { .. }));
        self.expiries += usize::from(matches!(event, Event::HeldKvExpires { .. }));
        self.others.push(Reverse((at_ns, event, self.scheduled)));
        self.scheduled += 1;
    }

    pub(crate) fn push_step_end(&mut self, pool: PoolRole, at_ns: u64, event: Event) {
        self.step_ends[pool.index()].push(Reverse((at_ns, event, self.scheduled)));
        self.scheduled += 1;
    }

    pub(crate) fn expect_give_up(&mut self, at_ns: u64, tag: u64) {
        self.give_ups.insert((at_ns, tag));
    }

    /// Removes the planned cancellation of a request.
    pub(crate) fn call_off_give_up(&mut self, at_ns: u64, tag: u64) {
        self.give_ups.remove(&(at_ns, tag));
    }

    /// Whether any event other than an autoscaler tick is left.
    pub(crate) fn has_more_than_ticks(&self) -> bool {
        self.others.len() > self.ticks
            || !self.give_ups.is_empty()
            || !self.arrivals.is_empty()
            || self.step_ends.iter().any(|ends| !ends.is_empty())
    }

    /// Whether only autoscaler ticks and KV-hold expiries are left. No request waits for them.
    pub(crate) fn has_only_expiries(&self) -> bool {
        self.expiries > 0
            && self.others.len() == self.ticks + self.expiries
            && self.give_ups.is_empty()
            && self.arrivals.is_empty()
            && self.step_ends.iter().all(BinaryHeap::is_empty)
    }

    /// Whether a request or a retry is still to come.
    pub(crate) fn has_requests(&self) -> bool {
        let starts = |event: &Event| match event {
            Event::UserComes { .. }
            | Event::NextAttempt { .. }
            | Event::NextTurn { .. }
            | Event::Ready { .. }
            | Event::Submitted { .. } => true,
            Event::Arrival { .. }
            | Event::StepEnd { .. }
            | Event::TokenDue { .. }
            | Event::Played { .. }
            | Event::Answered { .. }
            | Event::LinkProgress { .. }
            | Event::TransferDelivered { .. }
            | Event::TierProgress { .. }
            | Event::GrammarCompiled { .. }
            | Event::Fault { .. }
            | Event::WorkerUp { .. }
            | Event::SlowDownEnd { .. }
            | Event::StallEnd { .. }
            | Event::HeldKvExpires { .. }
            | Event::GiveUp { .. }
            | Event::RouterWakes { .. }
            | Event::ScaleTick { .. } => false,
        };
        !self.arrivals.is_empty() || self.others.iter().any(|Reverse((_, event, _))| starts(event))
    }

    pub(crate) fn next_time(&self) -> Option<u64> {
        let heaps = self.step_ends.iter().chain([&self.others]);
        heaps.filter_map(next_of).chain(self.next_arrival()).chain(self.next_give_up()).min()
    }

    pub(crate) fn next_give_up(&self) -> Option<u64> {
        self.give_ups.first().map(|(at_ns, _)| *at_ns)
    }

    pub(crate) fn next_arrival(&self) -> Option<u64> {
        self.arrivals.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Takes the next start of a session, with its workload, if it is due by `last_ns`.
    pub(crate) fn pop_arrival(&mut self, last_ns: u64) -> Option<(u64, u32)> {
        self.next_arrival().filter(|at_ns| *at_ns <= last_ns)?;
        self.arrivals.pop().map(|Reverse(arrival)| arrival)
    }

    /// Time of the next event that is neither the end of a step nor the start of a session.
    pub(crate) fn next_other(&self) -> Option<u64> {
        next_of(&self.others).into_iter().chain(self.next_give_up()).min()
    }

    /// Time of the next event other than the end of a step.
    pub(crate) fn next_but_step_ends(&self) -> Option<u64> {
        self.next_arrival().into_iter().chain(self.next_other()).min()
    }

    pub(crate) fn next_step_end(&self, pool: PoolRole) -> Option<u64> {
        next_of(&self.step_ends[pool.index()])
    }

    /// Takes the next event if it happens at `at_ns`.
    pub(crate) fn pop_at(&mut self, at_ns: u64) -> Option<Event> {
        let heaps = self.step_ends.iter_mut().chain([&mut self.others]);
        // `Reverse` makes the earliest entry the largest.
        let heap = heaps.max_by(|a, b| a.peek().cmp(&b.peek()))?;
        let next = heap.peek().filter(|Reverse((due_ns, ..))| *due_ns == at_ns);
        let next = next.map(|Reverse((_, event, _))| *event);
        if let Some(&(due_ns, tag)) = self.give_ups.first()
            && due_ns == at_ns
            && next.is_none_or(|event| event > Event::GiveUp { tag })
        {
            self.give_ups.pop_first();
            return Some(Event::GiveUp { tag });
        }
        if let Some(&Reverse((due_ns, workload))) = self.arrivals.peek()
            && due_ns == at_ns
            && next.is_none_or(|event| event > Event::Arrival { workload })
        {
            self.arrivals.pop();
            return Some(Event::Arrival { workload });
        }
        if next.is_some() {
            heap.pop();
            self.ticks -= usize::from(matches!(next, Some(Event::ScaleTick { .. })));
            self.expiries -= usize::from(matches!(next, Some(Event::HeldKvExpires { .. })));
        }
        next
    }
}

fn next_of(heap: &BinaryHeap<Entry>) -> Option<u64> {
    heap.peek().map(|Reverse((at_ns, ..))| *at_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_give_up_in_their_turn_unless_they_do_not() {
        let mut queue = EventQueue::new(1);
        queue.push_step_end(PoolRole::Aggregated, 5, Event::StepEnd { worker: 0, incarnation: 0 });
        queue.push(5, Event::Arrival { workload: 0 });
        [(5, 2), (5, 1), (4, 3), (9, 4)].iter().for_each(|(at_ns, tag)| queue.expect_give_up(*at_ns, *tag));
        queue.call_off_give_up(4, 3);
        assert_eq!((queue.next_time(), queue.next_other(), queue.pop_at(4)), (Some(5), Some(5), None));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop_at(5)).collect();
        let give_up = |tag| Event::GiveUp { tag };
        let step = Event::StepEnd { worker: 0, incarnation: 0 };
        assert_eq!(order, [step, give_up(1), give_up(2), Event::Arrival { workload: 0 }]);
        assert_eq!((queue.next_time(), queue.has_more_than_ticks()), (Some(9), true));
        queue.call_off_give_up(9, 4);
        assert!(!queue.has_more_than_ticks());
    }

    #[test]
    fn equal_times_go_by_kind_then_by_order() {
        let mut queue = EventQueue::new(2);
        queue.push(5, Event::Arrival { workload: 0 });
        queue.push_step_end(PoolRole::Decode, 5, Event::StepEnd { worker: 1, incarnation: 0 });
        queue.push_step_end(PoolRole::Prefill, 5, Event::StepEnd { worker: 0, incarnation: 3 });
        queue.push(3, Event::Arrival { workload: 1 });
        queue.push(5, Event::ScaleTick { pool: PoolRole::Aggregated });
        queue.push(5, Event::Ready { workload: 0, node: 1 });
        assert_eq!(queue.next_time(), Some(3));
        assert_eq!(queue.pop_at(3), Some(Event::Arrival { workload: 1 }));
        assert_eq!(queue.pop_at(3), None);
        assert_eq!(
            (queue.next_arrival(), queue.next_other(), queue.next_step_end(PoolRole::Prefill)),
            (Some(5), Some(5), Some(5))
        );
        assert_eq!(queue.pop_at(5), Some(Event::StepEnd { worker: 0, incarnation: 3 }));
        assert_eq!(queue.pop_at(5), Some(Event::StepEnd { worker: 1, incarnation: 0 }));
        assert_eq!(queue.pop_at(5), Some(Event::Arrival { workload: 0 }));
        assert!(queue.has_more_than_ticks() && queue.has_requests());
        assert_eq!(queue.pop_at(5), Some(Event::Ready { workload: 0, node: 1 }));
        assert!(!queue.has_requests());
        assert!(!queue.has_more_than_ticks());
        assert_eq!(queue.pop_at(5), Some(Event::ScaleTick { pool: PoolRole::Aggregated }));
        assert_eq!(queue.next_time(), None);
    }
}
