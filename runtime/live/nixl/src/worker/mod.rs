//! The agent's thread, which starts and monitors transfers, and compares the received bytes with the pattern.

mod ending;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use nixl_sys::XferOp;
use vcr_transfer::{
    Arena, BlockPair, Direction, ErrorKind, Expected, Geometry, Held, Moved, Peer, PlaneContext, PlaneEvent, Span,
    Transfer, TransferError,
};
use vcr_wire::{NoticeBoard, Transport};

use crate::NixlSettings;
use crate::agent::{Extent, NixlAgent, Posted};
use crate::links::{Link, Links, Look, Place, name_of, place_of};
use crate::shared::{Command, Shared, locked};

/// Interval at which an idle agent checks for notices.
const IDLE_INTERVAL: Duration = Duration::from_millis(4);
/// Interval of checks for notices and answers while transfers are in progress.
const NOTICE_INTERVAL: Duration = Duration::from_micros(200);
/// Time for which the thread looks for further work before it sleeps: on a busy machine, waking up takes longer than
/// reading a small transfer, and transfers often follow each other. The thread does not yield in this time, because
/// it would lose its turn.
const LINGER: Duration = Duration::from_micros(100);
/// Time for which a thread waits for a transfer before it yields to other threads.
const SPIN: Duration = Duration::from_micros(300);
/// Pause between two checks of peers' answers and of cancelled transfers.
const NAP: Duration = Duration::from_micros(50);
/// Prefix of the notice that a pushed transfer has been written; the transfer's ID follows.
const WRITTEN: &[u8] = b"VCR_WRITTEN:";

/// A transfer that NIXL has.
struct Active {
    transfer: Transfer,
    posted: Posted,
    /// Number of pieces of pages.
    pages: u64,
    place: Place,
    since: Instant,
    asked: Instant,
    connect_ns: u64,
}

impl Active {
    fn is_late(&self) -> bool {
        self.since.elapsed() >= self.transfer.timeout
    }
}

/// An action that waits for a peer.
enum Waiting {
    Start(Transfer, Instant),
    Notice(Peer, Vec<u8>),
}

pub(crate) struct Worker {
    context: PlaneContext,
    board: NoticeBoard,
    shared: Arc<Shared>,
    links: Links,
    /// Must be dropped before the agent, whose requests it holds.
    active: Vec<Active>,
    /// Cancelled or failed transfers that NIXL still has.
    ending: Vec<Active>,
    /// Actions for peers that have been asked for their metadata.
    waiting: HashMap<Place, Vec<Waiting>>,
    /// Transfers into blocks that NIXL still writes to.
    blocked: Vec<(Transfer, Instant)>,
    expected: HashMap<String, (Expected, Instant)>,
    agent: NixlAgent,
    notices: Vec<Vec<u8>>,
    looked: Instant,
    /// When something happened last.
    stirred: Instant,
}

impl Worker {
    pub(crate) fn new(
        settings: Arc<NixlSettings>,
        context: PlaneContext,
        transport: Transport,
        board: NoticeBoard,
        agent: NixlAgent,
        shared: Arc<Shared>,
    ) -> Self {
        let links = Links::new(settings, transport, *context.arena.geometry());
        let now = Instant::now();
        Self {
            context,
            board,
            shared,
            links,
            active: Vec::new(),
            ending: Vec::new(),
            waiting: HashMap::new(),
            blocked: Vec::new(),
            expected: HashMap::new(),
            agent,
            notices: Vec::new(),
            looked: now,
            stirred: now,
        }
    }

    /// Works until [`Command::Stop`].
    pub(crate) fn run(mut self, inbox: &Receiver<Command>) {
        loop {
            let mut command = self.next_command(inbox);
            while let Some(next) = command {
                self.stirred = Instant::now();
                if matches!(next, Command::Stop) {
                    return;
                }
                self.handle_command(next);
                command = look(inbox);
            }
            self.advance();
        }
    }

    /// Takes a command; waits for one if there is nothing else to do.
    fn next_command(&self, inbox: &Receiver<Command>) -> Option<Command> {
        if !self.active.is_empty() {
            // NIXL moves bytes only while it is polled for completion.
            if self.stirred.elapsed() >= SPIN {
                std::thread::yield_now();
            }
            return look(inbox);
        }
        if self.stirred.elapsed() < LINGER {
            std::hint::spin_loop();
            return look(inbox);
        }
        let is_waiting = !self.ending.is_empty() || self.links.is_asking();
        match inbox.recv_timeout(if is_waiting { NAP } else { IDLE_INTERVAL }) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Command::Stop),
        }
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Start(transfer, since) => self.start(transfer, since),
            Command::Expect(expected, since) => self.expect(expected, since),
            Command::Cancel(id) => self.cancel(id),
            Command::Notify(peer, notice) => self.notify(peer, notice),
            Command::Stop => {}
        }
    }

    fn advance(&mut self) {
        // This comes first, because reading notices takes longer than checking transfers.
        self.take_moved();
        if self.looked.elapsed() >= NOTICE_INTERVAL {
            self.looked = Instant::now();
            self.take_notices();
            self.take_answers();
        }
        self.end_late();
    }

    fn expect(&mut self, expected: Expected, since: Instant) {
        for held in &expected.blocks {
            claim(&self.context.arena, held.block, expected.id);
        }
        self.expected.insert(expected.request.clone(), (expected, since));
    }

    fn cancel(&mut self, id: u64) {
        self.ending.extend(self.active.extract_if(.., |active| active.transfer.id == id));
        let arena = Arc::clone(&self.context.arena);
        self.expected.retain(|_, (expected, _)| {
            if expected.id == id {
                expected.blocks.iter().for_each(|held| arena.take_back(held.block, id, None));
            }
            expected.id != id
        });
        let shared = Arc::clone(&self.shared);
        let is_other = |transfer: &Transfer| {
            if transfer.id == id {
                vacate(&shared, transfer);
            }
            transfer.id != id
        };
        self.blocked.retain(|(transfer, _)| is_other(transfer));
        for waiting in self.waiting.values_mut() {
            waiting.retain(|waiting| match waiting {
                Waiting::Start(transfer, _) => is_other(transfer),
                Waiting::Notice(..) => true,
            });
        }
    }

    /// Starts a transfer once its peer is known and its blocks are free.
    fn start(&mut self, transfer: Transfer, since: Instant) {
        match self.links.look(&transfer.peer, &mut self.agent) {
            Look::Ready(_) => self.begin(transfer, since),
            Look::Asked => {
                let waiting = self.waiting.entry(place_of(&transfer.peer)).or_default();
                waiting.push(Waiting::Start(transfer, since));
            }
            Look::Failed(error) => self.fail(&transfer, error),
        }
    }

    fn begin(&mut self, transfer: Transfer, since: Instant) {
        let claimed = |active: &Active| {
            active.transfer.direction == Direction::Read
                && active.transfer.blocks.iter().any(|one| transfer.blocks.iter().any(|pair| pair.local == one.local))
        };
        if transfer.direction == Direction::Read && self.ending.iter().any(claimed) {
            self.blocked.push((transfer, since));
            return;
        }
        match self.post(&transfer) {
            Ok(Some((posted, pages, connect_ns))) => {
                let (place, asked) = (place_of(&transfer.peer), Instant::now());
                self.active.push(Active { transfer, posted, pages, place, since, asked, connect_ns });
            }
            Ok(None) => self.finish(&transfer, Moved::default()),
            Err(error) => self.fail(&transfer, error),
        }
    }

    /// Posts a transfer to NIXL. Also returns the number of its pages and the time spent on the connection. Returns
    /// `None` if it has no blocks.
    fn post(&mut self, transfer: &Transfer) -> Result<Option<(Posted, u64, u64)>, TransferError> {
        let link = self.links.found(&transfer.peer)?;
        let num_blocks = link.layout.num_blocks();
        if let Some(pair) = transfer.blocks.iter().find(|pair| u64::from(pair.remote) >= num_blocks) {
            let message = format!("KV peer {} has no block {}: it has {num_blocks}", transfer.peer, pair.remote);
            return Err(TransferError::new(ErrorKind::NotHeld, message));
        }
        if transfer.blocks.is_empty() {
            return Ok(None);
        }
        if transfer.direction == Direction::Read {
            transfer.blocks.iter().for_each(|pair| claim(&self.context.arena, pair.local, transfer.id));
        }
        let extents = extents(&self.context, link, &transfer.blocks);
        let (operation, notice) = match transfer.direction {
            Direction::Read => (XferOp::Read, None),
            Direction::Write => (XferOp::Write, Some([WRITTEN, transfer.request.as_bytes()].concat())),
        };
        let connect_ns = link.take_connect_ns();
        match self.agent.start(operation, &link.agent, &extents, notice.as_deref()) {
            Ok(posted) => Ok(Some((posted, extents.len() as u64, connect_ns))),
            Err(error) => {
                self.links.forget(&place_of(&transfer.peer), &mut self.agent);
                let peer = &transfer.peer;
                let message = format!("KV peer {peer} is lost: NIXL cannot start to move pages: {error}");
                Err(TransferError::new(ErrorKind::PeerLost, message))
            }
        }
    }

    /// Ends a transfer that is complete and right.
    fn finish(&mut self, transfer: &Transfer, moved: Moved) {
        let name = name_of(&place_of(&transfer.peer));
        vacate(&self.shared, transfer);
        locked(&self.shared.statistics).complete(&name, transfer.direction, &moved);
        // Report first: after the notice, the peer may free its blocks, but not the received ones.
        self.report(PlaneEvent::Finished { id: transfer.id, outcome: Ok(moved) });
        if let Some(notice) = &transfer.notice {
            self.notify(transfer.peer.clone(), notice.clone());
        }
    }

    /// Ends a transfer that NIXL does not have.
    fn fail(&mut self, transfer: &Transfer, error: TransferError) {
        if transfer.direction == Direction::Read {
            transfer.blocks.iter().for_each(|pair| self.context.arena.take_back(pair.local, transfer.id, None));
        }
        vacate(&self.shared, transfer);
        self.report_failure(transfer, error);
    }

    fn report_failure(&mut self, transfer: &Transfer, error: TransferError) {
        let name = name_of(&place_of(&transfer.peer));
        let kind = error.kind;
        if self.report(PlaneEvent::Finished { id: transfer.id, outcome: Err(error) }) {
            locked(&self.shared.statistics).fail(&name, kind);
        }
    }

    fn report(&mut self, event: PlaneEvent) -> bool {
        self.stirred = Instant::now();
        let is_reported = self.shared.report(event);
        if is_reported {
            (self.context.wake)();
        }
        is_reported
    }

    /// Sends a notice once its peer is known.
    fn notify(&mut self, peer: Peer, notice: Vec<u8>) {
        let name = name_of(&place_of(&peer));
        let agent = match self.links.look(&peer, &mut self.agent) {
            Look::Ready(link) => link.agent.clone(),
            Look::Asked => {
                self.waiting.entry(place_of(&peer)).or_default().push(Waiting::Notice(peer, notice));
                return;
            }
            Look::Failed(error) => return lost_notice(&name, &error.message),
        };
        match self.agent.notify(&agent, &notice) {
            Ok(()) => locked(&self.shared.statistics).peer(&name).notices += 1,
            Err(error) => lost_notice(&name, &error.to_string()),
        }
    }

    /// Takes notices of peers, from NIXL and from the side channel.
    fn take_notices(&mut self) {
        if let Err(error) = self.agent.take_notices(&mut self.notices) {
            tracing::warn!("NIXL cannot receive notifications: {error}");
        }
        loop {
            match self.board.try_receive() {
                Ok(Some(notice)) => self.notices.push(notice.into_bytes()),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!("the side channel cannot receive: {error}");
                    break;
                }
            }
        }
        for notice in std::mem::take(&mut self.notices) {
            match notice.strip_prefix(WRITTEN) {
                Some(request) => self.take_written(&String::from_utf8_lossy(request)),
                None => _ = self.report(PlaneEvent::Notice(notice)),
            }
        }
    }

    /// Compares bytes that a peer has written with the pattern.
    fn take_written(&mut self, request: &str) {
        let Some((expected, since)) = self.expected.remove(request) else { return };
        let geometry = *self.context.arena.geometry();
        let checked = expected
            .blocks
            .iter()
            .try_for_each(|held| check_block(&self.context, expected.id, held, expected.corrupts));
        let is_right = checked.is_ok() && self.shared.is_open(expected.id);
        for held in &expected.blocks {
            self.context.arena.take_back(held.block, expected.id, is_right.then_some(held.content));
        }
        let blocks = expected.blocks.len() as u64;
        let moved = Moved {
            bytes: blocks * geometry.block_bytes(),
            pages: blocks * u64::from(geometry.pages_per_block()),
            move_ns: since.elapsed().as_nanos() as u64,
            ..Moved::default()
        };
        self.end_expected(&expected, checked.map(|()| moved));
    }

    /// Reports and counts the end of a transfer in which a peer was to write.
    fn end_expected(&mut self, expected: &Expected, outcome: Result<Moved, TransferError>) {
        let counted = outcome.clone();
        if self.report(PlaneEvent::Finished { id: expected.id, outcome }) {
            let (name, mut statistics) = (expected.peer.to_string(), locked(&self.shared.statistics));
            match counted {
                Ok(moved) => statistics.complete(&name, Direction::Read, &moved),
                Err(error) => statistics.fail(&name, error.kind),
            }
        }
    }

    /// Continues with the transfers that have waited for peers.
    fn take_answers(&mut self) {
        for (place, outcome) in self.links.poll(&mut self.agent) {
            let waiting = self.waiting.remove(&place).unwrap_or_default();
            for waiting in waiting {
                match (waiting, &outcome) {
                    // Not `start`, which would ask a wrong peer again.
                    (Waiting::Start(transfer, since), Ok(())) => self.begin(transfer, since),
                    (Waiting::Start(transfer, _), Err(error)) => self.fail(&transfer, error.clone()),
                    (Waiting::Notice(peer, notice), Ok(())) => match self.links.found(&peer) {
                        Ok(_) => self.notify(peer, notice),
                        Err(error) => lost_notice(&name_of(&place), &error.message),
                    },
                    (Waiting::Notice(..), Err(error)) => lost_notice(&name_of(&place), &error.message),
                }
            }
        }
    }
}

fn look(inbox: &Receiver<Command>) -> Option<Command> {
    match inbox.try_recv() {
        Ok(command) => Some(command),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Command::Stop),
    }
}

/// Assigns a block to a transfer. Waits until a pattern that is being written to it is complete, because NIXL takes
/// no locks.
fn claim(arena: &Arena, block: u32, id: u64) {
    arena.claim(block, id);
    arena.settle(block);
}

fn vacate(shared: &Shared, transfer: &Transfer) {
    if transfer.direction == Direction::Read {
        shared.vacate(transfer.blocks.iter().map(|pair| pair.local));
    }
}

fn lost_notice(name: &str, reason: &str) {
    tracing::warn!(peer = name, "a KV peer cannot be notified and holds blocks until their lease ends: {reason}");
}

/// Addresses of the pages of some blocks, here and at a peer.
fn extents(context: &PlaneContext, link: &Link, blocks: &[BlockPair]) -> Vec<Extent> {
    let (arena, layout) = (&context.arena, &link.layout);
    let regions = arena.geometry().regions();
    let mut extents = Vec::with_capacity(blocks.len() * regions as usize * layout.pieces().len());
    for piece in layout.pieces() {
        for region in 0..regions {
            for pair in blocks {
                let local = arena.page_address(piece.local_rank, region, pair.local) + piece.local_offset as usize;
                extents.push((local, layout.address(piece, region, pair.remote), piece.bytes as usize));
            }
        }
    }
    extents
}

fn whole_pages(geometry: &Geometry, block: u32) -> impl Iterator<Item = Span> {
    let (bytes, num_regions) = (geometry.page_bytes(), geometry.regions());
    let regions = (0..geometry.ranks()).flat_map(move |rank| (0..num_regions).map(move |region| (rank, region)));
    regions.map(move |(rank, region)| Span { rank, region, block, offset: 0, bytes })
}

/// Compares a block with its pattern. With `corrupts`, changes a byte of the block before.
fn check_block(context: &PlaneContext, owner: u64, held: &Held, corrupts: bool) -> Result<(), TransferError> {
    let pages = || whole_pages(context.arena.geometry(), held.block);
    if corrupts && let Some(page) = pages().next() {
        context.arena.corrupt(&page, owner);
    }
    for page in pages() {
        if let Some(offset) = context.arena.first_wrong(&page, held.content) {
            let Span { rank, region, block, .. } = page;
            let message = format!("wrong bytes from offset {offset} of block {block}, rank {rank}, region {region}");
            return Err(TransferError::new(ErrorKind::Corrupt, message));
        }
    }
    Ok(())
}
