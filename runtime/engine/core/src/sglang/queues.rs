//! Requests that wait: for their turn, for pages or for KV from elsewhere, and prompts that are computed in part.

use crate::compat::Reservations;
use crate::config::Policy;
use crate::kv::hash::BlockHash;
use crate::request::queue::WaitingQueue;
use crate::request::table::RequestTable;
use crate::request::{KvRole, RequestId, RequestStatus};
use crate::sglang::config::SglangConfig;

/// A waiting request, with the values that decide its place in the order by the longest cached
/// prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Whether the request is moved behind all others, because a request with the same prefix precedes it.
    is_deferred: bool,
    /// Cached pages.
    longest_first: std::cmp::Reverse<u32>,
    /// Its place so far.
    place: u32,
    id: RequestId,
}

/// The requests of an engine that wait.
#[derive(Debug)]
pub(super) struct WaitingQueues {
    waiting: WaitingQueue,
    /// Partly computed prompts. They count as waiting, and precede all others unless the policy
    /// reorders them.
    begun: Vec<RequestId>,
    /// Requests that wait for pages for transferred KV, if these are allocated between passes.
    destinations: WaitingQueue,
    /// Whether there was no page for the first of them when it was tried.
    is_destination_blocked: bool,
    /// Requests whose KV has arrived.
    kv_ready: WaitingQueue,
    /// Requests whose pages a transfer is filling.
    num_loading: usize,
    reservations: Reservations,
    /// Scratch for ordering the waiting requests.
    candidates: Vec<Candidate>,
    /// Scratch for ordering: how prompts begin.
    beginnings: Vec<BlockHash>,
}

impl WaitingQueues {
    pub(super) fn new(config: &SglangConfig) -> Self {
        let queue = || WaitingQueue::new(Policy::Fcfs);
        Self {
            waiting: queue(),
            begun: Vec::new(),
            destinations: queue(),
            is_destination_blocked: false,
            kv_ready: queue(),
            num_loading: 0,
            reservations: config.reservations(),
            candidates: Vec::new(),
            beginnings: Vec::new(),
        }
    }

    /// Waiting requests, including partly computed prompts.
    #[inline]
    pub(super) fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of waiting requests, without partly computed prompts.
    pub(super) fn num_not_begun(&self) -> usize {
        let num_queued = self.waiting.len() - self.begun.len();
        num_queued + self.kv_ready.len() + self.destinations.len() + self.num_loading
    }

    /// Requests whose KV has arrived.
    #[inline]
    pub(super) fn num_kv_ready(&self) -> usize {
        self.kv_ready.len()
    }

    /// Requests whose KV is being transferred.
    #[inline]
    pub(super) fn num_loading(&self) -> usize {
        self.num_loading
    }

    /// Partly computed prompts, in the order of their starts.
    #[inline]
    pub(super) fn begun(&self) -> &[RequestId] {
        &self.begun
    }

    /// A request has arrived.
    pub(super) fn enter(&mut self, id: RequestId, requests: &mut RequestTable) {
        let queue = if self.is_destination(id, requests) { &mut self.destinations } else { &mut self.waiting };
        queue.push_back(id, requests);
    }

    /// A request ends that may wait, or have been begun. Returns false if it runs.
    pub(super) fn leave(&mut self, id: RequestId, requests: &mut RequestTable) -> bool {
        match requests[id].status {
            RequestStatus::Waiting if self.is_destination(id, requests) => self.destinations.leave(id, requests),
            RequestStatus::Waiting | RequestStatus::Preempted => self.waiting.leave(id, requests),
            RequestStatus::RemoteKvReady => self.kv_ready.leave(id, requests),
            RequestStatus::WaitingForRemoteKv => self.num_loading -= 1,
            RequestStatus::Running if self.begun.contains(&id) => {
                self.end_begun(id);
                self.waiting.leave(id, requests);
            }
            RequestStatus::Running => return false,
            // No request of SGLang's waits for input or for a grammar.
            RequestStatus::HoldingKv
            | RequestStatus::WaitingForInput
            | RequestStatus::WaitingForGrammar
            | RequestStatus::Finished => {}
        }
        true
    }

    /// Removes and returns the next request.
    pub(super) fn pop(&mut self, requests: &mut RequestTable) -> Option<RequestId> {
        self.waiting.pop(requests)
    }

    /// Queues a request before all others.
    pub(super) fn push_front(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.waiting.push_front(id, requests);
    }

    /// Queues a request behind all others.
    pub(super) fn push_back(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.waiting.push_back(id, requests);
    }

    /// Moves a waiting request before all others.
    pub(super) fn move_to_front(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.waiting.leave(id, requests);
        self.waiting.push_front(id, requests);
    }

    /// A part of a request's prompt is computed.
    pub(super) fn begin(&mut self, id: RequestId) {
        self.begun.push(id);
    }

    /// A request's prompt is complete, or no longer computed.
    pub(super) fn end_begun(&mut self, id: RequestId) {
        self.begun.retain(|&other| other != id);
    }

    /// Removes and returns the last request except `kept` whose prompt is partly computed.
    pub(super) fn pop_last_begun(&mut self, kept: RequestId, requests: &mut RequestTable) -> RequestId {
        let last = self.begun.iter().rposition(|&id| id != kept).expect("another has been begun");
        let id = self.begun.remove(last);
        self.waiting.leave(id, requests);
        id
    }

    /// Orders the waiting requests by the lengths of their cached prefixes. A request with at most
    /// `beginning_tokens` cached prompt tokens is moved behind another one with the same first tokens;
    /// `cached_pages` returns the cached pages.
    pub(super) fn order_by_prefix(
        &mut self,
        requests: &mut RequestTable,
        page_size_tokens: u32,
        beginning_tokens: u32,
        mut cached_pages: impl FnMut(RequestId, &mut RequestTable) -> u32,
    ) {
        let beginning_pages = beginning_tokens.div_ceil(page_size_tokens) as usize;
        while let Some(id) = self.waiting.pop(requests) {
            let cached_pages = cached_pages(id, requests);
            let hashes = &requests[id].block_hashes;
            let mut is_deferred = false;
            if cached_pages * page_size_tokens <= beginning_tokens
                && let Some(beginning) = hashes.get(beginning_pages - 1)
            {
                is_deferred = self.beginnings.contains(beginning);
                if !is_deferred {
                    self.beginnings.push(*beginning);
                }
            }
            let place = self.candidates.len() as u32;
            self.candidates.push(Candidate { is_deferred, longest_first: std::cmp::Reverse(cached_pages), place, id });
        }
        self.candidates.sort_unstable();
        for candidate in self.candidates.drain(..) {
            self.waiting.push_back(candidate.id, requests);
        }
        self.beginnings.clear();
    }

    /// Takes the request that has waited longest for pages between passes.
    pub(super) fn pop_destination(&mut self, requests: &mut RequestTable) -> Option<RequestId> {
        self.destinations.pop(requests)
    }

    /// There were no pages for the request that has waited longest for some.
    pub(super) fn return_destination(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.destinations.push_front(id, requests);
    }

    /// Sets whether there was no page for the first request that waits for pages.
    pub(super) fn set_destination_blocked(&mut self, is_blocked: bool) {
        self.is_destination_blocked = is_blocked;
    }

    /// Whether there was no page for the first request that waits for pages.
    pub(super) fn is_destination_blocked(&self) -> bool {
        self.is_destination_blocked
    }

    /// Whether a request waits for pages between passes.
    pub(super) fn has_destinations(&self) -> bool {
        self.destinations.len() > 0
    }

    /// A request waits for its KV.
    pub(super) fn begin_load(&mut self) {
        self.num_loading += 1;
    }

    /// The KV of a request has arrived.
    pub(super) fn end_load(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.num_loading -= 1;
        self.kv_ready.push_back(id, requests);
    }

    /// Removes and returns the first request whose KV has arrived.
    pub(super) fn pop_kv_ready(&mut self, requests: &mut RequestTable) -> Option<RequestId> {
        self.kv_ready.pop(requests)
    }

    /// Whether a request that waits without KV gets its pages between passes.
    fn is_destination(&self, id: RequestId, requests: &RequestTable) -> bool {
        let request = &requests[id];
        self.reservations == Reservations::BetweenSteps
            && request.kv_role == KvRole::Destination
            && request.status == RequestStatus::Waiting
    }
}
