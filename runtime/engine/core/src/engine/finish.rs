//! Requests that leave: ended, aborted, or all at once.

use crate::engine::Engine;
use crate::request::{Flags, KvRole, RequestId, RequestStatus};

impl Engine {
    /// Ends a request early and frees its resources. Its outputs of a step in flight are dropped.
    /// If it waits for a transfer, the driver must no longer report that transfer. The caller guarantees that
    /// `id` has not ended.
    pub fn abort(&mut self, id: RequestId) {
        if self.kv_loads.offloads() && self.requests[id].status != RequestStatus::Finished {
            let request = &mut self.requests[id];
            self.kv_loads.end_offloading(request, request.num_computed_tokens, self.config.block_size());
        }
        match self.requests[id].status {
            RequestStatus::Waiting | RequestStatus::Preempted | RequestStatus::RemoteKvReady => {
                self.queues.leave(id, &mut self.requests);
            }
            RequestStatus::WaitingForGrammar => {
                self.forget_grammar(id);
                self.queues.leave(id, &mut self.requests);
            }
            RequestStatus::WaitingForInput => self.leave_waiting_for_input(id),
            RequestStatus::WaitingForRemoteKv => {
                self.queues.end_load();
                self.kv_loads.forget_load(id);
            }
            RequestStatus::Running => {
                self.dissolve_steady_decode();
                self.running.retain(|&other| other != id);
            }
            RequestStatus::HoldingKv => {}
            RequestStatus::Finished => return,
        }
        self.close_session(id);
        self.queues.set_deferred(id, false, &mut self.requests);
        self.queues.forget_adapter_waits();
        self.prefills.subtract(self.requests[id].outstanding_prefill_tokens());
        if self.requests[id].status != RequestStatus::HoldingKv {
            self.note_ended(id);
            self.turns.note_finished();
            self.encoder_inputs.forget(id);
        }
        self.requests[id].flags.set(Flags::IN_FLIGHT_PREFILL, false);
        if self.kv_loads.has_connector() && self.requests[id].status != RequestStatus::HoldingKv {
            self.kv_cache.trim_ended_groups(id, &self.requests[id]);
        }
        // With a connector, workers may still be writing into the request's blocks.
        let loads = &self.kv_loads;
        let is_written = || loads.has_connector() || loads.offloads() && loads.is_loading_offloaded(&self.requests[id]);
        if self.requests[id].status == RequestStatus::WaitingForRemoteKv && is_written() {
            self.forget_pace(id);
            self.end_reservation(id);
            self.requests[id].status = RequestStatus::HoldingKv;
        } else {
            self.drop_request(id);
        }
    }

    /// Aborts every unfinished request in the order of submission. Calls `aborted` with each tag in that
    /// order. KV that is held for a transfer stays.
    pub fn abort_all(&mut self, mut aborted: impl FnMut(u64)) {
        let of_request = |id: RequestId| {
            let request = &self.requests[id];
            (request.status != RequestStatus::HoldingKv).then_some((request.sequence, id))
        };
        let mut unfinished: Vec<(u64, RequestId)> = self.requests.live_ids().filter_map(of_request).collect();
        unfinished.sort_unstable();
        for (_, id) in unfinished {
            aborted(self.requests[id].tag);
            self.abort(id);
        }
    }

    /// Ends a request that has already been removed from all queues.
    pub(super) fn finish(&mut self, id: RequestId) {
        self.close_session(id);
        self.queues.set_deferred(id, false, &mut self.requests);
        self.queues.forget_adapter_waits();
        self.note_ended(id);
        self.turns.note_finished();
        self.encoder_inputs.forget(id);
        self.end_reservation(id);
        if self.kv_loads.offloads() {
            // The KV of the last token is not computed.
            let request = &mut self.requests[id];
            let computed_tokens = request.prompt_tokens.max(request.num_tokens - 1);
            self.kv_loads.end_offloading(request, computed_tokens, self.config.block_size());
        }
        self.requests[id].flags.set(Flags::IN_FLIGHT_PREFILL, false);
        // A request that ends while it is preempted has no KV for a connector.
        let has_kv = !self.kv_loads.has_connector() || !self.kv_cache.first_table(id, &self.requests[id]).is_empty();
        let is_held = self.requests[id].kv_role == KvRole::Source && has_kv;
        if is_held || self.kv_loads.has_connector() {
            self.kv_cache.trim_ended_groups(id, &self.requests[id]);
        }
        if is_held {
            self.forget_pace(id);
            self.requests[id].status = RequestStatus::HoldingKv;
        } else {
            self.drop_request(id);
        }
    }

    pub(super) fn drop_request(&mut self, id: RequestId) {
        self.forget_pace(id);
        self.end_reservation(id);
        self.release_blocks(id);
        self.requests.retire(id, self.stats.steps);
        self.requests.recycle(self.steps.applied());
    }
}
