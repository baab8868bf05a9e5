//! The waiting queue, in FCFS or priority order.
//!
//! Entries of requests that left (by abort or admission from elsewhere) are
//! dropped when they surface, so nothing searches the queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::config::Policy;
use crate::request::{Request, RequestId, RequestTable};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    priority: i32,
    arrival_ns: u64,
    sequence: u64,
    id: RequestId,
    epoch: u32,
}

impl Entry {
    fn of(id: RequestId, request: &Request) -> Self {
        Self {
            priority: request.priority,
            arrival_ns: request.arrival_ns,
            sequence: request.sequence,
            id,
            epoch: request.queue_epoch,
        }
    }

    fn is_live(&self, requests: &RequestTable) -> bool {
        requests[self.id].queue_epoch == self.epoch
    }
}

#[derive(Debug)]
enum Order {
    Fcfs(VecDeque<Entry>),
    Priority(BinaryHeap<Reverse<Entry>>),
}

#[derive(Debug)]
pub(crate) struct WaitingQueue {
    order: Order,
    len: usize,
}

impl WaitingQueue {
    pub(crate) fn new(policy: Policy) -> Self {
        let order = match policy {
            Policy::Fcfs => Order::Fcfs(VecDeque::new()),
            Policy::Priority => Order::Priority(BinaryHeap::new()),
        };
        Self { order, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Queues a request behind all others (FCFS) or by its priority.
    pub(crate) fn push_back(&mut self, id: RequestId, requests: &mut RequestTable) {
        let entry = self.enter(id, requests);
        match &mut self.order {
            Order::Fcfs(queue) => queue.push_back(entry),
            Order::Priority(heap) => heap.push(Reverse(entry)),
        }
    }

    /// Queues a request before all others (FCFS) or by its priority.
    pub(crate) fn push_front(&mut self, id: RequestId, requests: &mut RequestTable) {
        let entry = self.enter(id, requests);
        match &mut self.order {
            Order::Fcfs(queue) => queue.push_front(entry),
            Order::Priority(heap) => heap.push(Reverse(entry)),
        }
    }

    /// Takes the request whose turn it is.
    pub(crate) fn pop(&mut self, requests: &mut RequestTable) -> Option<RequestId> {
        loop {
            let entry = match &mut self.order {
                Order::Fcfs(queue) => queue.pop_front()?,
                Order::Priority(heap) => heap.pop()?.0,
            };
            if entry.is_live(requests) {
                self.leave(entry.id, requests);
                return Some(entry.id);
            }
        }
    }

    /// Forgets a queued request wherever it stands.
    pub(crate) fn leave(&mut self, id: RequestId, requests: &mut RequestTable) {
        requests[id].queue_epoch += 1;
        self.len -= 1;
    }

    fn enter(&mut self, id: RequestId, requests: &mut RequestTable) -> Entry {
        self.len += 1;
        requests[id].queue_epoch += 1;
        Entry::of(id, &requests[id])
    }
}
