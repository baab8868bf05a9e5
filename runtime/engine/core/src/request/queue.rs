//! The waiting queue, in FCFS order or by rank.
//!
//! When a request leaves (by abort, by admission from another queue or to another place), its entry stays and is
//! dropped when it reaches the front. So the queue is never searched.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::config::Policy;
use crate::request::table::RequestTable;
use crate::request::{Request, RequestId};

/// Maximum number of stale entries that are kept in any case.
const MAX_LEFT_PLACES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    id: RequestId,
    epoch: u32,
}

impl Entry {
    fn is_live(self, requests: &RequestTable) -> bool {
        requests[self.id].queue_epoch == self.epoch
    }
}

/// An entry with its rank; smaller is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ranked {
    rank: i64,
    arrival_ns: u64,
    sequence: u64,
    entry: Entry,
}

impl Ranked {
    fn of(request: &Request, entry: Entry) -> Self {
        Self { rank: request.rank, arrival_ns: request.arrival_ns, sequence: request.sequence, entry }
    }
}

#[derive(Debug)]
enum Order {
    Fcfs(VecDeque<Entry>),
    Ranked(BinaryHeap<Reverse<Ranked>>),
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
            Policy::Priority | Policy::Ranked => Order::Ranked(BinaryHeap::new()),
        };
        Self { order, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Queues a request after all others (FCFS) or by its rank.
    pub(crate) fn push_back(&mut self, id: RequestId, requests: &mut RequestTable) {
        let entry = self.enter(id, requests);
        match &mut self.order {
            Order::Fcfs(queue) => queue.push_back(entry),
            Order::Ranked(heap) => enter_heap(heap, Ranked::of(&requests[id], entry), self.len, requests),
        }
    }

    /// Queues a request before all others (FCFS) or by its rank.
    pub(crate) fn push_front(&mut self, id: RequestId, requests: &mut RequestTable) {
        let entry = self.enter(id, requests);
        match &mut self.order {
            Order::Fcfs(queue) => queue.push_front(entry),
            Order::Ranked(heap) => enter_heap(heap, Ranked::of(&requests[id], entry), self.len, requests),
        }
    }

    /// Queues a request whose KV has arrived. Under FCFS, it comes after requests whose loads started earlier;
    /// otherwise its rank decides.
    pub(crate) fn push_in_order(&mut self, id: RequestId, requests: &mut RequestTable) {
        let order = requests[id].load_order;
        if let Order::Ranked(_) = self.order {
            return self.push_back(id, requests);
        }
        let entry = self.enter(id, requests);
        if let Order::Fcfs(queue) = &mut self.order {
            let is_before = |other: &Entry| other.is_live(requests) && requests[other.id].load_order <= order;
            let place = queue.iter().rposition(is_before).map_or(0, |place| place + 1);
            queue.insert(place, entry);
        }
    }

    pub(crate) fn pop(&mut self, requests: &mut RequestTable) -> Option<RequestId> {
        let id = self.peek(requests)?;
        self.drop_first();
        self.leave(id, requests);
        Some(id)
    }

    pub(crate) fn peek(&mut self, requests: &RequestTable) -> Option<RequestId> {
        loop {
            let entry = match &self.order {
                Order::Fcfs(queue) => *queue.front()?,
                Order::Ranked(heap) => heap.peek()?.0.entry,
            };
            if entry.is_live(requests) {
                return Some(entry.id);
            }
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        match &mut self.order {
            Order::Fcfs(queue) => drop(queue.pop_front()),
            Order::Ranked(heap) => drop(heap.pop()),
        }
    }

    /// Removes a queued request, wherever it is in the queue.
    pub(crate) fn leave(&mut self, id: RequestId, requests: &mut RequestTable) {
        requests[id].queue_epoch += 1;
        self.len -= 1;
    }

    fn enter(&mut self, id: RequestId, requests: &mut RequestTable) -> Entry {
        self.len += 1;
        requests[id].queue_epoch += 1;
        Entry { id, epoch: requests[id].queue_epoch }
    }
}

/// Adds an entry to a heap whose queue has `len` requests. Stale entries stay until they reach the front, which may
/// never happen. So they are removed once they are the majority.
fn enter_heap(heap: &mut BinaryHeap<Reverse<Ranked>>, place: Ranked, len: usize, requests: &RequestTable) {
    if heap.len() >= 2 * len + MAX_LEFT_PLACES {
        heap.retain(|Reverse(place)| place.entry.is_live(requests));
    }
    heap.push(Reverse(place));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::request::{Prompt, RequestSpec};

    fn queued(policy: Policy, priorities: &[i32]) -> (WaitingQueue, RequestTable) {
        let (mut queue, mut requests) = (WaitingQueue::new(policy), RequestTable::default());
        for (tag, &priority) in priorities.iter().enumerate() {
            let mut prompt = Prompt::new(16, 0);
            prompt.push_run(tag as u64, 0, 8);
            let spec = RequestSpec { priority, ..RequestSpec::new(tag as u64, prompt, 1) };
            let id = requests.insert(Request::new(spec, tag as u64, 16, u32::MAX));
            queue.push_back(id, &mut requests);
        }
        (queue, requests)
    }

    /// Each change of rank leaves a stale entry. The number of these entries is bounded by the queue's length.
    #[test]
    fn changing_ranks_keep_the_heap_small() {
        let (mut queue, mut requests) = queued(Policy::Ranked, &[0; 50]);
        for turn in 0..1_000 {
            for slot in 0..50 {
                let id = RequestId(slot);
                queue.leave(id, &mut requests);
                requests[id].rank = (turn * 7 + i64::from(slot) * 13) % 101;
                queue.push_back(id, &mut requests);
            }
            let Order::Ranked(heap) = &queue.order else { panic!("a ranked queue is a heap") };
            assert!(heap.len() <= 2 * 50 + MAX_LEFT_PLACES, "{} places after turn {turn}", heap.len());
        }
        let order: Vec<RequestId> = std::iter::from_fn(|| queue.pop(&mut requests)).collect();
        let ranks: Vec<i64> = order.iter().map(|&id| requests[id].rank).collect();
        assert!(ranks.len() == 50 && ranks.is_sorted(), "{ranks:?}");
    }

    proptest! {
        #[test]
        fn order_survives_departures(
            priority_policy in any::<bool>(),
            priorities in proptest::collection::vec(-3..3i32, 1..40),
            gone in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let policy = if priority_policy { Policy::Priority } else { Policy::Fcfs };
            let (mut queue, mut requests) = queued(policy, &priorities);
            let mut expected: Vec<(i32, u64)> = Vec::new();
            for (tag, &priority) in priorities.iter().enumerate() {
                let id = RequestId(tag as u32);
                if gone[tag] {
                    queue.leave(id, &mut requests);
                } else {
                    expected.push((if priority_policy { priority } else { 0 }, tag as u64));
                }
            }
            expected.sort_unstable();
            prop_assert_eq!(queue.len(), expected.len());
            let popped: Vec<u64> =
                std::iter::from_fn(|| queue.pop(&mut requests)).map(|id| u64::from(id.0)).collect();
            prop_assert_eq!(popped, expected.into_iter().map(|(_, tag)| tag).collect::<Vec<_>>());
            prop_assert_eq!(queue.len(), 0);
        }
    }
}
