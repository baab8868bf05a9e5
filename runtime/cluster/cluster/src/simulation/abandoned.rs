//! Prompts whose clients cancelled before a decode engine had their KV.
//!
//! Routers may let the computation of such a prompt continue. The prefill engine then holds the KV until a decode
//! engine has read or declined it, or until a timeout (vLLM's `VLLM_NIXL_ABORT_REQUEST_TIMEOUT`). A transfer in
//! progress continues. Both engines hold their blocks until its end, because vLLM does not reuse blocks that are
//! being written.

use vcr_core::RequestId;
use vcr_core::route::EndedRequest;

use super::Simulation;
use crate::config::{PoolRole, PrefillCancellation};
use crate::disaggregation::{HeldAt, Orphan, TransferKey};
use crate::event::Event;
use crate::in_flight::Stage;
use crate::ledger::record::{GiveUp, Outcome};
use crate::observe::Observer;

impl<O: Observer> Simulation<'_, O> {
    /// Lets the computation of a prompt continue although its client cancelled, if routers do not cancel prefills.
    /// Returns whether it continues.
    pub(super) fn compute_for_nobody(&mut self, tag: u64, reason: GiveUp) -> bool {
        if !matches!(self.handoffs.cancellation(), PrefillCancellation::Never { .. }) {
            return false;
        }
        let live = self.in_flight.get_mut(tag);
        let Stage::Prefill { worker, .. } = live.stage else { return false };
        if self.fleet.worker(worker).role() != PoolRole::Prefill {
            return false;
        }
        let now_ns = self.clock.now_ns();
        let client = live.leave(reason, now_ns);
        if self.facts.is_served {
            return true;
        }
        let outcome = Outcome::GivenUp(reason);
        let Some(client) = self.retry(tag, client, outcome) else { return true };
        let mut seen = self.ledger.record(tag).clone();
        seen.outcome = outcome;
        if self.traffic.ended(tag, &seen, client.follow_up, now_ns, &mut self.events) {
            self.begin_measuring();
        }
        true
    }

    /// Handles the end of an abandoned prompt's computation. No engine will fetch its KV.
    pub(super) fn end_abandoned_prefill(&mut self, tag: u64, source: (u32, RequestId)) {
        self.hold_in_vain(tag, source);
        self.ledger.waste_all(tag, 0);
        self.end_abandoned(tag);
    }

    /// Ends a request whose client cancelled earlier.
    pub(super) fn end_abandoned(&mut self, tag: u64) {
        let live = self.in_flight.remove(tag);
        let Some((reason, left_ns)) = live.abandoned else { return };
        self.mark_scheduled(&[tag]);
        let now_ns = self.clock.now_ns();
        let ended = EndedRequest { id: tag, worker: 0, output_tokens: 0, failed: true, ttft_ns: None };
        self.routing.ended(now_ns, live.routed, ended);
        self.ledger.end_abandoned(tag, Outcome::GivenUp(reason), left_ns, now_ns);
        let record = self.ledger.record(tag);
        if self.facts.config.workloads[record.workload as usize].slo_of(record.class).is_some() {
            self.ledger.count_slo(false);
        }
        self.observation.ended(tag, self.ledger.record(tag));
    }

    /// Keeps the KV of a computed prompt after its client cancelled, if connectors hold it. Returns whether the KV
    /// stays. A decode engine that has not begun to read the KV declines it, and then it is freed at once.
    pub(super) fn leave_kv(&mut self, tag: u64) -> bool {
        if self.handoffs.cancellation().hold_ns().is_none() {
            return false;
        }
        let record = self.ledger.record(tag);
        let is_moving = record.detail.transfer_start_ns.is_some() && record.transfer_end_ns.is_none();
        let live = self.in_flight.get_mut(tag);
        let Some(source) = live.source else { return false };
        match live.stage {
            // No decode engine knows of the request.
            Stage::Waiting { .. } => {
                live.source = None;
                self.hold_in_vain(tag, source);
            }
            Stage::Decode { worker, id } if is_moving => {
                let key = TransferKey { tag, attempt: live.attempt };
                live.source = None;
                // Both workers keep the request's blocks until the transfer ends.
                live.stage = Stage::Refused;
                let orphan = Orphan { source: self.held_at(source), destination: self.held_at((worker, id)) };
                self.handoffs.orphan(key, orphan);
            }
            _ => return false,
        }
        true
    }

    fn held_at(&self, (worker, id): (u32, RequestId)) -> HeldAt {
        HeldAt { worker, incarnation: self.fleet.worker(worker).incarnation(), id }
    }

    /// Frees the blocks at both ends of a transfer whose client has cancelled.
    pub(super) fn end_orphaned_transfer(&mut self, key: TransferKey) {
        let Some(Orphan { source, destination }) = self.handoffs.take_orphan(key) else { return };
        self.expire_held_kv(source.worker, source.incarnation, source.id);
        let HeldAt { worker, incarnation, id } = destination;
        if self.fleet.worker(worker).incarnation() == incarnation {
            self.dissolve_steady_decode(worker);
            self.fleet.worker_mut(worker).abort(key.tag, id);
            self.observation.aborted(worker, key.tag);
            self.fleet.note_change(worker);
        }
    }

    /// Makes a prefill worker hold KV that no engine will fetch, until its timeout.
    fn hold_in_vain(&mut self, tag: u64, source: (u32, RequestId)) {
        self.ledger.abandon(tag);
        let hold_ns = self.handoffs.cancellation().hold_ns().unwrap_or(0);
        let computed_ns = self.ledger.record(tag).prefill_end_ns.unwrap_or(self.clock.now_ns());
        let HeldAt { worker, incarnation, id } = self.held_at(source);
        let at_ns = computed_ns.saturating_add(hold_ns).max(self.clock.now_ns());
        self.events.push(at_ns, Event::HeldKvExpires { worker, incarnation, id });
    }

    pub(super) fn expire_held_kv(&mut self, worker: u32, incarnation: u32, id: RequestId) {
        if self.fleet.worker(worker).incarnation() == incarnation {
            self.fleet.worker_mut(worker).release_held_kv(id);
            self.fleet.note_change(worker);
        }
    }
}
