//! The side that peers connect to: one thread for each connection.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::arena::Span;
use crate::error::{ErrorKind, TransferError};
use crate::priority::lower_priority;
use crate::tcp::frame::Message;
use crate::tcp::link::{Link, LinkError, Received};
use crate::tcp::shared::{ExpectedState, HoldState, Shared};
use crate::tcp::spawn;

/// Connections at once; more are refused.
const MAX_CONNECTIONS: usize = 1024;
/// Time for a peer to present itself.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a connection without requests is closed. Peers close theirs earlier.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// The listening side of a plane.
pub(super) struct Server {
    thread: Option<JoinHandle<()>>,
    connections: Connections,
}

type Connections = Arc<Mutex<Vec<JoinHandle<()>>>>;

impl Server {
    /// Accepts connections until the plane is stopped.
    pub(super) fn start(listener: TcpListener, shared: &Arc<Shared>) -> Result<Self, TransferError> {
        let connections = Connections::default();
        let (for_thread, shared) = (Arc::clone(&connections), Arc::clone(shared));
        let thread = spawn("kv-accept", move || accept(&listener, &shared, &for_thread))?;
        Ok(Self { thread: Some(thread), connections })
    }

    /// Waits for all threads, after the plane was stopped.
    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
        for thread in self.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>, connections: &Connections) {
    let count = Arc::new(AtomicUsize::new(0));
    let interval = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    while !shared.is_stopped() {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        _ = poll(&mut fds, Some(&interval));
        loop {
            match listener.accept() {
                Ok((stream, address)) => {
                    let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
                    connections.retain(|thread| !thread.is_finished());
                    connections.extend(start_connection(stream, address, shared, &count));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::warn!("cannot accept a KV connection: {error}");
                    std::thread::sleep(Duration::from_millis(50));
                    break;
                }
            }
        }
    }
}

fn start_connection(
    stream: TcpStream,
    address: SocketAddr,
    shared: &Arc<Shared>,
    count: &Arc<AtomicUsize>,
) -> Option<JoinHandle<()>> {
    let (shared, count) = (Arc::clone(shared), Arc::clone(count));
    let is_over = count.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS;
    let serve = move || {
        lower_priority(shared.settings.niceness);
        let served = opened(stream, &shared)
            .and_then(|link| Connection { link, shared: &shared, peer: String::new() }.serve(is_over));
        count.fetch_sub(1, Ordering::Relaxed);
        match served {
            Ok(()) | Err(LinkError::Closed | LinkError::Stopped) => {}
            Err(error) => tracing::debug!(%address, "a KV connection ended: {error}"),
        }
    };
    match spawn("kv-serve", serve) {
        Ok(thread) => Some(thread),
        Err(error) => {
            tracing::warn!("{error}");
            None
        }
    }
}

/// A connection that can be read; with TLS, if this engine has that.
fn opened(stream: TcpStream, shared: &Shared) -> Result<Link, LinkError> {
    let until = Instant::now() + GREETING_TIMEOUT;
    let mut link = Link::new(stream, Arc::clone(&shared.stop))?;
    let Some(tls) = &shared.settings.tls else { return Ok(link) };
    let secured = if link.begins_plainly(until)? {
        link.read_preface(until)?;
        link.receive(until)?;
        let message = "KV transfers here need TLS: give the peer --kv-transfer-tls-cert".to_owned();
        link.open(&Message::Refused { kind: ErrorKind::Refused, message }, until)?;
        Err(LinkError::Tls("the peer speaks no TLS".to_owned()))
    } else {
        link.with_tls(tls, None, until)
    };
    secured.inspect_err(|error| tracing::warn!("a KV connection was refused: {error}"))
}

struct Connection<'a> {
    link: Link,
    shared: &'a Shared,
    /// The name by which its bytes are counted.
    peer: String,
}

impl Connection<'_> {
    fn serve(&mut self, is_over_limit: bool) -> Result<(), LinkError> {
        let until = Instant::now() + GREETING_TIMEOUT;
        if let Err(error) = self.link.read_preface(until) {
            if matches!(error, LinkError::Decode(_)) {
                // Another version learns which one this is; another protocol gets a text that it shows.
                let refused = Message::Refused { kind: ErrorKind::Protocol, message: error.to_string() };
                self.link.open(&refused, until)?;
            }
            tracing::warn!("a KV connection was refused: {error}");
            return Err(error);
        }
        let hello = match self.link.receive(until)? {
            Message::Hello(hello) => hello,
            _ => return Err(LinkError::Unexpected("expected Hello")),
        };
        if is_over_limit {
            let message = format!("more than {MAX_CONNECTIONS} KV connections");
            return self.link.open(&Message::Refused { kind: ErrorKind::Refused, message }, until);
        }
        self.peer = if hello.engine_id.is_empty() { "unnamed".to_owned() } else { hello.engine_id };
        self.link.open(&Message::Welcome(self.shared.peer_info.clone()), until)?;
        loop {
            if !self.link.wait_for_frame(Instant::now() + IDLE_TIMEOUT)? {
                return Ok(());
            }
            let patience = self.shared.settings.patience;
            match self.link.receive(Instant::now() + patience)? {
                Message::Read { batch, request, spans } => self.read(batch, &request, &spans)?,
                Message::Write { batch, request, spans, bytes } => self.write(batch, &request, &spans, bytes)?,
                Message::Notice(text) => self.shared.push_notice(text),
                Message::Ping => self.link.send(&Message::Pong, Instant::now() + patience)?,
                _ => return Err(LinkError::Unexpected("expected a request")),
            }
        }
    }

    fn fail(&mut self, batch: u64, kind: ErrorKind, message: String) -> Result<(), LinkError> {
        tracing::debug!(peer = self.peer, %kind, "a KV batch is refused: {message}");
        let patience = self.shared.settings.patience;
        self.link.send(&Message::Failed { batch, kind, message }, Instant::now() + patience)
    }

    fn read(&mut self, batch: u64, request: &str, spans: &[Span]) -> Result<(), LinkError> {
        let hold = match self.readable(request, spans) {
            Ok(hold) => hold,
            Err(error) => return self.fail(batch, error.kind, error.message),
        };
        let patience = self.shared.settings.patience;
        let bytes = spans.iter().map(|span| u64::from(span.bytes)).sum();
        self.link.send(&Message::Data { batch, bytes }, Instant::now() + patience)?;
        let is_right = |block: u32, content: Option<u64>| {
            !hold.is_over() && content.is_some() && content.as_ref() == hold.blocks.get(&block)
        };
        if self.link.send_pages(&self.shared.arena, spans, is_right, patience)? {
            let mut statistics = self.shared.statistics();
            let peer = statistics.peer(&self.peer);
            peer.sent_bytes += bytes;
            peer.sent_pages += spans.len() as u64;
        }
        Ok(())
    }

    /// The hold that lets a peer read these parts of pages, all of which are written then.
    fn readable(&self, request: &str, spans: &[Span]) -> Result<Arc<HoldState>, TransferError> {
        let error = |message: String| TransferError::new(ErrorKind::NotHeld, message);
        let hold = self.shared.held(request).ok_or_else(|| {
            error(format!(
                "prompt `{request}` is not held here: its lease has ended, its blocks were read already, or the engine was \
                 restarted"
            ))
        })?;
        self.check_spans(spans)?;
        let mut last = None;
        for span in spans.iter().filter(|span| last.replace(span.block) != Some(span.block)) {
            if !hold.blocks.contains_key(&span.block) {
                return Err(error(format!("block {} is not one of prompt `{request}`", span.block)));
            }
            self.shared.arena.materialize(span.block);
        }
        Ok(hold)
    }

    fn check_spans(&self, spans: &[Span]) -> Result<(), TransferError> {
        let geometry = self.shared.arena.geometry();
        match spans.iter().find(|span| span.bytes == 0 || !span.is_within(geometry)) {
            Some(span) => Err(TransferError::new(ErrorKind::Protocol, format!("there is no page part {span:?}"))),
            None => Ok(()),
        }
    }

    fn write(&mut self, batch: u64, request: &str, spans: &[Span], bytes: u64) -> Result<(), LinkError> {
        let patience = self.shared.settings.patience;
        let began = Instant::now();
        let total: u64 = spans.iter().map(|span| u64::from(span.bytes)).sum();
        if total != bytes {
            // What follows cannot be told from the next message.
            return Err(LinkError::Unexpected("the pages of a Write have another length"));
        }
        let state = match self.writable(request, spans) {
            Ok(state) => state,
            Err(error) => {
                self.link.discard_pages(bytes, patience)?;
                return self.fail(batch, error.kind, error.message);
            }
        };
        let (arena, id) = (&self.shared.arena, state.id);
        let mut wrong = None;
        let received = self.link.receive_pages(arena, id, spans, patience, |index| {
            let span = &spans[index];
            if state.corrupts.swap(false, Ordering::Relaxed) {
                arena.corrupt(span, id);
            }
            let content = state.blocks.get(&span.block).copied().unwrap_or_default();
            let offset = arena.first_wrong(span, content);
            wrong = wrong.or(offset.map(|offset| (*span, offset)));
        })?;
        let problem = match (received, wrong) {
            (Received::Whole, None) => None,
            (Received::Whole, Some((span, offset))) => Some((ErrorKind::Corrupt, wrong_byte(&span, offset))),
            (Received::Discarded, _) => {
                Some((ErrorKind::NotHeld, format!("transfer `{request}` is not expected any more")))
            }
            (Received::Failed(kind), _) => Some((kind, "the peer gave up while it wrote".to_owned())),
        };
        match problem {
            None => {
                self.shared.wrote(&state, spans, began);
                self.link.send(&Message::Written { batch }, Instant::now() + patience)
            }
            Some((kind, message)) => {
                if kind != ErrorKind::NotHeld {
                    let message = format!("KV peer {}: {message}", self.peer);
                    self.shared.finish(id, Err(TransferError::new(kind, message)));
                }
                self.fail(batch, kind, message)
            }
        }
    }

    fn writable(&self, request: &str, spans: &[Span]) -> Result<Arc<ExpectedState>, TransferError> {
        let error = |message: String| TransferError::new(ErrorKind::NotHeld, message);
        let state = self
            .shared
            .expected(request)
            .ok_or_else(|| error(format!("transfer `{request}` is not expected here, or not any more")))?;
        self.check_spans(spans)?;
        let head_bytes = self.shared.arena.geometry().head_bytes();
        for span in spans {
            if !state.blocks.contains_key(&span.block) {
                return Err(error(format!("block {} is not expected by transfer `{request}`", span.block)));
            }
            if !span.offset.is_multiple_of(head_bytes) || !span.bytes.is_multiple_of(head_bytes) {
                return Err(TransferError::new(ErrorKind::Protocol, format!("{span:?} does not consist of heads")));
            }
        }
        let mut places: Vec<_> =
            spans.iter().map(|span| (span.rank, span.region, span.block, span.offset, span.bytes)).collect();
        places.sort_unstable();
        let overlaps = |one: &(u32, u32, u32, u32, u32), next: &(u32, u32, u32, u32, u32)| {
            (one.0, one.1, one.2) == (next.0, next.1, next.2) && one.3 + one.4 > next.3
        };
        if places.windows(2).any(|pair| overlaps(&pair[0], &pair[1])) {
            return Err(TransferError::new(ErrorKind::Protocol, "two parts of pages overlap"));
        }
        Ok(state)
    }
}

/// Says which byte is not as it must be.
pub(super) fn wrong_byte(span: &Span, offset: usize) -> String {
    let (layer, kind) = (span.region / 2, if span.region.is_multiple_of(2) { "K" } else { "V" });
    format!(
        "byte {offset} of the {kind} page of block {} in layer {layer}, rank {}, is not that of the block's content",
        span.block, span.rank
    )
}
