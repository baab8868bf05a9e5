//! KV transfers to and from this engine.

use vcr_core::plan::RemoteLoad;
use vcr_transfer::{ErrorKind, Moved, TransferError};
use vcr_wire::{FinishReason, RequestError};

use crate::config::Placement;
use crate::error::LiveError;
use crate::kv_transfer::finished::LateAnswer;
use crate::kv_transfer::loads::{LoadEnd, LoadRequest};
use crate::kv_transfer::meetings::MeetingResult;
use crate::kv_transfer::mover::LoadPages;
use crate::kv_transfer::pages::missing_pages;
use crate::kv_transfer::settings::LoadFailurePolicy;
use crate::requests::RemoteKv;
use crate::serving::Serving;

/// Error code of a request whose KV has not arrived.
const LOAD_FAILED: &str = "kv_load_failed";

impl Serving {
    /// Announces the blocks that the last steps compute for decode engines.
    pub(super) fn prepare_blocks(&mut self) {
        for part in self.transfers.take_computing() {
            let Some(request) = self.requests.get(part.tag) else { continue };
            let Some(extras) = request.extras.as_deref().filter(|extras| extras.is_prefill_only) else { continue };
            if let (Some(core), Some(engine)) = (request.core, self.stepper.engine().as_vllm()) {
                let blocks = part.pages(engine, core, &extras.contents);
                self.transfers.prepare(blocks);
            }
        }
    }

    /// Starts the transfers whose blocks the last steps have reserved.
    pub(super) fn start_loads(&mut self, now_ns: u64) {
        for load in self.transfers.take_announced() {
            self.egress.stats().found_elsewhere(load.missing_tokens);
            let extras = self.requests.get(load.tag).and_then(|request| request.extras.as_deref());
            match extras.and_then(|extras| extras.meeting.clone()) {
                Some(meeting) => self.transfers.join_room(load, meeting, now_ns),
                None => self.start_load(&load, now_ns),
            }
        }
    }

    fn start_load(&mut self, load: &RemoteLoad, now_ns: u64) {
        let fault = self.faults.kv_transfer(self.context.since_start_ns(now_ns));
        let pages = match self.requests.get(load.tag).and_then(|request| request.extras.as_deref()) {
            Some(extras) if self.transfers.moves_bytes() => {
                let engine = self.stepper.engine().as_vllm();
                let pages_of = |(remote, engine)| {
                    let groups = missing_pages(engine, load, &extras.contents, remote)?;
                    Ok(LoadPages { remote, groups, corrupts: false })
                };
                extras.remote.as_ref().zip(engine).map(pages_of).transpose()
            }
            _ => Ok(None),
        };
        let request = LoadRequest { tag: load.tag, moved_tokens: load.moved_tokens, fault, pages };
        self.transfers.start_load(request, self.stepper.time_scale(), now_ns);
    }

    /// Starts the transfer of a request that has learned in its room where its KV is, or ends the request with the
    /// reason.
    fn start_met(&mut self, met: MeetingResult, now_ns: u64) {
        let MeetingResult { load, outcome } = met;
        let Some(extras) = self.requests.get_mut(load.tag).and_then(|request| request.extras.as_deref_mut()) else {
            return;
        };
        let Some(meeting) = extras.meeting.take() else { return };
        let error = |kind, what: String| Err(TransferError::new(kind, format!("KV rendezvous: {meeting}: {what}")));
        let described = match outcome {
            Ok(Some(description)) if !self.transfers.allowed_peers().contains(&description.peer.host) => {
                let host = description.peer.host;
                error(
                    ErrorKind::NotAllowed,
                    format!("its KV is at `{host}`, which is not an allowed KV peer (see --allow-remote-kv)"),
                )
            }
            Ok(None) if self.transfers.moves_bytes() => error(
                ErrorKind::Mismatch,
                "the prefill worker does not report the address of its KV; every --kv-transfer but none needs it"
                    .to_owned(),
            ),
            other => other,
        };
        match described {
            Ok(description) => {
                extras.remote = description.map(RemoteKv::from);
                self.start_load(&load, now_ns);
            }
            Err(error) => {
                let pages = Err(error);
                let request = LoadRequest { tag: load.tag, moved_tokens: 0, fault: None, pages };
                self.transfers.start_load(request, self.stepper.time_scale(), now_ns);
            }
        }
    }

    /// Finishes transfers to this engine, and frees blocks that other engines have fetched or whose lease has expired.
    pub(crate) fn finish_transfers(&mut self, now_ns: u64) -> Result<(), LiveError> {
        let (released, is_news) = self.transfers.receive(now_ns)?;
        if is_news {
            self.snapshot.mark_stale();
        }
        let written = self.transfers.late_answers().take_written();
        if !written.is_empty() {
            self.send_late(written, now_ns)?;
        }
        for met in self.transfers.take_met() {
            self.start_met(met, now_ns);
        }
        while let Some(end) = self.transfers.next_end(now_ns) {
            self.snapshot.mark_stale();
            self.finish_load(end, now_ns)?;
        }
        for released in released {
            self.stepper.release_held_kv(released.core);
            self.counters.leases_expired += u64::from(released.is_expired);
            if released.is_expired {
                self.egress.stats().transfers().num_kv_expired_reqs.push(1);
                // An engine without work makes no step that could carry this statistic.
                let is_owed = self.egress.stats().reports_transfers();
                self.egress.set_owes_stats(is_owed || self.egress.owes_stats());
                tracing::warn!(
                    rank = self.context.rank,
                    "no decode engine fetched a prompt's KV in time; its blocks are freed"
                );
            }
        }
        let waiting = self.requests.iter().filter_map(|request| request.extras.as_ref()?.remote.as_ref());
        self.transfers.send_heartbeats(waiting, now_ns);
        Ok(())
    }

    /// Sends the answers of finished prompts whose pages are written now.
    fn send_late(&mut self, answers: Vec<LateAnswer>, now_ns: u64) -> Result<(), LiveError> {
        for LateAnswer { finished, mut message, channel, is_first } in answers {
            message.kv_transfer_params = self.transfers.hold_or_log(&finished, now_ns);
            if message.kv_transfer_params.is_none() {
                self.stepper.release_held_kv(finished.core);
            }
            let reports_end = self.egress.outputs.has_coordinator();
            let mut gather = self.egress.outputs.gather(channel, is_first);
            if reports_end {
                gather.finished(&finished.id);
            }
            gather.output(message);
        }
        let since_start_ns = self.context.since_start_ns(now_ns);
        Ok(self.egress.outputs.send_step(None, now_ns, &mut self.faults, since_start_ns)?)
    }

    fn finish_load(&mut self, end: LoadEnd, now_ns: u64) -> Result<(), LiveError> {
        match &end {
            LoadEnd { failure: Some(_), .. } => self.egress.stats().transfers().num_failed_transfers.push(1),
            LoadEnd { moved: Some(moved), .. } => self.egress.stats().moved(moved),
            LoadEnd { .. } => {}
        }
        // If the request was aborted in the meantime, its blocks are free already.
        let Some(request) = self.requests.get_mut(end.tag) else { return Ok(()) };
        let Some(error) = end.failure else {
            let remote = request.extras.as_mut().and_then(|extras| extras.remote.take());
            if self.context.config.stats.log_requests
                && let (Some(moved), Some(remote)) = (&end.moved, &remote)
            {
                log_moved(self.context.rank, &request.id, remote, moved);
            }
            if let Some(placed) = &self.context.config.placements {
                placed(&request.id, Placement::Received(now_ns));
            }
            self.stepper.finish_load(request.core);
            if let Some(remote) = remote.filter(|_| !end.is_notified) {
                self.release_remote(&remote);
            }
            return Ok(());
        };
        let policy = self.context.config.transfer.load_failure;
        tracing::warn!(
            rank = self.context.rank,
            request = &*request.id,
            kind = %error.kind,
            policy = if policy == LoadFailurePolicy::Fail { "fail" } else { "recompute" },
            "KV did not arrive: {error}"
        );
        match policy {
            LoadFailurePolicy::Recompute => {
                request.external_tokens = 0;
                let remote = request.extras.as_mut().and_then(|extras| extras.remote.take());
                if let Some(core) = request.core {
                    self.stepper.fail_load(core);
                }
                self.counters.kv_loads_recomputed += 1;
                if let Some(remote) = remote {
                    self.release_remote(&remote);
                }
                Ok(())
            }
            LoadFailurePolicy::Fail => {
                let failure =
                    RequestError { code: LOAD_FAILED.to_owned(), message: error.to_string(), retryable: true };
                let Some(request) = self.drop_request(end.tag, FinishReason::Error) else { return Ok(()) };
                self.egress.set_owes_stats(true);
                let outputs = &mut self.egress.outputs;
                outputs.send_finish(request.client, &[&request.id], FinishReason::Error, Some(&failure), now_ns)?;
                Ok(())
            }
        }
    }

    /// Lets the prefill engine of a request free its blocks.
    pub(super) fn release_remote(&mut self, remote: &RemoteKv) {
        if let Err(error) = self.transfers.notify(remote) {
            self.egress.stats().transfers().num_failed_notifications.push(1);
            tracing::warn!(
                rank = self.context.rank,
                address = remote.address(),
                "the prefill engine cannot be notified and holds its blocks until their lease ends: {error}"
            );
        }
    }
}

fn log_moved(rank: u16, request: &str, remote: &RemoteKv, moved: &Moved) {
    let ms = |ns: u64| ns as f64 / 1e6;
    tracing::info!(
        rank,
        request,
        peer = %remote.peer,
        bytes = moved.bytes,
        pages = moved.pages,
        queue_ms = ms(moved.queue_ns),
        connect_ms = ms(moved.connect_ns),
        move_ms = ms(moved.move_ns),
        "KV arrived"
    );
}
