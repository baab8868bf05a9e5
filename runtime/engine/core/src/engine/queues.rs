//! Waiting requests: the queues for admission, and the counts of the other waiting requests.

use crate::config::{EngineConfig, Policy, SchedulerRules};
use crate::engine::PauseState;
use crate::request::queue::WaitingQueue;
use crate::request::table::RequestTable;
use crate::request::{KvRole, RequestId, RequestStatus};

/// Queue that a request waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    Waiting,
    /// Skipped requests, if the rules queue them separately.
    Skipped,
    KvReady,
}

/// The requests of an engine that do not run.
#[derive(Debug)]
pub(super) struct WaitingQueues {
    waiting: WaitingQueue,
    /// Requests that were skipped, if the [rules](crate::SchedulerRules) have a separate queue for them.
    skipped: WaitingQueue,
    /// Requests whose remote KV has arrived; admitted before `waiting`.
    kv_ready: WaitingQueue,
    /// Requests that wait for blocks for their remote KV, if these are allocated between steps.
    destinations: WaitingQueue,
    /// Requests that wait for a transfer of the tiers and are not retried until one ends, if the
    /// host's rules require it, in the order in which they began to wait.
    asleep: Vec<RequestId>,
    sleep_until_transfers: bool,
    /// Whether the latest attempt to allocate such blocks failed, and no request has returned
    /// blocks since.
    is_destination_blocked: bool,
    reserves_between_steps: bool,
    is_fcfs: bool,
    rules: SchedulerRules,
    /// Requests whose blocks a transfer is filling.
    num_loading: usize,
    /// Requests that are [`Request::deferred`](crate::request::Request::deferred).
    num_deferred: usize,
    /// Whether the latest step stepped over all of them because of their adapters, and the next one
    /// would again.
    all_wait_for_adapters: bool,
    /// Scratch for requests stepped over while admitting, with the queue each
    /// was taken from.
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

    /// Number of requests in all queues.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.num_queued() + self.destinations.len() + self.num_loading + self.asleep.len()
    }

    /// Requests that would be admitted if there were room and no pause.
    #[inline]
    pub(super) fn num_queued(&self) -> usize {
        self.waiting.len() + self.skipped.len() + self.kv_ready.len()
    }

    /// Requests whose KV has arrived.
    #[inline]
    pub(super) fn num_kv_ready(&self) -> usize {
        self.kv_ready.len()
    }

    /// Requests that wait for blocks, which they are given between steps.
    #[inline]
    pub(super) fn num_destinations(&self) -> usize {
        self.destinations.len()
    }

    /// Requests whose KV is being transferred.
    #[inline]
    pub(super) fn num_loading(&self) -> usize {
        self.num_loading
    }

    /// Requests that were skipped or load KV, and were not admitted since.
    #[inline]
    pub(super) fn num_deferred(&self) -> usize {
        self.num_deferred
    }

    /// The queue from which the next request comes, if any waits; None if the pause excludes all queues.
    pub(super) fn next(&self, pause_state: PauseState) -> Option<QueueKind> {
        match pause_state {
            PauseState::PausedAll => None,
            PauseState::PausedNew if !self.rules.admits_loaded_under_pause() => None,
            _ if self.kv_ready.len() > 0 => Some(QueueKind::KvReady),
            PauseState::PausedNew => None,
            PauseState::Unpaused => Some(QueueKind::Waiting),
        }
    }

    /// Whether a step with the adapters of the latest one steps over all requests again.
    pub(super) fn all_wait_for_adapters(&self) -> bool {
        self.all_wait_for_adapters
    }

    /// A step that scheduled all running requests has stepped over this number of requests because
    /// of their adapters.
    pub(super) fn note_adapter_waits(&mut self, requests: usize) {
        let waiting = self.waiting.len() + self.skipped.len();
        self.all_wait_for_adapters =
            requests > 0 && requests == waiting && self.kv_ready.len() + self.destinations.len() == 0;
    }

    /// A request has left the running ones, and another one may have its adapter's place.
    pub(super) fn forget_adapter_waits(&mut self) {
        self.all_wait_for_adapters = false;
    }

    /// Whether requests skipped because of a transfer sleep until a transfer ends.
    pub(super) fn sleep_until_transfers(&self) -> bool {
        self.sleep_until_transfers
    }

    /// Whether a request from this queue keeps its place among the loading requests.
    pub(super) fn keeps_place(&self, kind: QueueKind) -> bool {
        kind == QueueKind::KvReady || self.sleep_until_transfers && kind == QueueKind::Skipped
    }

    /// A request waits for a transfer.
    pub(super) fn sleep(&mut self, id: RequestId, requests: &RequestTable) {
        let order = requests[id].load_order;
        let place = self.asleep.partition_point(|&other| requests[other].load_order < order);
        self.asleep.insert(place, id);
    }

    /// Notes that a transfer has ended: requests waiting for one may be retried.
    pub(super) fn wake(&mut self, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        for id in self.asleep.drain(..) {
            self.skipped.push_in_order(id, requests);
        }
    }

    /// Whether a skipped request that waited for a transfer precedes the first request whose KV has arrived.
    /// Both kinds share one order.
    pub(super) fn is_skipped_first(&mut self, requests: &RequestTable) -> bool {
        let Some(skipped) = self.skipped.peek(requests).filter(|_| self.sleep_until_transfers) else { return false };
        // KV from another engine precedes everything that waits for the host.
        self.kv_ready.peek(requests).is_none_or(|ready| {
            requests[ready].kv_role != KvRole::Destination && requests[skipped].load_order < requests[ready].load_order
        })
    }

    /// The queue to take the next request without KV from: the queue of skipped requests first, unless the
    /// head of the other queue ranks before its head.
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

    /// The next one of the requests that hold no KV and were not skipped.
    pub(super) fn peek_waiting(&mut self, requests: &RequestTable) -> Option<RequestId> {
        self.waiting.peek(requests)
    }

    /// Removes and returns the next request of a queue.
    pub(super) fn pop(&mut self, kind: QueueKind, requests: &mut RequestTable) -> Option<RequestId> {
        self.queue_mut(kind).pop(requests)
    }

    /// Queues a request before all others, or by its rank.
    pub(super) fn push_front(&mut self, kind: QueueKind, id: RequestId, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        self.queue_mut(kind).push_front(id, requests);
    }

    /// A request has arrived.
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

    /// The outputs to a part of a resumable request have ended: it waits with its KV, if it has any left.
    pub(super) fn enter_again(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        let queue = if requests[id].num_computed_tokens > 0 { &mut self.kv_ready } else { &mut self.waiting };
        queue.push_back(id, requests);
    }

    /// Queues a request without KV before the others without KV.
    pub(super) fn enter_first(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        let queue = if self.is_skipped(id, requests) { &mut self.skipped } else { &mut self.waiting };
        queue.push_front(id, requests);
    }

    /// Takes a request out of the queue that it waits in.
    pub(super) fn leave(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.forget_adapter_waits();
        if let Some(place) = self.asleep.iter().position(|&other| other == id) {
            self.asleep.remove(place);
        } else if let Some(queue) = self.queue_of(id, requests) {
            queue.leave(id, requests);
        }
    }

    /// Moves a request to the place of its rank, if it waits in a queue.
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

    /// A request has been taken from a queue and is stepped over by this step.
    pub(super) fn step_over(&mut self, from: QueueKind, id: RequestId) {
        self.stepped_over.push((from, id));
    }

    /// Queues the requests that this step has skipped, in the queue that the rules require.
    pub(super) fn return_stepped_over(&mut self, requests: &mut RequestTable) {
        while let Some((from, id)) = self.stepped_over.pop() {
            let is_moved = from == QueueKind::Waiting && self.queues_skipped_apart();
            self.push_front(if is_moved { QueueKind::Skipped } else { from }, id, requests);
        }
    }

    /// Sets whether a request counts as skipped.
    pub(super) fn set_deferred(&mut self, id: RequestId, deferred: bool, requests: &mut RequestTable) {
        let was = std::mem::replace(&mut requests[id].deferred, deferred);
        self.num_deferred -= usize::from(was);
        self.num_deferred += usize::from(deferred);
    }

    /// A request waits for its KV from now on.
    pub(super) fn begin_load(&mut self) {
        self.num_loading += 1;
    }

    /// A request no longer waits for its KV.
    pub(super) fn end_load(&mut self) {
        self.num_loading -= 1;
    }

    /// Queues a request whose KV has arrived, in the order of arrivals or of load starts.
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

    /// Records whether the latest allocation for a request that waits for blocks failed and would
    /// fail again.
    pub(super) fn set_destination_blocked(&mut self, is_blocked: bool) {
        self.is_destination_blocked = is_blocked;
    }

    /// Takes the oldest request that waits for blocks.
    pub(super) fn pop_destination(&mut self, requests: &mut RequestTable) -> Option<RequestId> {
        self.destinations.pop(requests)
    }

    /// There were no blocks for the oldest request that waits for them.
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

    /// The queue that a request waits in, if it waits in one.
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

    /// Whether a request that has not run gets its blocks between steps.
    fn is_destination(&self, id: RequestId, requests: &RequestTable) -> bool {
        self.reserves_between_steps && requests[id].kv_role == KvRole::Destination
    }

    /// Whether a skipped request that holds no KV is waiting.
    fn is_skipped(&self, id: RequestId, requests: &RequestTable) -> bool {
        requests[id].deferred && self.queues_skipped_apart()
    }

    fn queues_skipped_apart(&self) -> bool {
        self.sleep_until_transfers || self.rules.queues_skipped_apart()
    }
}
