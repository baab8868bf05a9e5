//! The side that connects: a queue for each peer, and streams that work it off.
//!
//! A stream is a thread with a connection. It takes batches of pages from the transfers in turn, asks for a few ahead,
//! and checks what comes. So one large transfer uses all streams, and many small ones share them.

use std::collections::VecDeque;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::arena::Span;
use crate::error::{ErrorKind, TransferError};
use crate::geometry::{Geometry, Piece};
use crate::plane::{BlockPair, Held, Peer, Transfer};
use crate::statistics::{Direction, Moved};
use crate::tcp::frame::{Introduction, MAX_NAME_BYTES, MAX_NOTICE_BYTES, Message};
use crate::tcp::link::{Link, LinkError, Received};
use crate::tcp::server::wrong_byte;
use crate::tcp::shared::{Shared, nanoseconds};
use crate::tcp::{lower_priority, spawn};

/// Bytes of a batch, unless a single page has more.
const BATCH_BYTES: u64 = 4 << 20;
/// Pages of a batch.
const BATCH_PAGES: u64 = 1024;
/// Batches that a stream has asked for and not received.
const WINDOW: usize = 3;
/// Notices that wait for a peer; more are dropped.
const MAX_NOTICES: usize = 65_536;

/// A transfer that streams work on.
struct Active {
    transfer: Transfer,
    started: Instant,
    deadline: Instant,
    is_over: Arc<AtomicBool>,
    progress: Mutex<Progress>,
    corrupts: AtomicBool,
}

#[derive(Default)]
struct Progress {
    /// Known once the peer has presented itself.
    pages: Option<Arc<Pages>>,
    next_batch: u64,
    done_batches: u64,
    first: Option<Instant>,
    connect_ns: u64,
}

/// The pages of a transfer, numbered: blocks outermost, then the pieces of a page, then regions.
struct Pages {
    pieces: Vec<Piece>,
    regions: u64,
    count: u64,
    per_batch: u64,
    bytes: u64,
}

impl Pages {
    fn new(local: &Geometry, remote: &Geometry, transfer: &Transfer) -> Result<Self, TransferError> {
        let pieces = match transfer.direction {
            Direction::Read => local.pieces(remote),
            // All of the peer's pages are to be written.
            Direction::Write => remote.pieces(local).map(|pieces| {
                let turned = |piece: Piece| Piece {
                    local_rank: piece.remote_rank,
                    remote_rank: piece.local_rank,
                    local_offset: piece.remote_offset,
                    remote_offset: piece.local_offset,
                    bytes: piece.bytes,
                };
                pieces.into_iter().map(turned).collect()
            }),
        };
        let peer = &transfer.peer;
        let pieces = pieces
            .map_err(|mismatch| TransferError::new(ErrorKind::Mismatch, format!("KV peer {peer}: {mismatch}")))?;
        if let Some(pair) = transfer.blocks.iter().find(|pair| pair.remote >= remote.blocks()) {
            let message = format!("KV peer {peer} has {} blocks, and no block {}", remote.blocks(), pair.remote);
            return Err(TransferError::new(ErrorKind::NotHeld, message));
        }
        let regions = u64::from(local.regions());
        let blocks = transfer.blocks.len() as u64;
        let largest = pieces.iter().map(|piece| u64::from(piece.bytes)).max().unwrap_or(1);
        let of_block: u64 = pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>() * regions;
        Ok(Self {
            count: blocks * regions * pieces.len() as u64,
            per_batch: (BATCH_BYTES / largest).clamp(1, BATCH_PAGES),
            bytes: of_block * blocks,
            pieces,
            regions,
        })
    }

    fn batches(&self) -> u64 {
        self.count.div_ceil(self.per_batch)
    }

    /// The parts of pages of a batch: here, there, and the contents of their blocks.
    fn batch(&self, number: u64, blocks: &[BlockPair]) -> BatchPages {
        let first = number * self.per_batch;
        let last = (first + self.per_batch).min(self.count);
        let per_block = self.regions * self.pieces.len() as u64;
        let mut batch = BatchPages::default();
        for page in first..last {
            let pair = blocks[(page / per_block) as usize];
            let piece = self.pieces[(page % per_block / self.regions) as usize];
            let region = (page % self.regions) as u32;
            let Piece { local_rank, remote_rank, local_offset, remote_offset, bytes } = piece;
            batch.local.push(Span { rank: local_rank, region, block: pair.local, offset: local_offset, bytes });
            batch.remote.push(Span { rank: remote_rank, region, block: pair.remote, offset: remote_offset, bytes });
            batch.contents.push(pair.content);
        }
        batch
    }
}

#[derive(Default)]
struct BatchPages {
    local: Vec<Span>,
    remote: Vec<Span>,
    contents: Vec<u64>,
}

impl BatchPages {
    fn bytes(&self) -> u64 {
        self.local.iter().map(|span| u64::from(span.bytes)).sum()
    }
}

/// Work for a stream.
enum Job {
    Batch { active: Arc<Active>, number: u64, pages: BatchPages },
    Notice(Vec<u8>),
}

#[derive(Default)]
struct QueueState {
    transfers: VecDeque<Arc<Active>>,
    notices: VecDeque<Vec<u8>>,
    streams: usize,
    idle_streams: usize,
}

impl QueueState {
    fn is_empty(&self) -> bool {
        self.transfers.is_empty() && self.notices.is_empty()
    }
}

/// Everything for one peer.
pub(super) struct PeerQueue {
    host: String,
    port: u16,
    name: String,
    state: Mutex<QueueState>,
    has_jobs: Condvar,
}

impl PeerQueue {
    pub(super) fn new(peer: &Peer) -> Self {
        Self {
            host: peer.host.clone(),
            port: peer.port,
            name: peer.to_string(),
            state: Mutex::default(),
            has_jobs: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing waits and no stream is open.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.is_empty() && state.streams == 0
    }

    /// Ends the waits of all streams.
    pub(super) fn wake_all(&self) {
        self.has_jobs.notify_all();
    }

    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>, transfer: Transfer) {
        let now = Instant::now();
        let deadline = now + transfer.timeout;
        let held = transfer.blocks.iter().map(|pair| Held { block: pair.local, content: pair.content }).collect();
        let is_over = shared.register(transfer.id, &self.name, transfer.direction, held, deadline);
        let corrupts = AtomicBool::new(transfer.corrupts);
        if transfer.request.len() > MAX_NAME_BYTES {
            let message = format!("the request's name is longer than {MAX_NAME_BYTES} bytes");
            shared.finish(transfer.id, Err(TransferError::new(ErrorKind::Local, message)));
            return;
        }
        let progress = Mutex::default();
        let active = Arc::new(Active { transfer, started: now, deadline, is_over, progress, corrupts });
        let mut state = self.lock();
        state.transfers.push_back(active);
        self.ensure_stream(state, shared);
    }

    pub(super) fn notify(self: &Arc<Self>, shared: &Arc<Shared>, notice: Vec<u8>) {
        if notice.len() > MAX_NOTICE_BYTES {
            tracing::warn!(peer = self.name, bytes = notice.len(), "a KV notice is too long and is dropped");
            return;
        }
        let mut state = self.lock();
        if state.notices.len() < MAX_NOTICES {
            state.notices.push_back(notice);
        }
        self.ensure_stream(state, shared);
    }

    /// Has some stream look at the queue.
    fn ensure_stream(self: &Arc<Self>, mut state: MutexGuard<'_, QueueState>, shared: &Arc<Shared>) {
        if state.idle_streams > 0 || state.streams >= shared.settings.streams {
            self.has_jobs.notify_one();
            return;
        }
        state.streams += 1;
        drop(state);
        let (queue, for_thread) = (Arc::clone(self), Arc::clone(shared));
        if let Err(error) = spawn("kv-stream", move || Stream::new(&queue, &for_thread).run()) {
            let is_last = {
                let mut state = self.lock();
                state.streams -= 1;
                state.streams == 0
            };
            if is_last {
                self.fail_all(shared, &error);
            }
        }
    }

    /// Waits for work. False when there was none for long, or the plane is stopped: the stream is to end.
    fn wait(&self, shared: &Shared) -> bool {
        let until = Instant::now() + shared.settings.idle_timeout;
        let mut state = self.lock();
        while state.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || shared.is_stopped() {
                state.streams -= 1;
                return false;
            }
            state.idle_streams += 1;
            state = self.has_jobs.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.idle_streams -= 1;
        }
        if shared.is_stopped() {
            state.streams -= 1;
            return false;
        }
        true
    }

    /// The transfer whose turn is next.
    fn front(&self) -> Option<Arc<Active>> {
        self.lock().transfers.front().cloned()
    }

    /// The next job for a stream that is connected to `peer`. Writes are left if `takes_writes` is false.
    fn take(self: &Arc<Self>, shared: &Arc<Shared>, peer: &Introduction, takes_writes: bool) -> Option<Job> {
        loop {
            let mut state = self.lock();
            if let Some(notice) = state.notices.pop_front() {
                return Some(Job::Notice(notice));
            }
            let active = state.transfers.front()?;
            if active.transfer.direction == Direction::Write && !takes_writes {
                return None;
            }
            let active = state.transfers.pop_front()?;
            if active.is_over.load(Ordering::Acquire) {
                continue;
            }
            match active.next_batch(shared, peer) {
                Ok(Some((number, pages, is_last))) => {
                    if !is_last {
                        // Others get their turn, and other streams help.
                        state.transfers.push_back(Arc::clone(&active));
                        self.ensure_stream(state, shared);
                    }
                    return Some(Job::Batch { active, number, pages });
                }
                Ok(None) => {
                    drop(state);
                    self.complete(shared, &active);
                }
                Err(error) => {
                    drop(state);
                    shared.finish(active.transfer.id, Err(error));
                }
            }
        }
    }

    /// Ends a transfer all of whose pages are here, and sends its notice.
    fn complete(&self, shared: &Shared, active: &Active) {
        let moved = active.moved();
        if shared.finish(active.transfer.id, Ok(moved))
            && let Some(notice) = &active.transfer.notice
        {
            self.lock().notices.push_back(notice.clone());
        }
    }

    /// Ends all transfers that wait, and drops the notices: there is no way to the peer.
    fn fail_all(&self, shared: &Shared, error: &TransferError) {
        let (transfers, notices) = {
            let mut state = self.lock();
            (std::mem::take(&mut state.transfers), std::mem::take(&mut state.notices))
        };
        for active in transfers {
            shared.finish(active.transfer.id, Err(error.clone()));
        }
        if !notices.is_empty() {
            shared.statistics().fail(&self.name, error.kind);
            tracing::warn!(peer = self.name, notices = notices.len(), "KV notices were lost: {error}");
        }
    }
}

impl Active {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch, and whether it is the last one; none if there are no pages at all.
    fn next_batch(
        &self,
        shared: &Shared,
        peer: &Introduction,
    ) -> Result<Option<(u64, BatchPages, bool)>, TransferError> {
        let mut progress = self.progress();
        let pages = match &progress.pages {
            Some(pages) => Arc::clone(pages),
            None => {
                self.check_peer(peer)?;
                let pages = Pages::new(shared.arena.geometry(), &peer.geometry, &self.transfer)?;
                Arc::clone(progress.pages.insert(Arc::new(pages)))
            }
        };
        progress.first.get_or_insert_with(Instant::now);
        let number = progress.next_batch;
        if number >= pages.batches() {
            return Ok(None);
        }
        progress.next_batch += 1;
        drop(progress);
        Ok(Some((number, pages.batch(number, &self.transfer.blocks), number + 1 == pages.batches())))
    }

    fn check_peer(&self, found: &Introduction) -> Result<(), TransferError> {
        let peer = &self.transfer.peer;
        let error = |message| Err(TransferError::new(ErrorKind::Restarted, message));
        if !peer.engine_id.is_empty() && peer.engine_id != found.engine_id {
            return error(format!("KV peer {peer} is engine `{}` now, not `{}`", found.engine_id, peer.engine_id));
        }
        if peer.generation.is_some_and(|generation| generation != found.generation) {
            return error(format!("KV peer {peer} was restarted since it computed the prompt"));
        }
        Ok(())
    }

    fn moved(&self) -> Moved {
        let progress = self.progress();
        let first = progress.first.unwrap_or(self.started);
        Moved {
            bytes: progress.pages.as_ref().map_or(0, |pages| pages.bytes),
            pages: progress.pages.as_ref().map_or(0, |pages| pages.count),
            queue_ns: nanoseconds(first - self.started).saturating_sub(progress.connect_ns),
            connect_ns: progress.connect_ns,
            move_ns: nanoseconds(first.elapsed()),
        }
    }

    /// Counts a batch that is here and right. True if it was the last one.
    fn finish_batch(&self) -> bool {
        let mut progress = self.progress();
        progress.done_batches += 1;
        progress.pages.as_ref().is_some_and(|pages| progress.done_batches == pages.batches())
    }
}

/// A batch that was asked for.
struct Asked {
    active: Arc<Active>,
    number: u64,
    pages: BatchPages,
}

/// An open connection.
struct Connection {
    link: Link,
    peer: Introduction,
}

/// A thread that works on the queue of a peer.
struct Stream<'a> {
    queue: &'a Arc<PeerQueue>,
    shared: &'a Arc<Shared>,
    asked: VecDeque<Asked>,
}

impl<'a> Stream<'a> {
    fn new(queue: &'a Arc<PeerQueue>, shared: &'a Arc<Shared>) -> Self {
        Self { queue, shared, asked: VecDeque::new() }
    }

    fn run(&mut self) {
        lower_priority(self.shared.settings.niceness);
        let mut connection: Option<Connection> = None;
        while self.queue.wait(self.shared) {
            if connection.as_mut().is_some_and(|connection| connection.link.is_stale()) {
                connection = None;
            }
            let mut open = match connection.take() {
                Some(open) => open,
                None => match self.connect() {
                    Ok(Some(open)) => open,
                    Ok(None) => continue,
                    Err(error) => {
                        self.queue.fail_all(self.shared, &error);
                        continue;
                    }
                },
            };
            match self.work(&mut open) {
                Ok(()) => connection = Some(open),
                Err(error) => {
                    let error = error.of_peer(&self.queue.name);
                    for asked in self.asked.drain(..) {
                        self.shared.finish(asked.active.transfer.id, Err(error.clone()));
                    }
                }
            }
        }
    }

    /// Connects and presents this engine. None if nothing waits any more.
    fn connect(&self) -> Result<Option<Connection>, TransferError> {
        let front = self.queue.front();
        if front.as_ref().is_some_and(|active| active.is_over.load(Ordering::Acquire)) {
            self.queue.lock().transfers.retain(|active| !active.is_over.load(Ordering::Acquire));
            return Ok(None);
        }
        let began = Instant::now();
        let limit = began + self.shared.settings.connect_timeout;
        let until = front.as_ref().map_or(limit, |active| limit.min(active.deadline));
        let connection = self.connect_until(until)?;
        if let Some(active) = front {
            let mut progress = active.progress();
            if progress.first.is_none() {
                progress.connect_ns = nanoseconds(began.elapsed());
            }
        }
        Ok(Some(connection))
    }

    fn connect_until(&self, until: Instant) -> Result<Connection, TransferError> {
        let name = &self.queue.name;
        let unreachable = |error: &dyn std::fmt::Display| {
            TransferError::new(ErrorKind::Unreachable, format!("cannot connect to KV peer {name}: {error}"))
        };
        let host = self.queue.host.trim_start_matches('[').trim_end_matches(']');
        let addresses = (host, self.queue.port).to_socket_addrs().map_err(|error| unreachable(&error))?;
        let mut last = None;
        let mut stream = None;
        for address in addresses {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, left) {
                Ok(connected) => {
                    stream = Some(connected);
                    break;
                }
                Err(error) => last = Some(error),
            }
        }
        let stream = match (stream, last) {
            (Some(stream), _) => stream,
            (None, Some(error)) => return Err(unreachable(&error)),
            (None, None) => return Err(unreachable(&"the host has no address")),
        };
        let greet = || -> Result<(Link, Message), LinkError> {
            let mut link = Link::new(stream, Arc::clone(&self.shared.stop))?;
            link.open(&Message::Hello(self.shared.introduction.clone()), until)?;
            link.read_preface(until)?;
            let answer = link.receive(until)?;
            Ok((link, answer))
        };
        match greet().map_err(|error| error.of_peer(name))? {
            (link, Message::Welcome(peer)) => Ok(Connection { link, peer }),
            (_, Message::Refused { kind, message }) => {
                Err(TransferError::new(kind, format!("KV peer {name} refuses: {message}")))
            }
            _ => Err(LinkError::Unexpected("expected Welcome").of_peer(name)),
        }
    }

    /// Works until nothing is left.
    fn work(&mut self, connection: &mut Connection) -> Result<(), LinkError> {
        loop {
            while self.asked.len() < WINDOW {
                let Some(job) = self.queue.take(self.shared, &connection.peer, self.asked.is_empty()) else { break };
                self.begin(connection, job)?;
            }
            let Some(asked) = self.asked.front() else { return Ok(()) };
            let is_over = asked.active.is_over.load(Ordering::Acquire);
            self.receive(connection, is_over)?;
        }
    }

    fn begin(&mut self, connection: &mut Connection, job: Job) -> Result<(), LinkError> {
        let until = Instant::now() + self.shared.settings.patience;
        match job {
            Job::Notice(notice) => {
                connection.link.send(&Message::Notice(notice), until)?;
                self.shared.statistics().peer(&self.queue.name).notices += 1;
                Ok(())
            }
            Job::Batch { active, number, pages } => {
                let (request, spans) = (active.transfer.request.clone(), pages.remote.clone());
                let message = match active.transfer.direction {
                    Direction::Read => Message::Read { batch: number, request, spans },
                    Direction::Write => Message::Write { batch: number, request, spans, bytes: pages.bytes() },
                };
                let is_write = active.transfer.direction == Direction::Write;
                self.asked.push_back(Asked { active, number, pages });
                connection.link.send(&message, until)?;
                if is_write {
                    self.send_pages(connection)?;
                    self.receive(connection, false)?;
                }
                Ok(())
            }
        }
    }

    /// Sends the pages of the batch that was begun last.
    fn send_pages(&mut self, connection: &mut Connection) -> Result<(), LinkError> {
        let Some(asked) = self.asked.back() else { return Ok(()) };
        let (active, pages, arena) = (&asked.active, &asked.pages, &self.shared.arena);
        let contents: std::collections::HashMap<u32, u64> =
            active.transfer.blocks.iter().map(|pair| (pair.local, pair.content)).collect();
        let mut last = None;
        for span in pages.local.iter().filter(|span| last.replace(span.block) != Some(span.block)) {
            arena.materialize(span.block);
        }
        let is_right = |block: u32, content: Option<u64>| {
            !active.is_over.load(Ordering::Acquire) && content.is_some() && content.as_ref() == contents.get(&block)
        };
        connection.link.send_pages(arena, &pages.local, is_right, self.shared.settings.patience).map(|_| ())
    }

    /// Receives the answer to the oldest batch. Pages of a transfer that is over are passed over.
    fn receive(&mut self, connection: &mut Connection, is_over: bool) -> Result<(), LinkError> {
        let patience = self.shared.settings.patience;
        let answer = connection.link.receive(Instant::now() + patience)?;
        let Some(asked) = self.asked.front() else { return Ok(()) };
        let (id, direction) = (asked.active.transfer.id, asked.active.transfer.direction);
        let peer = &self.queue.name;
        let problem = match answer {
            Message::Data { batch, bytes } if batch == asked.number && direction == Direction::Read => {
                if bytes != asked.pages.bytes() {
                    return Err(LinkError::Unexpected("Data of another length than was asked for"));
                }
                if is_over {
                    connection.link.discard_pages(bytes, patience)?;
                    None
                } else {
                    self.receive_pages(connection)?
                }
            }
            Message::Written { batch } if batch == asked.number && direction == Direction::Write => None,
            Message::Failed { batch, kind, message } if batch == asked.number => {
                Some(TransferError::new(kind, format!("KV peer {peer}: {message}")))
            }
            _ => return Err(LinkError::Unexpected("expected the answer to a batch")),
        };
        let Some(asked) = self.asked.pop_front() else { return Ok(()) };
        match problem {
            Some(error) => {
                self.shared.finish(id, Err(error));
            }
            None if asked.active.finish_batch() => self.queue.complete(self.shared, &asked.active),
            None => {}
        }
        Ok(())
    }

    fn receive_pages(&self, connection: &mut Connection) -> Result<Option<TransferError>, LinkError> {
        let Some(asked) = self.asked.front() else { return Ok(None) };
        let (active, pages) = (&asked.active, &asked.pages);
        let (arena, id, peer) = (&self.shared.arena, active.transfer.id, &self.queue.name);
        let mut wrong = None;
        let received =
            connection.link.receive_pages(arena, id, &pages.local, self.shared.settings.patience, |index| {
                let span = &pages.local[index];
                if active.corrupts.swap(false, Ordering::Relaxed) {
                    arena.corrupt(span, id);
                }
                let offset = arena.first_wrong(span, pages.contents[index]);
                wrong = wrong.or(offset.map(|offset| (*span, offset)));
            })?;
        let error = |kind, message: String| Some(TransferError::new(kind, format!("KV peer {peer}: {message}")));
        Ok(match (received, wrong) {
            (Received::Whole, None) | (Received::Discarded, _) => None,
            (Received::Whole, Some((span, offset))) => error(ErrorKind::Corrupt, wrong_byte(&span, offset)),
            (Received::Failed(kind), _) => error(kind, "the blocks were freed while they were read".to_owned()),
        })
    }
}
