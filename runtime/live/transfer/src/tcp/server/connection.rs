//! The connection of one peer: its identification and its requests.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::arena::Span;
use crate::error::{ErrorKind, TransferError};
use crate::tcp::frame::{Message, PeerInfo};
use crate::tcp::link::{Link, LinkError, Received, Watch};
use crate::tcp::shared::{ExpectedState, HoldState, Shared};

/// Maximum number of connections of identified peers; more are refused.
const MAX_CONNECTIONS: usize = 1024;
/// Time limit for a peer to identify itself.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a thread waits for the next message of a peer before it leaves the connection.
const LINGER: Duration = Duration::from_millis(20);

pub(super) struct Connection {
    link: Link,
    shared: Arc<Shared>,
    /// The peer's name in the totals.
    peer: String,
    _counted: Counted,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// Opens the connection of a peer that has sent something, with TLS if configured, and reads the peer's identity.
/// `count` is the number of identified peers.
pub(super) fn greeted(
    stream: TcpStream,
    shared: &Arc<Shared>,
    watch: &Arc<Watch>,
    count: &Arc<AtomicUsize>,
) -> Result<Connection, LinkError> {
    let mut link = opened(stream, shared, watch)?;
    let counted = Counted::new(count);
    let hello = greet(&mut link, &shared.peer_info, counted.number)?;
    let peer = if hello.engine_id.is_empty() { "unnamed".to_owned() } else { hello.engine_id };
    Ok(Connection { link, shared: Arc::clone(shared), peer, _counted: counted })
}

/// Starts TLS, if configured.
fn opened(stream: TcpStream, shared: &Shared, watch: &Arc<Watch>) -> Result<Link, LinkError> {
    let until = Instant::now() + GREETING_TIMEOUT;
    let mut link = Link::new(stream, Arc::clone(&shared.stop))?;
    link.set_watch(Arc::clone(watch));
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

/// Reads the peer's identity, and refuses the peer if there are too many.
fn greet(link: &mut Link, own: &PeerInfo, number: usize) -> Result<PeerInfo, LinkError> {
    let until = Instant::now() + GREETING_TIMEOUT;
    if let Err(error) = link.read_preface(until) {
        if matches!(error, LinkError::Decode(_)) {
            // A peer with another version gets an error with this version; a peer with another protocol gets text
            // that it may show.
            let refused = Message::Refused { kind: ErrorKind::Protocol, message: error.to_string() };
            link.open(&refused, until)?;
        }
        tracing::warn!("a KV connection was refused: {error}");
        return Err(error);
    }
    let Message::Hello(hello) = link.receive(until)? else {
        return Err(LinkError::Unexpected("expected Hello"));
    };
    if number > MAX_CONNECTIONS {
        let message = format!("more than {MAX_CONNECTIONS} KV connections");
        link.open(&Message::Refused { kind: ErrorKind::Refused, message }, until)?;
        return Err(LinkError::Closed);
    }
    link.open(&Message::Welcome(own.clone()), until)?;
    Ok(hello)
}

/// Counts a connection until it is dropped.
struct Counted {
    count: Arc<AtomicUsize>,
    /// The number of connections, including this one.
    number: usize,
}

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        Self { number: count.fetch_add(1, Ordering::Relaxed) + 1, count: Arc::clone(count) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Serves the peer until it sends no more requests, or until other peers wait for a thread.
    pub(super) fn take_turn(
        mut self,
        watch: &Arc<Watch>,
        do_others_wait: impl Fn() -> bool,
    ) -> Result<Self, LinkError> {
        self.link.set_watch(Arc::clone(watch));
        loop {
            let linger = if do_others_wait() { Duration::ZERO } else { LINGER };
            if !self.link.wait_for_frame(Instant::now() + linger)? {
                return Ok(self);
            }
            self.serve()?;
            watch.advance();
        }
    }

    fn serve(&mut self) -> Result<(), LinkError> {
        let patience = self.shared.settings.patience;
        match self.link.receive(Instant::now() + patience)? {
            Message::Read { batch, request, spans } => self.read(batch, &request, &spans),
            Message::Write { batch, request, spans, bytes } => self.write(batch, &request, &spans, bytes),
            Message::Notice(text) => {
                self.shared.push_notice(text);
                Ok(())
            }
            Message::Ping => self.link.send(&Message::Pong, Instant::now() + patience),
            _ => Err(LinkError::Unexpected("expected a request")),
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

    /// The hold that lets a peer read these parts of pages, once all of their pages are written.
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
            if self.shared.arena.materialize(span.block).is_none() && !self.shared.arena.back(span.block) {
                return Err(self.shared.arena.no_room());
            }
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
            // The bytes that follow cannot be distinguished from the next message.
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

/// The message that a byte differs from the pattern.
pub(in crate::tcp) fn wrong_byte(span: &Span, offset: usize) -> String {
    let (layer, kind) = (span.region / 2, if span.region.is_multiple_of(2) { "K" } else { "V" });
    format!(
        "byte {offset} of the {kind} page of block {} in layer {layer}, rank {}, is not that of the block's content",
        span.block, span.rank
    )
}
