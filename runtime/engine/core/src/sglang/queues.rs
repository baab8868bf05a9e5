//! Requests that wait for their turn, for pages or for KV from elsewhere, and partly computed prompts.

use crate::compat::Reservations;
use crate::config::Policy;
use crate::kv::hash::BlockHash;
use crate::request::queue::WaitingQueue;
use crate::request::table::RequestTable;
use crate::request::{KvRole, RequestId, RequestStatus};
use crate::sglang::config::SglangConfig;

/// A waiting request, with the values that decide its place in the order by longest cached
/// prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Whether the request is moved behind all others, because another request with the same prefix goes first.
    is_deferred: bool,
    longest_first: std::cmp::Reverse<u32>,
    place: u32,
    id: RequestId,
}

#[derive(Debug)]
pub(super) struct WaitingQueues {
    waiting: WaitingQueue,
    /// Partly computed prompts. They count as waiting, and go before all others unless the policy
    /// reorders them.
    begun: Vec<RequestId>,
    /// Requests that wait for pages for transferred KV, if pages are allocated between passes.
    destinations: WaitingQueue,
    /// Whether the latest attempt to allocate pages for the first of `destinations` failed.
    is_destination_blocked: bool,
    kv_ready: WaitingQueue,
    num_loading: usize,
    reservations: Reservations,
    candidates: Vec<Candidate>,
    /// Scratch buffer for ordering: hashes of the beginnings of prompts.
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

    /// Number of requests in the waiting queue, including partly computed prompts.
    #[inline]
    pub(super) fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn num_not_begun(&self) -> usize {
        let num_queued = self.waiting.len() - self.begun.len();
        num_queued + self.kv_ready.len() + self.destinations.len() + self.num_loading
    }

    #[inline]
    pub(super) fn num_kv_ready(&self) -> usize {
        self.kv_ready.len()
    }

    #[inline]
    pub(super) fn num_loading(&self) -> usize {
        self.num_loading
    }

    #[inline]
    pub(super) fn begun(&self) -> &[RequestId] {
        &self.begun
    }

    pub(super) fn enter(&mut self, id: RequestId, requests: &mut RequestTable) {
        let queue = if self.is_destination(id, requests) { &mut self.destinations } else { &mut self.waiting };
        queue.push_back(id, requests);
    }

    /// Removes a request that ends from its queue. Returns false if the request runs.
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
            // In SGLang's engine, no request waits for input or for a grammar.
            RequestStatus::HoldingKv
            | RequestStatus::WaitingForInput
            | RequestStatus::WaitingForGrammar
            | RequestStatus::Finished => {}
        }
        true
    }

    pub(super) fn pop(&mut self, requests: &mut RequestTable) -> Option<RequestId> {
        self.waiting.pop(requests)
    }

    pub(super) fn push_front(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.waiting.push_front(id, requests);
    }

    pub(super) fn push_back(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.waiting.push_back(id, requests);
    }

    pub(super) fn move_to_front(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.waiting.leave(id, requests);
        self.waiting.push_front(id, requests);
    }

    /// Records that part of a request's prompt has been computed.
    pub(super) fn begin(&mut self, id: RequestId) {
        self.begun.push(id);
    }

    pub(super) fn end_begun(&mut self, id: RequestId) {
        self.begun.retain(|&other| other != id);
    }

    /// Removes and returns the last request with a partly computed prompt, but not `kept`.
    pub(super) fn pop_last_begun(&mut self, kept: RequestId, requests: &mut RequestTable) -> RequestId {
        let last = self.begun.iter().rposition(|&id| id != kept).expect("another has been begun");
        let id = self.begun.remove(last);
        self.waiting.leave(id, requests);
        id
    }

    /// Orders the waiting requests by the lengths of their cached prefixes. A request with at most
    /// `beginning_tokens` cached prompt tokens is moved behind another request with the same first tokens.
    /// `cached_pages` returns a request's number of cached pages.
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

    /// Removes and returns the request that has waited longest for pages.
    pub(super) fn pop_destination(&mut self, requests: &mut RequestTable) -> Option<RequestId> {
        self.destinations.pop(requests)
    }

    /// Puts back the request that has waited longest for pages, after an allocation failed.
    pub(super) fn return_destination(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.destinations.push_front(id, requests);
    }

    /// Sets whether the latest allocation for the first of `destinations` failed.
    pub(super) fn set_destination_blocked(&mut self, is_blocked: bool) {
        self.is_destination_blocked = is_blocked;
    }

    pub(super) fn is_destination_blocked(&self) -> bool {
        self.is_destination_blocked
    }

    pub(super) fn has_destinations(&self) -> bool {
        self.destinations.len() > 0
    }

    pub(super) fn begin_load(&mut self) {
        self.num_loading += 1;
    }

    /// Queues a request whose KV has arrived.
    pub(super) fn end_load(&mut self, id: RequestId, requests: &mut RequestTable) {
        self.num_loading -= 1;
        self.kv_ready.push_back(id, requests);
    }

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
