//! Ends of requests: refusals, aborts, and the removal from all tables.

use vcr_core::tokens::TokenRefusal;
use vcr_wire::{FinishReason, RequestError};

use crate::error::LiveError;
use crate::faults::injector::InjectorEvent;
use crate::requests::{LiveRequest, slot_of};
use crate::serving::Serving;

pub(crate) struct Refusal {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) retryable: bool,
}

impl Refusal {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: "validation_error", message: message.into(), retryable: false }
    }
}

impl Serving {
    /// Refuses a request that the engine does not know.
    pub(crate) fn refuse(&mut self, client: u32, id: &str, refusal: &Refusal, now_ns: u64) -> Result<(), LiveError> {
        self.counters.refused += 1;
        tracing::warn!(rank = self.context.rank, request = id, "refused: {}", refusal.message);
        let error = RequestError {
            code: refusal.code.to_owned(),
            message: refusal.message.clone(),
            retryable: refusal.retryable,
        };
        self.finish_unknown(client, id, FinishReason::Error, Some(&error), now_ns)
    }

    /// Removes requests that the token source refused from the engine, before the step can give them tokens.
    pub(super) fn drop_refused(&mut self) -> Vec<(LiveRequest, TokenRefusal)> {
        let mut refused = Vec::new();
        for refusal in self.tokens.take_refusals() {
            let found = self.requests.iter().find(|request| slot_of(request.tag) == refusal.slot as usize);
            let tag = found.map(|request| request.tag);
            let dropped = tag.and_then(|tag| self.drop_request(tag, FinishReason::Error));
            refused.extend(dropped.map(|request| (request, refusal)));
        }
        refused
    }

    /// Sends the ends of refused requests, with the reason.
    pub(super) fn send_refusals(
        &mut self,
        refused: Vec<(LiveRequest, TokenRefusal)>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        for (request, refusal) in refused {
            let TokenRefusal { source, reason, .. } = refusal;
            self.counters.refused += 1;
            self.egress.set_owes_stats(true);
            tracing::warn!(
                rank = self.context.rank,
                request = &*request.id,
                "refused by the token source `{source}`: {reason}"
            );
            let error = RequestError { code: "validation_error".to_owned(), message: reason, retryable: false };
            self.egress.outputs.send_finish(
                request.client,
                &[&request.id],
                FinishReason::Error,
                Some(&error),
                now_ns,
            )?;
        }
        Ok(())
    }

    /// Ends a request that the engine does not know.
    pub(crate) fn finish_unknown(
        &mut self,
        client: u32,
        id: &str,
        reason: FinishReason,
        error: Option<&RequestError>,
        now_ns: u64,
    ) -> Result<(), LiveError> {
        self.counters.finished[reason as usize] += 1;
        Ok(self.egress.outputs.send_finish(client, &[id], reason, error, now_ns)?)
    }

    /// Aborts a request, without a message, because its frontend knows.
    pub(crate) fn abort_tag(&mut self, tag: u64) {
        if self.drop_request(tag, FinishReason::Abort).is_some() {
            self.egress.set_owes_stats(true);
        }
    }

    pub(crate) fn abort_all(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let mut aborted: Vec<u64> = self.player.tags().collect();
        self.stepper.abort_all(|tag| aborted.push(tag));
        let mut by_client: Vec<(u32, Vec<Box<str>>)> = Vec::new();
        for tag in aborted {
            let Some(request) = self.forget(tag, FinishReason::Abort) else { continue };
            match by_client.iter_mut().find(|(client, _)| *client == request.client) {
                Some((_, ids)) => ids.push(request.id),
                None => by_client.push((request.client, vec![request.id])),
            }
        }
        for (client, ids) in by_client {
            let ids: Vec<&str> = ids.iter().map(|id| &**id).collect();
            self.egress.outputs.send_finish(client, &ids, FinishReason::Abort, None, now_ns)?;
        }
        Ok(())
    }

    /// Aborts a finished prompt whose answer waits for its pages: no decode engine will ask for them. Returns
    /// `false` if no such prompt has this ID.
    pub(crate) fn abort_late(&mut self, id: &str) -> bool {
        let Some(answer) = self.transfers.abort_late(id) else { return false };
        self.stepper.release_held_kv(answer.finished.core);
        self.snapshot.mark_stale();
        true
    }

    /// Aborts all finished prompts whose answers wait for pages, and notifies their frontends.
    pub(crate) fn abort_all_late(&mut self, now_ns: u64) -> Result<(), LiveError> {
        for id in self.transfers.late_answers().names() {
            let Some(answer) = self.transfers.abort_late(&id) else { continue };
            tracing::warn!(rank = self.context.rank, request = &*id, "aborted: its KV is not written yet");
            self.stepper.release_held_kv(answer.finished.core);
            self.egress.outputs.send_finish(answer.channel, &[&id], FinishReason::Abort, None, now_ns)?;
        }
        Ok(())
    }

    /// Forgets a request, and aborts it in the core if the core still has it.
    pub(super) fn drop_request(&mut self, tag: u64, reason: FinishReason) -> Option<LiveRequest> {
        let request = self.forget(tag, reason)?;
        if let Some(core) = request.core {
            self.stepper.abort(core, tag);
        }
        Some(request)
    }

    /// Removes a request that has ended from all tables.
    pub(super) fn forget(&mut self, tag: u64, reason: FinishReason) -> Option<LiveRequest> {
        if self.egress.has_kv_events() {
            // The names of the request's blocks are known only until the request is forgotten.
            self.gather_cache_events();
            self.stepper.forget_events_of(tag);
            self.egress.forget_request(tag);
        }
        let request = self.requests.remove(tag)?;
        if let Some(extras) = &request.extras {
            if extras.meeting.is_some() {
                self.transfers.leave_room(tag);
            }
            if let Some(room) = &extras.room {
                self.transfers.close_room(room);
            }
            if extras.meeting.is_some() || extras.remote.is_some() {
                self.transfers.cancel(tag);
            }
            if let Some(remote) = &extras.remote {
                self.release_remote(remote);
            }
        }
        self.tokens.end(tag);
        self.player.remove(tag);
        self.counters.finished[reason as usize] += 1;
        if let (Some(handle), Some(routes)) = (request.handle, &mut self.routes) {
            let origin = self.egress.outputs.origin_of(request.client);
            let has_failed = matches!(reason, FinishReason::Abort | FinishReason::Error);
            routes.end(origin, handle, &request.id, request.output_tokens, has_failed);
        }
        self.injector.record(|| InjectorEvent::Ended { slot: slot_of(tag) as u32 });
        if self.context.config.stats.log_requests {
            let (id, output_tokens) = (&*request.id, request.output_tokens);
            tracing::info!(rank = self.context.rank, request = id, output_tokens, ?reason, "ended");
        }
        Some(request)
    }
}
