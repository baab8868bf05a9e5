//! A thread with a connection that works on the queue of a peer.

use std::collections::VecDeque;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::active::{Active, BatchPages};
use super::{Job, PeerQueue};
use crate::error::{ErrorKind, TransferError};
use crate::priority::lower_priority;
use crate::statistics::Direction;
use crate::tcp::frame::{Message, PeerInfo};
use crate::tcp::link::{Link, LinkError, Received};
use crate::tcp::server::wrong_byte;
use crate::tcp::shared::{Shared, nanoseconds};

/// Maximum number of batches that a stream has requested and not received.
const WINDOW: usize = 3;

struct Asked {
    active: Arc<Active>,
    number: u64,
    pages: BatchPages,
}

struct Connection {
    link: Link,
    peer: PeerInfo,
}

pub(super) struct Stream<'a> {
    queue: &'a Arc<PeerQueue>,
    shared: &'a Arc<Shared>,
    asked: VecDeque<Asked>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(queue: &'a Arc<PeerQueue>, shared: &'a Arc<Shared>) -> Self {
        Self { queue, shared, asked: VecDeque::new() }
    }

    pub(super) fn run(&mut self) {
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

    /// Connects and identifies this engine. Returns `None` if no transfer waits any more.
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
            if let Some(tls) = &self.shared.settings.tls {
                link = link.with_tls(tls, Some(host), until)?;
            }
            let opened = link.open(&Message::Hello(self.shared.peer_info.clone()), until);
            // A peer that refuses this engine's certificate sends the reason before it closes the connection.
            match (link.read_preface(until), opened) {
                (Err(error @ LinkError::Tls(_)), _) | (_, Err(error)) | (Err(error), Ok(())) => return Err(error),
                (Ok(()), Ok(())) => {}
            }
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

    /// Works until there is no work left.
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

    /// Receives the answer to the oldest batch. Pages of a transfer that has ended are skipped.
    fn receive(&mut self, connection: &mut Connection, is_over: bool) -> Result<(), LinkError> {
        let patience = self.shared.settings.patience;
        let answer = connection.link.receive(Instant::now() + patience)?;
        let Some(asked) = self.asked.front() else { return Ok(()) };
        let (id, direction) = (asked.active.transfer.id, asked.active.transfer.direction);
        let peer = &self.queue.name;
        let problem = match answer {
            Message::Data { batch, bytes } if batch == asked.number && direction == Direction::Read => {
                if bytes != asked.pages.bytes() {
                    return Err(LinkError::Unexpected("Data of another length than requested"));
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
