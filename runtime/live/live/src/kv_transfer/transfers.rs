//! KV transfers between prefill and decode engines.
//!
//! The parameters are those of vLLM's NIXL connector. The prefill engine holds a finished prompt's blocks until a
//! decode engine notifies it, or until their lease ends. The decode engine waits for the transfer: for a modelled
//! time, or for the bytes if a data plane moves them.

use std::collections::BTreeMap;

use vcr_core::RequestId;
use vcr_core::plan::{RemoteLoad, StepPlan};
use vcr_core::seed::derive;
use vcr_transfer::{
    Description, Held, LeaseTable, Meeting, Notice, NoticeEffect, Peer, RendezvousEvent, Room, Statistics,
};
use vcr_wire::{LinkError, NoticeBoard, Transport, Value};

use crate::config::TransferSettings;
use crate::context::Context;
use crate::kv_transfer::finished::{Finished, LateAnswer, LateAnswers};
use crate::kv_transfer::loads::{LoadEnd, LoadRequest, Loads};
use crate::kv_transfer::meetings::{MeetingCounts, MeetingResult, Meetings};
use crate::kv_transfer::mover::{HeldRequest, Mover, MoverEvent};
use crate::kv_transfer::pages::{ComputingPart, held_pages};
use crate::kv_transfer::params::HeldPrompt;
use crate::kv_transfer::peers::{AllowedPeers, PeerSockets};
use crate::kv_transfer::push::PushRegistration;
use crate::kv_transfer::settings::MeetingSettings;
use crate::requests::RemoteKv;

/// A prompt whose blocks are free again.
pub(crate) struct Released {
    pub(crate) core: RequestId,
    /// Whether the lease ended before a decode engine came.
    pub(crate) is_expired: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransferCounts {
    pub(crate) loads: u64,
    pub(crate) failures: u64,
    /// Notices for prompts that are not held.
    pub(crate) stray_notices: u64,
    pub(crate) meetings: MeetingCounts,
}

pub(crate) struct Transfers {
    settings: TransferSettings,
    rank: u16,
    engine_id: String,
    port: u16,
    transport: Transport,
    /// Notices of decode engines, once a prompt was held; a data plane receives its own notices.
    notices: Option<NoticeBoard>,
    allowed: AllowedPeers,
    peers: PeerSockets,
    mover: Option<Mover>,
    meetings: Option<Meetings>,
    leases: LeaseTable<HeldRequest>,
    loads: Loads,
    /// Transfers for which a step has reserved blocks and that are not started yet.
    announced: Vec<RemoteLoad>,
    /// Parts of prompts that steps compute and that are not announced yet.
    computing: Vec<ComputingPart>,
    next_heartbeat_ns: Option<u64>,
    stray_notices: u64,
    /// Kept to reuse their allocations.
    released: Vec<Released>,
    news: Vec<MoverEvent>,
    /// Requests that have left their rooms.
    met: Vec<MeetingResult>,
    late_answers: LateAnswers,
}

/// As in vLLM, a heartbeat is sent after each sixth of a lease and extends it by two thirds of its length.
const EXTENSION_THIRDS: u64 = 2;
const HEARTBEATS_PER_LEASE: u64 = 6;

/// The ID of an engine among its peers.
pub(crate) fn engine_name(settings: &TransferSettings, rank: u16, ranks: u16) -> String {
    if ranks > 1 { format!("{}_dp{rank}", settings.engine_id) } else { settings.engine_id.clone() }
}

impl Transfers {
    /// `peer_transport` is used only for connections to other engines.
    pub(crate) fn new(
        context: &Context,
        transport: Transport,
        peer_transport: Transport,
        (mover, meetings): (Option<Mover>, Option<Meetings>),
        now_ns: u64,
    ) -> Self {
        let (settings, rank) = (&context.config.transfer, context.rank);
        let seed = derive(context.config.seed, "live.transfers", rank.into());
        let next_heartbeat_ns = mover.as_ref().map(|_| now_ns.saturating_add(settings.lease_ns / HEARTBEATS_PER_LEASE));
        Self {
            settings: settings.clone(),
            rank,
            engine_id: engine_name(settings, rank, context.config.identity.num_ranks),
            port: mover.as_ref().map_or(settings.side_channel_port.wrapping_add(rank), Mover::port),
            transport,
            notices: None,
            allowed: AllowedPeers::new(&settings.side_channel_host, &settings.allowed_peers),
            peers: PeerSockets::new(peer_transport),
            leases: LeaseTable::new(settings.lease_ns, settings.lease_ns / 3 * EXTENSION_THIRDS),
            mover,
            meetings,
            loads: Loads::new(settings, rank, seed),
            announced: Vec::new(),
            computing: Vec::new(),
            next_heartbeat_ns,
            stray_notices: 0,
            released: Vec::new(),
            news: Vec::new(),
            met: Vec::new(),
            late_answers: LateAnswers::default(),
        }
    }

    pub(crate) fn allowed_peers(&self) -> &AllowedPeers {
        &self.allowed
    }

    /// Whether bytes are moved, so that the contents of blocks matter.
    pub(crate) fn moves_bytes(&self) -> bool {
        self.mover.is_some()
    }

    pub(crate) fn notices(&self) -> Option<&NoticeBoard> {
        self.notices.as_ref()
    }

    pub(crate) fn num_held(&self) -> usize {
        self.leases.len()
    }

    pub(crate) fn counts(&self) -> TransferCounts {
        let meetings = self.meetings.as_ref().map(Meetings::counts).unwrap_or_default();
        let (loads, failures) = (self.loads.started(), self.loads.failed());
        TransferCounts { loads, failures, stray_notices: self.stray_notices, meetings }
    }

    pub(crate) fn meeting_settings(&self) -> Option<&MeetingSettings> {
        self.settings.meetings.as_ref()
    }

    /// Opens a room for a request that has arrived and whose prompt is computed here.
    pub(crate) fn open_room(&mut self, room: &Room) {
        if let Some(meetings) = &mut self.meetings {
            meetings.open(room);
        }
    }

    /// Closes a room whose request has ended without a finished prompt.
    pub(crate) fn close_room(&mut self, room: &Room) {
        if let Some(meetings) = &mut self.meetings {
            meetings.close(room);
        }
    }

    /// Lets a request with reserved blocks wait in a room, until [`Transfers::take_met`] returns it.
    pub(crate) fn join_room(&mut self, load: RemoteLoad, meeting: Meeting, now_ns: u64) {
        if let Some(meetings) = &mut self.meetings {
            meetings.join(load, meeting, now_ns);
        }
    }

    /// Ends the wait of a request in its room.
    pub(crate) fn leave_room(&mut self, tag: u64) {
        if let Some(meetings) = &mut self.meetings {
            meetings.leave(tag);
        }
    }

    /// Requests that have left their rooms, as of the last [`Transfers::receive`].
    pub(crate) fn take_met(&mut self) -> Vec<MeetingResult> {
        std::mem::take(&mut self.met)
    }

    pub(crate) fn statistics(&self) -> Option<(&'static str, Statistics)> {
        self.mover.as_ref().map(Mover::statistics)
    }

    /// Records the parts of prompts that a step computes, if the plane prepares their blocks.
    pub(crate) fn note_scheduled(&mut self, plan: &StepPlan) {
        if self.mover.as_ref().is_some_and(Mover::prepares) {
            let parts = plan.scheduled.iter().filter(|entry| entry.is_prefill);
            self.computing.extend(parts.map(ComputingPart::of));
        }
    }

    /// Takes the parts of prompts that were recorded since the last call.
    pub(crate) fn take_computing(&mut self) -> Vec<ComputingPart> {
        std::mem::take(&mut self.computing)
    }

    /// Announces blocks of a prompt that is being computed and will be held.
    pub(crate) fn prepare(&mut self, blocks: Vec<Held>) {
        if let Some(mover) = &mut self.mover {
            mover.prepare(blocks);
        }
    }

    /// Records a transfer for which a step has reserved blocks; [`Transfers::start_load`] is to start it.
    pub(crate) fn announce(&mut self, load: RemoteLoad) {
        self.announced.push(load);
    }

    /// Takes the transfers that are to start.
    pub(crate) fn take_announced(&mut self) -> Vec<RemoteLoad> {
        std::mem::take(&mut self.announced)
    }

    pub(crate) fn start_load(&mut self, request: LoadRequest<'_>, time_scale: f64, now_ns: u64) {
        self.loads.start(request, self.mover.as_mut(), time_scale, now_ns);
    }

    /// Takes a transfer that has ended.
    pub(crate) fn next_end(&mut self, now_ns: u64) -> Option<LoadEnd> {
        self.loads.next_end(self.mover.as_ref(), now_ns)
    }

    /// The earliest known end of a transfer.
    pub(crate) fn next_load_ns(&self) -> Option<u64> {
        self.loads.next_end_ns()
    }

    /// Cancels the transfer of a request that has ended; its blocks will be reused.
    pub(crate) fn cancel(&mut self, tag: u64) {
        self.loads.cancel(tag, self.mover.as_mut());
    }

    /// Has the pages of a finished prompt written. Returns the mover's number of the write if it is not done at once.
    pub(crate) fn write(&mut self, finished: &Finished) -> Option<u64> {
        self.mover.as_mut()?.write(&held_pages(&finished.blocks, &finished.contents))
    }

    /// Keeps the answer to a prompt until the write with the number `id` is done.
    pub(crate) fn answer_later(&mut self, id: u64, answer: LateAnswer) {
        self.late_answers.insert(id, answer);
    }

    pub(crate) fn late_answers(&mut self) -> &mut LateAnswers {
        &mut self.late_answers
    }

    /// Drops the answer of a request that waits for pages; other requests may use the pages from now on.
    pub(crate) fn abort_late(&mut self, request: &str) -> Option<LateAnswer> {
        let (id, answer) = self.late_answers.remove(request)?;
        if let Some(mover) = &mut self.mover {
            mover.cancel_write(id);
        }
        if let Some(room) = &answer.finished.room {
            self.close_room(room);
        }
        Some(answer)
    }

    /// Holds the blocks of a finished prompt and listens for notices from now on. Returns the parameters for the
    /// decode engine.
    pub(crate) fn hold(&mut self, finished: &Finished, now_ns: u64) -> Result<Value, LinkError> {
        if self.notices.is_none() && self.mover.is_none() {
            let address = format!("tcp://{}:{}", self.settings.side_channel_host, self.port);
            self.notices = Some(NoticeBoard::bind(&self.transport, &address)?);
        }
        let mut blocks = Vec::new();
        if let Some(mover) = &mut self.mover {
            blocks = held_pages(&finished.blocks, &finished.contents);
            mover.hold(&finished.id, &blocks);
        }
        let held = HeldRequest { core: finished.core, blocks };
        if let Some(before) = self.leases.hold(&finished.id, held, now_ns) {
            // Only one request at a time has this ID, so nothing else frees the earlier prompt.
            self.released.push(Released { core: before.core, is_expired: true });
        }
        let (generation, is_pushed) =
            self.mover.as_ref().map_or((0, false), |mover| (mover.generation(), mover.settings().is_pushed));
        let prompt = HeldPrompt {
            id: &finished.id,
            engine_id: &self.engine_id,
            host: &self.settings.side_channel_host,
            port: self.port,
            blocks: &finished.blocks,
            num_tokens: finished.num_tokens,
            cached_tokens: finished.cached_tokens,
            tensor_parallel_size: finished.tensor_parallel_size,
            generation,
            is_pushed,
        };
        let params = prompt.params(finished.version);
        if let (Some(room), Some(meetings)) = (&finished.room, &mut self.meetings) {
            let peer = Peer {
                host: self.settings.side_channel_host.clone(),
                port: self.port,
                engine_id: self.engine_id.clone(),
                generation: Some(generation),
            };
            let blocks = finished.blocks.clone();
            meetings.complete(room.clone(), Description { peer, request: finished.id.to_string(), blocks, is_pushed });
        }
        Ok(params)
    }

    /// Like [`Transfers::hold`], but logs a failure and closes the prompt's room.
    pub(crate) fn hold_or_log(&mut self, finished: &Finished, now_ns: u64) -> Option<Value> {
        match self.hold(finished, now_ns) {
            Ok(params) => Some(params),
            Err(error) => {
                tracing::error!(
                    rank = self.rank,
                    request = &*finished.id,
                    "no decode engine can fetch this prompt (see --side-channel-port): {error}"
                );
                if let Some(room) = &finished.room {
                    self.close_room(room);
                }
                None
            }
        }
    }

    /// Notifies the prefill engine that its KV has been read or is no longer wanted.
    pub(crate) fn notify(&mut self, remote: &RemoteKv) -> Result<(), LinkError> {
        match &mut self.mover {
            Some(mover) => {
                mover.notify(&remote.peer, Notice::read(&remote.request_id, 1));
                Ok(())
            }
            None => self.peers.send(&remote.address(), &remote.request_id),
        }
    }

    /// Handles the peers' messages since the last call. Returns the finished prompts whose blocks
    /// are free again, and whether there was any message.
    pub(crate) fn receive(&mut self, now_ns: u64) -> Result<(Vec<Released>, bool), LinkError> {
        let mut released = std::mem::take(&mut self.released);
        let mut is_news = false;
        if let Some(notices) = &self.notices {
            while let Some(text) = notices.try_receive()? {
                let notice = Notice::Read { request: &text, readers: None };
                released
                    .extend(apply(&mut self.leases, &notice, &mut self.stray_notices, now_ns).map(|(_, held)| held));
            }
        }
        if let Some(mover) = &mut self.mover {
            let mut news = std::mem::take(&mut self.news);
            mover.poll(now_ns, &mut news);
            is_news = !news.is_empty();
            for event in news.drain(..) {
                self.handle(event, now_ns, &mut released);
            }
            self.news = news;
        }
        if let Some(meetings) = &mut self.meetings {
            let (num_met, mut of_held) = (self.met.len(), Vec::new());
            meetings.poll(&mut self.met, &mut of_held, now_ns);
            is_news |= self.met.len() > num_met;
            for event in of_held {
                self.apply_meeting(event, &mut released);
            }
        }
        for (request, held) in self.leases.expire(now_ns) {
            if let Some(mover) = &mut self.mover {
                mover.release(&request);
            }
            released.push(Released { core: held.core, is_expired: true });
        }
        is_news |= !released.is_empty();
        Ok((released, is_news))
    }

    fn handle(&mut self, event: MoverEvent, now_ns: u64, released: &mut Vec<Released>) {
        match event {
            MoverEvent::Loaded { tag, outcome } => {
                self.loads.finish_move(tag, outcome, self.mover.as_ref(), now_ns);
            }
            MoverEvent::Written { id } => self.late_answers.finish(id),
            MoverEvent::Pushed { request } => {
                if let (Some(held), Some(mover)) = (self.leases.remove(&request), &mut self.mover) {
                    mover.release(&request);
                    released.push(Released { core: held.core, is_expired: false });
                }
            }
            MoverEvent::Notice(text) => {
                let notice = Notice::parse(&text);
                if let Notice::PushRegistration(registration) = notice {
                    self.register_push(registration, now_ns);
                    return;
                }
                let freed = apply(&mut self.leases, &notice, &mut self.stray_notices, now_ns);
                if let (Some((request, held)), Some(mover)) = (freed, &mut self.mover) {
                    mover.release(&request);
                    released.push(held);
                }
            }
        }
    }

    /// Frees the KV of a prompt that its decode engine has read without a notice, or did not ask for in time.
    fn apply_meeting(&mut self, event: RendezvousEvent, released: &mut Vec<Released>) {
        let (request, is_expired) = match event {
            RendezvousEvent::Taken { request } => (request, false),
            RendezvousEvent::Expired { request, message } => {
                tracing::warn!(rank = self.rank, request, "{message}");
                (request, true)
            }
            RendezvousEvent::Met { .. } | RendezvousEvent::Missed { .. } => return,
        };
        if let Some(held) = self.leases.remove(&request) {
            if let Some(mover) = &mut self.mover {
                mover.release(&request);
            }
            released.push(Released { core: held.core, is_expired });
        }
    }

    fn register_push(&mut self, registration: &[u8], now_ns: u64) {
        let Some(mover) = &mut self.mover else { return };
        match PushRegistration::decode(registration) {
            Ok(registration) if self.allowed.contains(&registration.host) => {
                let held = self.leases.get(&registration.request).map(|held| held.blocks.clone());
                mover.register_push(registration, held.as_deref(), now_ns);
            }
            Ok(registration) => {
                let host = registration.host;
                tracing::warn!("a push to `{host}` is refused: it is not an allowed KV peer (see --allow-remote-kv)");
            }
            Err(error) => tracing::warn!("a push registration cannot be read: {error}"),
        }
    }

    pub(crate) fn next_lease_end_ns(&self) -> Option<u64> {
        self.leases.next_end_ns()
    }

    pub(crate) fn next_heartbeat_ns(&self) -> Option<u64> {
        self.next_heartbeat_ns
    }

    /// Sends heartbeats for requests that wait for KV, if they are due.
    pub(crate) fn send_heartbeats<'a>(&mut self, waiting: impl Iterator<Item = &'a RemoteKv>, now_ns: u64) {
        let (Some(due_ns), Some(mover)) = (self.next_heartbeat_ns, &mut self.mover) else { return };
        if due_ns > now_ns {
            return;
        }
        let interval_ns = (self.settings.lease_ns / HEARTBEATS_PER_LEASE).max(1_000_000);
        self.next_heartbeat_ns = Some(now_ns.saturating_add(interval_ns));
        let mut by_peer: BTreeMap<(String, u16), (&Peer, Vec<&str>)> = BTreeMap::new();
        for remote in waiting {
            let of_peer = by_peer.entry((remote.peer.host.clone(), remote.peer.port));
            of_peer.or_insert_with(|| (&remote.peer, Vec::new())).1.push(&remote.request_id);
        }
        for (peer, requests) in by_peer.into_values() {
            for some in requests.chunks(HEARTBEAT_REQUESTS) {
                mover.notify(peer, Notice::heartbeat(some.iter().copied()));
            }
        }
    }
}

/// Maximum number of requests in one heartbeat, far below the longest notice.
const HEARTBEAT_REQUESTS: usize = 64;

/// Applies a notice to the leases, and returns the prompt that it frees.
fn apply(
    leases: &mut LeaseTable<HeldRequest>,
    notice: &Notice<'_>,
    stray_notices: &mut u64,
    now_ns: u64,
) -> Option<(String, Released)> {
    match leases.apply(notice, now_ns) {
        NoticeEffect::Released(request, held) => Some((request, Released { core: held.core, is_expired: false })),
        NoticeEffect::NotHeld => {
            *stray_notices += 1;
            None
        }
        NoticeEffect::Counted | NoticeEffect::Extended(_) | NoticeEffect::None => None,
    }
}
