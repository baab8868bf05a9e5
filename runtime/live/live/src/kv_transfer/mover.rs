//! The data plane of one engine, which moves real bytes. The mover numbers its transfers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vcr_core::RequestId;
use vcr_transfer::{
    Arena, BlockPair, Direction, Expected, Held, Hold, Moved, Notice, Peer, Plane, PlaneContext, PlaneEvent,
    Statistics, Transfer, TransferError, Wake,
};

use crate::config::TransferSettings;
use crate::error::LiveError;
use crate::kv_transfer::pages::GroupPages;
use crate::kv_transfer::push::{PushGroup, PushRegistration};
use crate::kv_transfer::settings::{EndedTransfer, PlaneSettings};
use crate::requests::RemoteKv;

/// Blocks to load: their numbers here and at the prefill engine, and their contents.
pub(crate) struct LoadPages<'a> {
    pub(crate) remote: &'a RemoteKv,
    pub(crate) groups: Vec<GroupPages<BlockPair>>,
    pub(crate) corrupts: bool,
}

impl LoadPages<'_> {
    pub(crate) fn pairs(&self) -> impl Iterator<Item = BlockPair> {
        self.groups.iter().flat_map(|group| group.pages.iter().copied())
    }
}

pub(crate) enum MoverEvent {
    /// The load of this request's KV has ended.
    Loaded { tag: u64, outcome: Result<Moved, TransferError> },
    /// A pushed prompt was written to its decode engine.
    Pushed { request: String },
    /// A peer's notice, for the leases.
    Notice(Vec<u8>),
    /// The pages of a finished prompt are written.
    Written { id: u64 },
}

/// Maximum number of pushes that wait for their prompts; more are refused.
const MAX_WAITING_PUSHES: usize = 65_536;

/// A push that was requested before its prompt was finished.
struct WaitingPush {
    registration: PushRegistration,
    until_ns: u64,
}

pub(crate) struct Mover {
    plane: Box<dyn Plane>,
    settings: PlaneSettings,
    timeout: Duration,
    engine_id: String,
    /// This engine's host name for peers.
    host: String,
    generation: u64,
    last_id: u64,
    rank: u16,
    /// By number, each load's request tag and the peer that it comes from.
    loads: HashMap<u64, (u64, Peer)>,
    /// By number, the requests whose KV is written to other engines.
    pushes: HashMap<u64, String>,
    waiting_pushes: HashMap<String, WaitingPush>,
    /// Kept to reuse its allocation.
    events: Vec<PlaneEvent>,
}

impl Mover {
    /// Maps the memory and starts the plane.
    pub(crate) fn start(
        settings: &PlaneSettings,
        transfer: &TransferSettings,
        engine_id: String,
        rank: u16,
        wake: Wake,
    ) -> Result<Self, LiveError> {
        let arena = match settings.backs_as_used {
            true => Arena::backed_as_used(settings.geometry, settings.memory_limit_bytes)?,
            false => Arena::new(settings.geometry, settings.memory_limit_bytes)?,
        };
        // This generation is greater than at any earlier start at this address.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let generation = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX).max(1);
        let context = PlaneContext { engine_id: engine_id.clone(), rank, generation, arena: Arc::new(arena), wake };
        let plane = (settings.factory)(context)?;
        tracing::info!(
            rank,
            plane = plane.name(),
            port = plane.port(),
            arena_bytes = settings.geometry.total_bytes(),
            block_bytes = settings.geometry.block_bytes(),
            "KV moves between engines"
        );
        Ok(Self {
            plane,
            settings: settings.clone(),
            timeout: Duration::from_nanos(transfer.load_timeout_ns),
            engine_id,
            host: transfer.side_channel_host.clone(),
            generation,
            last_id: 0,
            rank,
            loads: HashMap::new(),
            pushes: HashMap::new(),
            waiting_pushes: HashMap::new(),
            events: Vec::new(),
        })
    }

    pub(crate) fn settings(&self) -> &PlaneSettings {
        &self.settings
    }

    pub(crate) fn port(&self) -> u16 {
        self.plane.port()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn statistics(&self) -> (&'static str, Statistics) {
        (self.plane.name(), self.plane.statistics())
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Whether blocks of prompts are to be announced while they are computed.
    pub(crate) fn prepares(&self) -> bool {
        self.plane.prepares()
    }

    /// Announces blocks of a prompt that is being computed.
    pub(crate) fn prepare(&mut self, blocks: Vec<Held>) {
        if !blocks.is_empty() {
            self.plane.prepare(blocks);
        }
    }

    /// Has the pages of a finished prompt written. If they are not written at once, returns a number, and
    /// [`MoverEvent::Written`] with this number follows.
    pub(crate) fn write(&mut self, groups: &[GroupPages<Held>]) -> Option<u64> {
        let blocks: Vec<Held> = groups.iter().flat_map(|group| group.pages.iter().copied()).collect();
        let id = self.next_id();
        (!self.plane.write(id, &blocks)).then_some(id)
    }

    /// Cancels the write to which [`Mover::write`] gave the number `id`.
    pub(crate) fn cancel_write(&mut self, id: u64) {
        self.plane.cancel(id);
    }

    /// Lets peers read a finished prompt, or starts the push that waits for it.
    pub(crate) fn hold(&mut self, request: &str, groups: &[GroupPages<Held>]) {
        let blocks = groups.iter().flat_map(|group| group.pages.iter().copied()).collect();
        self.plane.hold(Hold { request: request.to_owned(), blocks });
        if let Some(waiting) = self.waiting_pushes.remove(request) {
            self.push(&waiting.registration, groups);
        }
    }

    pub(crate) fn release(&mut self, request: &str) {
        self.plane.release(request);
    }

    /// Starts to move the KV of a request to this engine, and returns the number of the transfer.
    pub(crate) fn load(&mut self, tag: u64, pages: LoadPages<'_>) -> u64 {
        let (id, timeout) = (self.next_id(), self.timeout);
        let LoadPages { remote, corrupts, .. } = pages;
        self.loads.insert(id, (tag, remote.peer.clone()));
        if !remote.is_pushed {
            self.plane.start(Transfer {
                id,
                direction: Direction::Read,
                peer: remote.peer.clone(),
                request: remote.request_id.clone(),
                blocks: pages.pairs().collect(),
                notice: Some(Notice::read(&remote.request_id, 1)),
                timeout,
                corrupts,
            });
            return id;
        }
        let transfer = format!("{}-{id}", self.generation);
        let registration = PushRegistration {
            request: remote.request_id.clone(),
            transfer: transfer.clone(),
            engine_id: self.engine_id.clone(),
            host: self.host.clone(),
            port: self.plane.port(),
            generation: self.generation,
            groups: pages.groups.iter().map(wanted_blocks).collect(),
        };
        let blocks = pages.pairs().map(|pair| Held { block: pair.local, content: pair.content }).collect();
        self.plane.expect(Expected { id, peer: remote.peer.clone(), request: transfer, blocks, timeout, corrupts });
        self.plane.notify(&remote.peer, Notice::push_registration(&registration.encode()));
        id
    }

    /// Cancels a load, which changes no blocks from now on.
    pub(crate) fn cancel(&mut self, id: u64) {
        if self.loads.remove(&id).is_some() {
            self.plane.cancel(id);
        }
    }

    pub(crate) fn notify(&mut self, peer: &Peer, notice: Vec<u8>) {
        self.plane.notify(peer, notice);
    }

    /// Writes a prompt's blocks to the engine that registered for them, once the blocks are held.
    pub(crate) fn register_push(
        &mut self,
        registration: PushRegistration,
        held: Option<&[GroupPages<Held>]>,
        now_ns: u64,
    ) {
        match held {
            Some(held) => self.push(&registration, held),
            None => {
                self.waiting_pushes.retain(|_, waiting| waiting.until_ns > now_ns);
                if self.waiting_pushes.len() < MAX_WAITING_PUSHES {
                    let until_ns = now_ns.saturating_add(self.timeout.as_nanos() as u64);
                    let request = registration.request.clone();
                    self.waiting_pushes.insert(request, WaitingPush { registration, until_ns });
                }
            }
        }
    }

    fn push(&mut self, registration: &PushRegistration, held: &[GroupPages<Held>]) {
        let Some(blocks) = pushed_pairs(&registration.groups, held) else {
            // No answer is sent. The decode engine stops waiting at its deadline.
            let request = &registration.request;
            tracing::warn!(request, "a decode engine asks for blocks that the prompt does not have");
            return;
        };
        let (id, timeout) = (self.next_id(), self.timeout);
        self.pushes.insert(id, registration.request.clone());
        self.plane.start(Transfer {
            id,
            direction: Direction::Write,
            peer: registration.peer(),
            request: registration.transfer.clone(),
            blocks,
            notice: None,
            timeout,
            corrupts: false,
        });
    }

    /// Takes the events since the last call.
    pub(crate) fn poll(&mut self, now_ns: u64, news: &mut Vec<MoverEvent>) {
        let mut events = std::mem::take(&mut self.events);
        self.plane.poll(&mut events);
        for event in events.drain(..) {
            match event {
                PlaneEvent::Notice(notice) => news.push(MoverEvent::Notice(notice)),
                PlaneEvent::Written { id } => news.push(MoverEvent::Written { id }),
                PlaneEvent::Finished { id, outcome } => {
                    if let Some((tag, peer)) = self.loads.remove(&id) {
                        if let Some(observer) = &self.settings.observer {
                            observer(&EndedTransfer { rank: self.rank, peer: &peer, at_ns: now_ns, outcome: &outcome });
                        }
                        news.push(MoverEvent::Loaded { tag, outcome });
                    } else if let Some(request) = self.pushes.remove(&id) {
                        match outcome {
                            Ok(_) => news.push(MoverEvent::Pushed { request }),
                            Err(error) => tracing::warn!(request, kind = %error.kind, "a push failed: {error}"),
                        }
                    }
                }
            }
        }
        self.events = events;
    }
}

/// The blocks of one group that a transfer brings, in the form of a push registration.
fn wanted_blocks(group: &GroupPages<BlockPair>) -> PushGroup {
    PushGroup { first_block: group.first_block, blocks: group.pages.iter().map(|pair| pair.local).collect() }
}

/// Pairs the held blocks with their destinations; `None` if they are not exactly the wanted blocks up to the
/// prompt's end.
fn pushed_pairs(wanted: &[PushGroup], held: &[GroupPages<Held>]) -> Option<Vec<BlockPair>> {
    if wanted.len() != held.len() {
        return None;
    }
    let mut pairs = Vec::new();
    for (wanted, held) in wanted.iter().zip(held).filter(|(wanted, _)| !wanted.blocks.is_empty()) {
        let pages = held.pages.get(wanted.first_block.checked_sub(held.first_block)?..)?;
        if pages.len() != wanted.blocks.len() {
            return None;
        }
        let pair =
            |(held, remote): (&Held, &u32)| BlockPair { local: held.block, remote: *remote, content: held.content };
        pairs.extend(pages.iter().zip(&wanted.blocks).map(pair));
    }
    Some(pairs)
}

/// A finished prompt, as its lease stores it.
pub(crate) struct HeldRequest {
    pub(crate) core: RequestId,
    /// Blocks and contents by KV-cache group; empty if no bytes are moved.
    pub(crate) blocks: Vec<GroupPages<Held>>,
}
