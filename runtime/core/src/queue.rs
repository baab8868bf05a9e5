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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{EngineConfig, EngineConfigInput};
    use crate::request::{KvRole, Prompt, RequestSpec};

    /// Requests with the given priorities, all queued by submission order.
    fn queued(policy: Policy, priorities: &[i32]) -> crate::Engine {
        let config = EngineConfig::new(EngineConfigInput { policy, ..EngineConfigInput::default() }).unwrap();
        let mut engine = crate::Engine::new(config);
        for (tag, &priority) in priorities.iter().enumerate() {
            let mut prompt = Prompt::new(16, 0);
            prompt.push_run(tag as u64, 0, 8);
            let spec = RequestSpec {
                tag: tag as u64,
                prompt,
                max_tokens: 1,
                stop_token: None,
                priority,
                arrival_ns: 0,
                lora: None,
                kv_role: KvRole::Local,
            };
            engine.submit(spec).unwrap();
        }
        engine
    }

    proptest! {
        /// Whoever leaves early leaves no trace, and the rest keep their order.
        #[test]
        fn order_survives_departures(
            priority_policy in any::<bool>(),
            priorities in proptest::collection::vec(-3..3i32, 1..40),
            gone in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let policy = if priority_policy { Policy::Priority } else { Policy::Fcfs };
            let mut engine = queued(policy, &priorities);
            let mut expected: Vec<(i32, u64)> = Vec::new();
            for (tag, &priority) in priorities.iter().enumerate() {
                let id = RequestId(tag as u32);
                if gone[tag] {
                    engine.waiting.leave(id, &mut engine.requests);
                } else {
                    expected.push((if priority_policy { priority } else { 0 }, tag as u64));
                }
            }
            expected.sort_unstable();
            prop_assert_eq!(engine.waiting.len(), expected.len());
            let popped: Vec<u64> =
                std::iter::from_fn(|| engine.waiting.pop(&mut engine.requests)).map(|id| u64::from(id.0)).collect();
            prop_assert_eq!(popped, expected.into_iter().map(|(_, tag)| tag).collect::<Vec<_>>());
            prop_assert_eq!(engine.waiting.len(), 0);
        }
    }
}
