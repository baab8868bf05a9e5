//! Waiting requests: the queues for admission, and counts of the other waiting requests.

use crate::config::{EngineConfig, Policy, SchedulerRules};
use crate::engine::PauseState;
use crate::request::queue::WaitingQueue;
use crate::request::table::RequestTable;
use crate::request::{KvRole, RequestId, RequestStatus};

/// The queue that a request waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    Waiting,
    /// Skipped requests, if the rules use a separate queue for them.
    Skipped,
    KvReady,
}

#[derive(Debug)]
pub(super) struct WaitingQueues {
    waiting: WaitingQueue,
    /// Skipped requests, if the [rules](crate::SchedulerRules) use a separate queue for them.
    skipped: WaitingQueue,
    /// Requests whose remote KV has arrived. They are admitted before `waiting`.
    kv_ready: WaitingQueue,
    /// Requests that wait for blocks for their remote KV, if blocks are allocated between steps.
    destinations: WaitingQueue,
    /// Requests that are not retried until a transfer of the tiers ends, if the host rules require
    /// this. They are in the order in which they began to wait.
    asleep: Vec<RequestId>,
    sleep_until_transfers: bool,
    /// Whether the latest allocation for `destinations` failed and no request has freed blocks
    /// since.
    is_destination_blocked: bool,
    reserves_between_steps: bool,
    is_fcfs: bool,
    rules: SchedulerRules,
    num_loading: usize,
    /// Number of requests that are [`Request::deferred`](crate::request::Request::deferred).
    num_deferred: usize,
    /// Whether the latest step skipped all waiting requests because of their adapters, and the next step
    /// would do the same.
    all_wait_for_adapters: bool,
    /// Scratch buffer: requests skipped in this step, with the queue that each
    /// came from.
    stepped_over: Vec<(QueueKind, RequestId)>,
}

impl WaitingQueues {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let queue = || WaitingQueue::new(config.policy());
        Self {
            waiting: queue(),
            skipped: queue(),
            kv_ready: queue(),
            destinations: queue(),
            asleep: Vec::new(),
            sleep_until_transfers: config.host_rules().sleeps_until_transfers(),
            is_destination_blocked: false,
            reserves_between_steps: config.quirks().reserves_between_steps(),
            is_fcfs: config.policy() == Policy::Fcfs,
            rules: config.rules(),
            num_loading: 0,
            num_deferred: 0,
            all_wait_for_adapters: false,
            stepped_over: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.num_queued() + self.destinations.len() + self.num_loading + self.asleep.len()
    }

    /// Number of requests in the admission queues. They would be admitted if there were room and no pause.
    #[inline]
    pub(super) fn num_queued(&self) -> usize {
        self.waiting.len() + self.skipped.len() + self.kv_ready.len()
    }

    #[inline]
    pub(super) fn num_kv_ready(&self) -> usize {
        self.kv_ready.len()
    }

    /// Number of requests that wait for blocks, which are allocated between steps.
    #[inline]
    pub(super) fn num_destinations(&self) -> usize {
        self.destinations.len()
    }

    #[inline]
    pub(super) fn num_loading(&self) -> usize {
        self.num_loading
    }

    /// Number of requests that were skipped or load KV, and that were not admitted since.
    #[inline]
    pub(super) fn num_deferred(&self) -> usize {
        self.num_deferred
    }

    /// The queue of the next request, if any request waits. None if the pause excludes all queues.
    pub(super) fn next(&self, pause_state: PauseState) -> Option<QueueKind> {
        match pause_state {
            PauseState::PausedAll => None,
            PauseState::PausedNew if !self.rules.admits_loaded_under_pause() => None,
            _ if self.kv_ready.len() > 0 => Some(QueueKind::KvReady),
            PauseState::PausedNew => None,
            PauseState::Unpaused => Some(QueueKind::Waiting),
        }
    }

    /// Whether a step with the same adapters as the latest step would skip all waiting requests.
    pub(super) fn all_wait_for_adapters(&self) -> bool {
        self.all_wait_for_adapters
    }

    /// Records how many requests were skipped because of their adapters by a step that scheduled all running
    /// requests.
    pub(super) fn note_adapter_waits(&mut self, requests: usize) {
        let waiting = self.waiting.len() + self.skipped.len();
        self.all_wait_for_adapters =
            requests > 0 && requests == waiting && self.kv_ready.len() + self.destinations.len() == 0;
    }

    /// Clears `all_wait_for_adapters` when a running request has ended, because its adapter slot may be free.
    pub(super) fn forget_adapter_waits(&mut self) {
        self.all_wait_for_adapters = false;
    }

    /// Whether requests skipped because of a transfer are not retried until a transfer ends.
    pub(super) fn sleep_until_transfers(&self) -> bool {
        self.sleep_until_transfers
    }

    /// Whether a request from this queue keeps its place among the loading requests.
    pub(super) fn keeps_place(&self, kind: QueueKind) -> bool {
        kind == QueueKind::KvReady || self.sleep_until_transfers && kind == QueueKind::Skipped
    }

    /// Lets a request wait until a transfer ends.
    pub(super) fn sleep(&mut self, id: RequestId, requests: &RequestTable) {
        let order = requests[id].load_order;
        let place = self.asleep.partition_point(|&other| requests[other].load_order < order);
        self.asleep.insert(place, id);
    }

    /// Makes the requests that wait for a transfer available again, after one has ended.
    pub(super) fn wake(&mut self, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        for id in self.asleep.drain(..) {
            self.skipped.push_in_order(id, requests);
        }
    }

    /// Whether the first skipped request that waited for a transfer goes before the first request whose KV has
    /// arrived. Both queues share one order.
    pub(super) fn is_skipped_first(&mut self, requests: &RequestTable) -> bool {
        let Some(skipped) = self.skipped.peek(requests).filter(|_| self.sleep_until_transfers) else { return false };
        // Requests with KV from another engine go before all requests that wait for the host.
        self.kv_ready.peek(requests).is_none_or(|ready| {
            requests[ready].kv_role != KvRole::Destination && requests[skipped].load_order < requests[ready].load_order
        })
    }

    /// The queue of the next request without KV. This is the queue of skipped requests, unless the
    /// head of the waiting queue ranks before its head.
    pub(super) fn next_without_kv(&mut self, requests: &RequestTable) -> QueueKind {
        if self.skipped.len() == 0 {
            return QueueKind::Waiting;
        }
        let [skipped, waiting] = [&mut self.skipped, &mut self.waiting].map(|queue| queue.peek(requests));
        let place = |id: RequestId| {
            let request = &requests[id];
            (request.rank, request.arrival_ns, request.sequence)
        };
        let is_waiting_first = !self.is_fcfs
            && waiting.map(place).is_some_and(|place_of_waiting| {
                skipped.map(place).is_none_or(|place_of_skipped| place_of_waiting < place_of_skipped)
            });
        if is_waiting_first { QueueKind::Waiting } else { QueueKind::Skipped }
    }

    /// The next request that holds no KV and was not skipped.
    pub(super) fn peek_waiting(&mut self, requests: &RequestTable) -> Option<RequestId> {
        self.waiting.peek(requests)
    }

    pub(super) fn pop(&mut self, kind: QueueKind, requests: &mut RequestTable) -> Option<RequestId> {
        self.queue_mut(kind).pop(requests)
    }

    /// Inserts a request at the head of a queue, or by its rank.
    pub(super) fn push_front(&mut self, kind: QueueKind, id: RequestId, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        self.queue_mut(kind).push_front(id, requests);
    }

    pub(super) fn enter(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        let queue = if self.is_destination(id, requests) {
            &mut self.destinations
        } else if self.is_skipped(id, requests) {
            &mut self.skipped
        } else {
            &mut self.waiting
        };
        queue.push_back(id, requests);
    }

    /// Queues a resumable request again, after the outputs for a part of its prompt. It keeps its KV, if it has any.
    pub(super) fn enter_again(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        let queue = if requests[id].num_computed_tokens > 0 { &mut self.kv_ready } else { &mut self.waiting };
        queue.push_back(id, requests);
    }

    /// Queues a request without KV before all other requests without KV.
    pub(super) fn enter_first(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        let queue = if self.is_skipped(id, requests) { &mut self.skipped } else { &mut self.waiting };
        queue.push_front(id, requests);
    }

    pub(super) fn leave(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        if let Some(place) = self.asleep.iter().position(|&other| other == id) {
            self.asleep.remove(place);
        } else if let Some(queue) = self.queue_of(id, requests) {
            queue.leave(id, requests);
        }
    }

    /// Moves a waiting request to the place of its new rank.
    pub(super) fn reorder(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        if self.asleep.contains(&id) {
            return;
        }
        if let Some(queue) = self.queue_of(id, requests) {
            queue.leave(id, requests);
            queue.push_back(id, requests);
        }
    }

    /// Records that the current step skips a request that was taken from queue `from`.
    pub(super) fn step_over(&mut self, from: QueueKind, id: RequestId) {
        self.stepped_over.push((from, id));
    }

    /// Returns the requests that this step has skipped to the queue that the rules require.
    pub(super) fn return_stepped_over(&mut self, requests: &mut RequestTable) {
        while let Some((from, id)) = self.stepped_over.pop() {
            let is_moved = from == QueueKind::Waiting && self.queues_skipped_apart();
            self.push_front(if is_moved { QueueKind::Skipped } else { from }, id, requests);
        }
    }

    pub(super) fn set_deferred(&mut self, id: RequestId, deferred: bool, requests: &mut RequestTable) {
        let was = std::mem::replace(&mut requests[id].deferred, deferred);
        self.num_deferred -= usize::from(was);
        self.num_deferred += usize::from(deferred);
    }

    pub(super) fn begin_load(&mut self) {
        self.num_loading += 1;
    }

    pub(super) fn end_load(&mut self) {
        self.num_loading -= 1;
    }

    /// Queues a request whose KV has arrived, in the order of arrival or in the order in which loads began.
    pub(super) fn push_kv_ready(&mut self, id: RequestId, by_arrival: bool, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        if by_arrival {
            self.kv_ready.push_back(id, requests);
        } else {
            self.kv_ready.push_in_order(id, requests);
        }
    }

    /// Whether a request waits for blocks that it may get between steps.
    #[inline]
    pub(super) fn may_reserve(&self) -> bool {
        self.destinations.len() > 0 && !self.is_destination_blocked
    }

    /// Records whether the latest allocation for a request in `destinations` failed and would
    /// fail again.
    pub(super) fn set_destination_blocked(&mut self, is_blocked: bool) {
        self.is_destination_blocked = is_blocked;
    }

    pub(super) fn pop_destination(&mut self, requests: &mut RequestTable) -> Option<RequestId> {
        self.destinations.pop(requests)
    }

    /// Puts back the oldest request that waits for blocks, after an allocation failed.
    pub(super) fn return_destination(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.destinations.push_front(id, requests);
    }

    fn queue_mut(&mut self, kind: QueueKind) -> &mut WaitingQueue {
        match kind {
            QueueKind::Waiting => &mut self.waiting,
            QueueKind::Skipped => &mut self.skipped,
            QueueKind::KvReady => &mut self.kv_ready,
        }
    }

    fn queue_of(&mut self, id: RequestId, requests: &RequestTable) -> Option<&mut WaitingQueue> {
        match requests[id].status {
            RequestStatus::Waiting if self.is_destination(id, requests) => Some(&mut self.destinations),
            RequestStatus::Waiting | RequestStatus::WaitingForGrammar | RequestStatus::Preempted => {
                Some(if self.is_skipped(id, requests) { &mut self.skipped } else { &mut self.waiting })
            }
            RequestStatus::RemoteKvReady => Some(&mut self.kv_ready),
            RequestStatus::WaitingForInput if requests[id].num_computed_tokens > 0 => Some(&mut self.kv_ready),
            RequestStatus::WaitingForInput => Some(&mut self.waiting),
            RequestStatus::WaitingForRemoteKv
            | RequestStatus::Running
            | RequestStatus::HoldingKv
            | RequestStatus::Finished => None,
        }
    }

    /// Whether a request that has not run yet gets its blocks between steps.
    fn is_destination(&self, id: RequestId, requests: &RequestTable) -> bool {
        self.reserves_between_steps && requests[id].kv_role == KvRole::Destination
    }

    fn is_skipped(&self, id: RequestId, requests: &RequestTable) -> bool {
        requests[id].deferred && self.queues_skipped_apart()
    }

    fn queues_skipped_apart(&self) -> bool {
        self.sleep_until_transfers || self.rules.queues_skipped_apart()
    }
}
