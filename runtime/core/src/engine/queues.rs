//! The queues that requests wait in for their admission.

use crate::config::Policy;
use crate::engine::Engine;
use crate::request::RequestId;

/// Queue that a request waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Waiting,
    /// Of requests that were skipped, where the rules queue them apart.
    Skipped,
    KvReady,
}

impl Engine {
    /// Of the requests that hold no KV, the queue whose turn it is: that of skipped ones first, or the one whose head ranks
    /// before that of the other.
    pub(crate) fn next_without_kv(&mut self) -> QueueKind {
        if self.skipped_waiting.len() == 0 {
            return QueueKind::Waiting;
        }
        let [skipped, waiting] = [&mut self.skipped_waiting, &mut self.waiting].map(|queue| queue.peek(&self.requests));
        let place = |id: RequestId| {
            let request = &self.requests[id];
            (request.rank, request.arrival_ns, request.sequence)
        };
        let is_waiting_first = self.config.policy != Policy::Fcfs
            && waiting.map(place).is_some_and(|place_of_waiting| {
                skipped.map(place).is_none_or(|place_of_skipped| place_of_waiting < place_of_skipped)
            });
        if is_waiting_first { QueueKind::Waiting } else { QueueKind::Skipped }
    }

    /// Takes a request that holds no KV out of the queue that it waits in.
    pub(crate) fn leave_waiting(&mut self, id: RequestId) {
        let queue = if self.is_queued_apart(id) { &mut self.skipped_waiting } else { &mut self.waiting };
        queue.leave(id, &mut self.requests);
    }

    /// Whether a request that holds no KV waits among those that were skipped.
    pub(crate) fn is_queued_apart(&self, id: RequestId) -> bool {
        self.requests[id].deferred && self.config.rules.queues_skipped_apart()
    }

    /// Counts a request among those of [`Engine::num_skipped_waiting`], or no more.
    pub(crate) fn set_deferred(&mut self, id: RequestId, deferred: bool) {
        let was = std::mem::replace(&mut self.requests[id].deferred, deferred);
        self.num_deferred -= usize::from(was);
        self.num_deferred += usize::from(deferred);
    }

    /// Takes the request whose turn it is in a queue.
    pub(crate) fn pop_waiting(&mut self, kind: QueueKind) -> Option<RequestId> {
        let queue = match kind {
            QueueKind::Waiting => &mut self.waiting,
            QueueKind::Skipped => &mut self.skipped_waiting,
            QueueKind::KvReady => &mut self.kv_ready,
        };
        queue.pop(&mut self.requests)
    }

    /// Queues a request before all others, or by its rank.
    pub(crate) fn push_waiting_front(&mut self, kind: QueueKind, id: RequestId) {
        let queue = match kind {
            QueueKind::Waiting => &mut self.waiting,
            QueueKind::Skipped => &mut self.skipped_waiting,
            QueueKind::KvReady => &mut self.kv_ready,
        };
        queue.push_front(id, &mut self.requests);
    }

    /// Queues a request that this step has stepped over, where the rules keep it.
    pub(crate) fn push_skipped(&mut self, from: QueueKind, id: RequestId) {
        let is_moved = from == QueueKind::Waiting && self.config.rules.queues_skipped_apart();
        self.push_waiting_front(if is_moved { QueueKind::Skipped } else { from }, id);
    }
}
