//! Requests that leave, and KV that comes from elsewhere.

use crate::compat::Reservations;
use crate::request::{RequestId, RequestStatus};
use crate::sglang::config::PassOrder;
use crate::sglang::engine::{Hold, SglangEngine};

impl SglangEngine {
    /// Ends a request early and frees what it holds. One that has ended is left
    /// alone.
    pub(super) fn abort_request(&mut self, id: RequestId) {
        match self.requests[id].status {
            RequestStatus::Waiting if self.waits_apart(id) => self.destinations.leave(id, &mut self.requests),
            RequestStatus::Waiting | RequestStatus::Preempted => self.waiting.leave(id, &mut self.requests),
            RequestStatus::RemoteKvReady => self.kv_ready.leave(id, &mut self.requests),
            RequestStatus::WaitingForRemoteKv => self.num_loading -= 1,
            RequestStatus::Running if self.begun.contains(&id) => {
                self.begun.retain(|&other| other != id);
                self.waiting.leave(id, &mut self.requests);
            }
            RequestStatus::Running => self.running.retain(|&other| other != id),
            RequestStatus::HoldingKv if self.released.contains(&id) => return,
            // No request of SGLang's waits for input.
            RequestStatus::HoldingKv | RequestStatus::WaitingForInput => {}
            RequestStatus::Finished => return,
        }
        self.outstanding_prefill_tokens -= u64::from(self.requests[id].outstanding_prefill_tokens());
        self.drop_request(id);
    }

    /// Applies the end of a request that has left all lists. The KV of that many of its
    /// tokens may be reused, and is held if another engine is to have it.
    pub(super) fn finish(&mut self, id: RequestId, kept_tokens: u32) {
        self.end_reserve(id);
        if self.is_source(id) && self.stores_sources_late() {
            self.holds[id.index()].late_tokens = kept_tokens;
            self.requests[id].status = RequestStatus::HoldingKv;
            return;
        }
        let filled_at = self.holds[id.index()].filled_at;
        let fills_now = filled_at == 0 || kept_tokens.is_multiple_of(self.config.page_size);
        let used_at = if fills_now { self.radix.tick(1) } else { filled_at };
        self.store(id, kept_tokens, used_at);
        if self.is_source(id) {
            self.requests[id].status = RequestStatus::HoldingKv;
        } else {
            self.drop_request(id);
        }
    }

    /// Whether KV that another engine is to have is offered to the cache when that has it, not when
    /// it is computed. Source: `aisimulate-core` of Dynamo 1.6.
    fn stores_sources_late(&self) -> bool {
        self.config.reservations == Reservations::BetweenSteps && self.config.pass_order == PassOrder::PrefillFirst
    }

    /// Frees the KV that a request holds for another engine: at the end of a pass in flight.
    pub(super) fn release_source(&mut self, id: RequestId) {
        if self.step_in_flight && self.stores_sources_late() {
            self.released.push(id);
            return;
        }
        let late_tokens = self.holds[id.index()].late_tokens;
        if late_tokens > 0 {
            let now = self.radix.tick(1);
            self.store(id, late_tokens, now);
        }
        self.drop_request(id);
    }

    pub(super) fn drop_request(&mut self, id: RequestId) {
        self.end_reserve(id);
        self.release_pages(id);
        self.requests.retire(id, self.stats.steps);
        self.requests.recycle(self.applied_steps);
    }

    /// Unlocks a request's pages in the tree and frees the others.
    pub(super) fn release_pages(&mut self, id: RequestId) {
        let hold = std::mem::replace(&mut self.holds[id.index()], Hold::NONE);
        self.radix.unlock(hold.node);
        self.num_free_pages += hold.own_pages;
    }

    /// The KV of a request's prompt has arrived: others may reuse it, and the
    /// request decodes from the next pass on.
    pub(super) fn end_load(&mut self, id: RequestId) {
        let request = &mut self.requests[id];
        assert_eq!(request.status, RequestStatus::WaitingForRemoteKv, "no transfer was pending");
        request.status = RequestStatus::RemoteKvReady;
        let prompt_tokens = request.prompt_tokens;
        // The last token is computed again, here, to get logits to sample from.
        request.num_computed_tokens = prompt_tokens - 1;
        self.num_loading -= 1;
        let now = self.radix.tick(1);
        self.store(id, prompt_tokens, now);
        self.kv_ready.push_back(id, &mut self.requests);
    }
}
