//! The side that peers connect to: one thread for each connection that has sent something.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
/// Connections without a thread.
const MAX_SILENT: usize = 256;
/// Connections with a thread whose peers have not presented themselves.
const MAX_GREETINGS: usize = 64;
/// Time that a connection has in either list. After it the oldest one is closed if another needs its place.
const GRACE: Duration = Duration::from_millis(500);
/// Time after which a full list is looked at again.
const RETRY: Duration = Duration::from_millis(10);
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
        let acceptor = Acceptor {
            shared: Arc::clone(shared),
            connections: Arc::clone(&connections),
            count: Arc::default(),
            greetings: Arc::default(),
            silent: VecDeque::new(),
        };
        let thread = spawn("kv-accept", move || acceptor.accept(&listener))?;
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

/// A connection that has sent nothing, or waits for a thread.
struct Silent {
    stream: TcpStream,
    address: SocketAddr,
    since: Instant,
}

/// Accepts connections, and starts a thread for each once it has sent something: a connection that says nothing takes
/// no more than its socket.
struct Acceptor {
    shared: Arc<Shared>,
    connections: Connections,
    /// Connections with a thread.
    count: Arc<AtomicUsize>,
    greetings: Arc<Greetings>,
    /// The oldest first.
    silent: VecDeque<Silent>,
}

impl Acceptor {
    fn accept(mut self, listener: &TcpListener) {
        while !self.shared.is_stopped() {
            self.wait(listener);
            while self.has_place() {
                match listener.accept() {
                    Ok((stream, address)) => {
                        self.silent.push_back(Silent { stream, address, since: Instant::now() });
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        tracing::warn!("cannot accept a KV connection: {error}");
                        std::thread::sleep(Duration::from_millis(50));
                        break;
                    }
                }
            }
        }
    }

    /// Waits for connections and for their first bytes, for a short time.
    fn wait(&mut self, listener: &TcpListener) {
        let interval = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let streams = self.silent.iter().map(|silent| silent.stream.as_fd());
        let mut fds: Vec<PollFd<'_>> = std::iter::once(listener.as_fd())
            .chain(streams)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if poll(&mut fds, Some(&interval)).is_err() {
            return;
        }
        let speaks: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut is_full = false;
        for (silent, speaks) in std::mem::take(&mut self.silent).into_iter().zip(speaks) {
            is_full |= speaks && !self.greetings.has_place();
            if speaks && !is_full {
                self.start(silent);
            } else if silent.since.elapsed() < GREETING_TIMEOUT {
                self.silent.push_back(silent);
            }
        }
        if is_full || self.silent.len() >= MAX_SILENT {
            std::thread::sleep(RETRY);
        }
    }

    /// Whether another connection can be accepted. The oldest silent one goes if it had its time.
    fn has_place(&mut self) -> bool {
        if self.silent.len() < MAX_SILENT {
            return true;
        }
        self.silent.pop_front_if(|oldest| oldest.since.elapsed() >= GRACE).is_some()
    }

    /// Starts the thread of a connection. Without one the connection is closed.
    fn start(&self, silent: Silent) {
        let Silent { stream, address, .. } = silent;
        let open = self.count.load(Ordering::Relaxed);
        if open >= MAX_CONNECTIONS + MAX_GREETINGS {
            return;
        }
        let greeting = match Greetings::begun(&self.greetings, &stream) {
            Ok(greeting) => greeting,
            Err(error) => return tracing::warn!(%address, "a KV connection was closed: {error}"),
        };
        let counted = Counted::new(&self.count);
        let shared = Arc::clone(&self.shared);
        let serve = move || {
            let _counted = counted;
            lower_priority(shared.settings.niceness);
            let served = opened(stream, &shared).and_then(|link| {
                let mut connection = Connection { link, shared: &shared, peer: String::new() };
                connection.greet(open >= MAX_CONNECTIONS)?;
                drop(greeting);
                connection.serve()
            });
            match served {
                Ok(()) | Err(LinkError::Closed | LinkError::Stopped) => {}
                Err(error) => tracing::debug!(%address, "a KV connection ended: {error}"),
            }
        };
        match spawn("kv-serve", serve) {
            Ok(thread) => {
                let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
                connections.retain(|thread| !thread.is_finished());
                connections.push(thread);
            }
            Err(error) => tracing::warn!(%address, "a KV connection was closed: {error}"),
        }
    }
}

/// Counts a connection as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections whose peers have not presented themselves, the oldest first.
#[derive(Default)]
struct Greetings {
    open: Mutex<VecDeque<(Instant, Arc<TcpStream>)>>,
}

impl Greetings {
    fn open(&self) -> MutexGuard<'_, VecDeque<(Instant, Arc<TcpStream>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another peer can present itself. The oldest one is cut off if it had its time.
    fn has_place(&self) -> bool {
        let mut open = self.open();
        if open.len() < MAX_GREETINGS {
            return true;
        }
        let late = open.pop_front_if(|(since, _)| since.elapsed() >= GRACE);
        // Its thread finds the end of the stream.
        late.is_some_and(|(_, stream)| stream.shutdown(Shutdown::Both).is_ok())
    }

    fn begun(greetings: &Arc<Self>, stream: &TcpStream) -> io::Result<Greeting> {
        let stream = Arc::new(stream.try_clone()?);
        greetings.open().push_back((Instant::now(), Arc::clone(&stream)));
        Ok(Greeting { stream, greetings: Arc::clone(greetings) })
    }
}

/// A peer that presents itself.
struct Greeting {
    stream: Arc<TcpStream>,
    greetings: Arc<Greetings>,
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.greetings.open().retain(|(_, stream)| !Arc::ptr_eq(stream, &self.stream));
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
    /// Learns who the peer is, and refuses it where there are too many.
    fn greet(&mut self, is_over_limit: bool) -> Result<(), LinkError> {
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
            self.link.open(&Message::Refused { kind: ErrorKind::Refused, message }, until)?;
            return Err(LinkError::Closed);
        }
        self.peer = if hello.engine_id.is_empty() { "unnamed".to_owned() } else { hello.engine_id };
        self.link.open(&Message::Welcome(self.shared.peer_info.clone()), until)
    }

    fn serve(&mut self) -> Result<(), LinkError> {
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
