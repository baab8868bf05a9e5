//! Requests that leave, and KV that comes from elsewhere.

use crate::compat::Reservations;
use crate::request::{RequestId, RequestStatus};
use crate::sglang::config::PassOrder;
use crate::sglang::engine::SglangEngine;

impl SglangEngine {
    /// Ends a request early and frees what it holds. One that has ended is left
    /// alone.
    pub(super) fn abort_request(&mut self, id: RequestId) {
        match self.requests[id].status {
            RequestStatus::HoldingKv if self.released.contains(&id) => return,
            RequestStatus::Finished => return,
            _ => {}
        }
        if !self.queues.leave(id, &mut self.requests) {
            self.running.retain(|&other| other != id);
        }
        self.outstanding_prefill_tokens -= u64::from(self.requests[id].outstanding_prefill_tokens());
        self.drop_request(id);
    }

    /// Applies the end of a request that has left all lists. The KV of that many of its
    /// tokens may be reused, and is held if another engine is to have it.
    pub(super) fn finish(&mut self, id: RequestId, kept_tokens: u32) {
        self.reserve.end(&mut self.requests[id]);
        if self.is_source(id) && self.stores_sources_late() {
            self.pages.store_late(id, kept_tokens);
            self.requests[id].status = RequestStatus::HoldingKv;
            return;
        }
        self.pages.store_ended(id, &self.requests[id], kept_tokens);
        if self.is_source(id) {
            self.requests[id].status = RequestStatus::HoldingKv;
        } else {
            self.drop_request(id);
        }
    }

    /// Whether KV that another engine is to have is offered to the cache when that has it, not when
    /// it is computed. Source: `aisimulate-core` of Dynamo 1.6.
    fn stores_sources_late(&self) -> bool {
        self.config.reservations() == Reservations::BetweenSteps && self.config.pass_order() == PassOrder::PrefillFirst
    }

    /// Frees the KV that a request holds for another engine: at the end of a pass in flight.
    pub(super) fn release_source(&mut self, id: RequestId) {
        if self.step_in_flight && self.stores_sources_late() {
            self.released.push(id);
            return;
        }
        self.pages.store_what_is_late(id, &self.requests[id]);
        self.drop_request(id);
    }

    pub(super) fn drop_request(&mut self, id: RequestId) {
        self.reserve.end(&mut self.requests[id]);
        self.pages.release(id);
        self.requests.retire(id, self.stats.steps);
        self.requests.recycle(self.applied_steps);
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
        self.pages.store_now(id, request, prompt_tokens);
        self.queues.end_load(id, &mut self.requests);
    }
}
