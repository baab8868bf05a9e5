//! One connection: frames and pages over a socket, with a deadline for each wait.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::arena::{Arena, Span};
use crate::error::{ErrorKind, TransferError};
use crate::tcp::frame::{
    DecodeError, HEADER_BYTES, Header, MAGIC, Message, PREFACE_BYTES, TRAILER_BYTES, Trailer, check_preface, preface,
};
use crate::tcp::socket::Socket;
use crate::tcp::tls::{self, TcpTls};

/// Maximum bytes in one system call. Locks of blocks are held as long as the call. In a kernel without preemption,
/// an engine's step that is due waits for the end of the call.
const CALL_BYTES: u32 = 64 << 10;
/// Maximum buffers in one system call (the system accepts 1,024).
const CALL_BUFFERS: usize = 512;
/// Socket buffer size of a connection within a host; the system doubles it. The kernel delivers sent bytes on the
/// processors that steps need, without interruption for as many bytes as the buffers hold.
const HOST_BUFFER_BYTES: usize = 256 << 10;
/// Number of page bytes after which a thread yields. Otherwise an engine's step waits for the rest of the thread's
/// time slice, which is milliseconds whatever the niceness.
const YIELD_BYTES: usize = 128 << 10;
/// Interval at which a waiting thread checks whether the plane has been stopped.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer did not answer in time")]
    TimedOut,
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("unexpected message: {0}")]
    Unexpected(&'static str),
    #[error("TLS failed: {0}")]
    Tls(String),
    #[error("the plane is stopped")]
    Stopped,
}

impl LinkError {
    fn of_io(error: io::Error) -> Self {
        tls::reason(error).map_or_else(Self::Io, Self::Tls)
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io(_) | Self::Closed => ErrorKind::PeerLost,
            Self::TimedOut => ErrorKind::TimedOut,
            Self::Tls(_) => ErrorKind::Refused,
            Self::Decode(_) | Self::Unexpected(_) => ErrorKind::Protocol,
            Self::Stopped => ErrorKind::Cancelled,
        }
    }

    /// This error as the failure of a transfer with `peer`.
    pub(super) fn of_peer(&self, peer: &str) -> TransferError {
        TransferError::new(self.kind(), format!("KV peer {peer}: {self}"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// All pages were written to the arena.
    Whole,
    /// Some pages were not written, because their blocks belong to another transfer by now.
    Discarded,
    /// The peer reports why the pages are invalid.
    Failed(ErrorKind),
}

/// Whether both ends are on this host. Between hosts, the system adapts the buffers to the network's latency.
fn is_within_host(stream: &TcpStream) -> io::Result<bool> {
    let (here, there) = (stream.local_addr()?.ip(), stream.peer_addr()?.ip());
    Ok(here == there || here.is_loopback())
}

/// The state of a connection's thread that other threads can see.
#[derive(Default)]
pub(super) struct Watch {
    /// Since when the thread waits for the peer: the first wait after the last progress.
    waits_since: Mutex<Option<Instant>>,
    is_cut: AtomicBool,
}

impl Watch {
    fn waits_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.waits_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn advance(&self) {
        *self.waits_since() = None;
    }

    /// Time for which the thread has waited for the peer.
    pub(super) fn waited(&self) -> Duration {
        self.waits_since().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Cuts the connection: the thread stops waiting.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
    }
}

pub(super) struct Link {
    socket: Socket,
    stop: Arc<AtomicBool>,
    watch: Arc<Watch>,
    /// Number of page bytes since the thread last yielded.
    bytes_since_yield: usize,
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Link {
    /// Takes over a connected socket.
    pub(super) fn new(stream: TcpStream, stop: Arc<AtomicBool>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // Best effort: detects within a minute that the peer's machine has failed, independent of the deadlines.
        let keepalive = || {
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, Duration::from_secs(20))?;
            sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(10))?;
            sockopt::set_tcp_keepcnt(&stream, 4)
        };
        _ = keepalive();
        if is_within_host(&stream)? {
            sockopt::set_socket_recv_buffer_size(&stream, HOST_BUFFER_BYTES)?;
            sockopt::set_socket_send_buffer_size(&stream, HOST_BUFFER_BYTES)?;
        }
        Ok(Self { socket: Socket::Plain(stream), stop, watch: Arc::default(), bytes_since_yield: 0 })
    }

    /// Lets another thread watch the waits.
    pub(super) fn set_watch(&mut self, watch: Arc<Watch>) {
        self.watch = watch;
    }

    /// Starts TLS with a peer: as a client that has connected to `host`, or as a server without `host`.
    pub(super) fn with_tls(self, tls: &TcpTls, host: Option<&str>, until: Instant) -> Result<Self, LinkError> {
        let Self { socket, stop, watch, .. } = self;
        let stream = match socket {
            Socket::Plain(stream) => stream,
            socket @ Socket::Tls(_) => return Ok(Self { socket, stop, watch, bytes_since_yield: 0 }),
        };
        let stream = match host {
            Some(host) => tls.connect(stream, host),
            None => tls.accept(stream),
        };
        let socket = Socket::Tls(Box::new(stream.map_err(LinkError::Tls)?));
        let mut link = Self { socket, stop, watch, bytes_since_yield: 0 };
        loop {
            match link.socket.advance() {
                Ok(()) => return Ok(link),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let writes = link.socket.interest(PollFlags::empty());
                    let interest = if writes.is_empty() { PollFlags::IN } else { writes };
                    if !link.wait(interest, until)? {
                        return Err(LinkError::TimedOut);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(LinkError::Closed),
                Err(error) => return Err(LinkError::of_io(error)),
            }
        }
    }

    /// Whether the peer begins with the opening of this protocol rather than with TLS.
    pub(super) fn begins_plainly(&mut self, until: Instant) -> Result<bool, LinkError> {
        let mut first = [0];
        let peeked = self.retry(PollFlags::IN, until, |socket| match socket {
            Socket::Plain(stream) => stream.peek(&mut first),
            Socket::Tls(_) => Ok(0),
        })?;
        if peeked == 0 { Err(LinkError::Closed) } else { Ok(first[0] == MAGIC[0]) }
    }

    /// Records page bytes, and yields to other threads after many of them.
    fn worked(&mut self, bytes: usize) {
        self.watch.advance();
        self.bytes_since_yield += bytes;
        if self.bytes_since_yield >= YIELD_BYTES {
            self.bytes_since_yield = 0;
            std::thread::yield_now();
        }
    }

    /// Waits until the socket can be read or written. Returns `false` after `until`.
    fn wait(&self, for_what: PollFlags, until: Instant) -> Result<bool, LinkError> {
        self.watch.waits_since().get_or_insert_with(Instant::now);
        loop {
            if self.stop.load(Ordering::Acquire) {
                return Err(LinkError::Stopped);
            }
            if self.watch.is_cut.load(Ordering::Acquire) {
                return Err(LinkError::TimedOut);
            }
            let left = until.saturating_duration_since(Instant::now());
            let slice = left.min(STOP_INTERVAL);
            let timeout = Timespec { tv_sec: slice.as_secs() as i64, tv_nsec: slice.subsec_nanos().into() };
            let mut fds = [PollFd::new(&self.socket, for_what)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(LinkError::Io(error.into())),
            }
        }
    }

    /// Repeats `call` until it does not have to wait.
    fn retry<T>(
        &mut self,
        for_what: PollFlags,
        until: Instant,
        mut call: impl FnMut(&mut Socket) -> io::Result<T>,
    ) -> Result<T, LinkError> {
        loop {
            match call(&mut self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(self.socket.interest(for_what), until)? {
                        return Err(LinkError::TimedOut);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(LinkError::of_io(error)),
                Ok(value) => return Ok(value),
            }
        }
    }

    /// Waits for the next frame to begin. Returns `false` after `until`.
    pub(super) fn wait_for_frame(&mut self, until: Instant) -> Result<bool, LinkError> {
        loop {
            if self.socket.has_received().map_err(LinkError::of_io)? {
                return Ok(true);
            }
            let comes = self.wait(PollFlags::IN, until)?;
            if !comes || matches!(self.socket, Socket::Plain(_)) {
                return Ok(comes);
            }
        }
    }

    /// Whether an idle connection is unusable, because the peer has closed it or has sent an unexpected message.
    pub(super) fn is_stale(&mut self) -> bool {
        !matches!(self.wait_for_frame(Instant::now()), Ok(false))
    }

    fn read_exact(&mut self, buffer: &mut [u8], until: Instant) -> Result<(), LinkError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.retry(PollFlags::IN, until, |socket| socket.read(&mut buffer[done..]))? {
                0 => return Err(LinkError::Closed),
                read => done += read,
            }
        }
        Ok(())
    }

    fn write_all(&mut self, buffer: &[u8], until: Instant) -> Result<(), LinkError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.retry(PollFlags::OUT, until, |socket| socket.write(&buffer[done..]))? {
                0 => return Err(LinkError::Closed),
                written => done += written,
            }
        }
        self.retry(PollFlags::OUT, until, |socket| socket.flush())
    }

    /// Sends the opening bytes of a connection and the first message.
    pub(super) fn open(&mut self, message: &Message, until: Instant) -> Result<(), LinkError> {
        self.write_all(&[&preface()[..], &message.encode()].concat(), until)
    }

    pub(super) fn read_preface(&mut self, until: Instant) -> Result<(), LinkError> {
        let mut bytes = [0; PREFACE_BYTES];
        self.read_exact(&mut bytes, until)?;
        Ok(check_preface(&bytes)?)
    }

    pub(super) fn send(&mut self, message: &Message, until: Instant) -> Result<(), LinkError> {
        self.write_all(&message.encode(), until)
    }

    pub(super) fn receive(&mut self, until: Instant) -> Result<Message, LinkError> {
        let mut header = [0; HEADER_BYTES];
        self.read_exact(&mut header, until)?;
        let header = Header::decode(&header)?;
        let mut body = vec![0; header.body_bytes()];
        self.read_exact(&mut body, until)?;
        Ok(Message::decode(&header, &body)?)
    }

    /// Sends the pages of a batch, and the trailer. `is_right` returns whether a block still has its content. Pages of
    /// other blocks are sent as zeroes and reported in the trailer. `patience` is the maximum wait without progress.
    pub(super) fn send_pages(
        &mut self,
        arena: &Arena,
        spans: &[Span],
        is_right: impl Fn(u32, Option<u64>) -> bool,
        patience: Duration,
    ) -> Result<bool, LinkError> {
        let mut failure = None;
        let (mut place, mut call) = (Place::default(), Vec::new());
        while place.next_call(spans, &mut call) {
            let until = Instant::now() + patience;
            let sent = self.retry(PollFlags::OUT, until, |socket| {
                arena.with_spans(&call, &is_right, |slices| socket.write_vectored(slices)).transpose()
            })?;
            match sent {
                Some(0) => return Err(LinkError::Closed),
                Some(sent) => {
                    place.advance(spans, sent);
                    self.worked(sent);
                }
                None => {
                    failure = Some(ErrorKind::NotHeld);
                    self.send_zeroes(place.left(spans), patience)?;
                    break;
                }
            }
        }
        let trailer = Trailer { failure };
        self.write_all(&trailer.encode(), Instant::now() + patience)?;
        Ok(failure.is_none())
    }

    fn send_zeroes(&mut self, mut left: u64, patience: Duration) -> Result<(), LinkError> {
        let zeroes = [0; 16 << 10];
        while left > 0 {
            let len = left.min(zeroes.len() as u64);
            self.write_all(&zeroes[..len as usize], Instant::now() + patience)?;
            left -= len;
        }
        Ok(())
    }

    /// Receives the pages of a batch into the blocks of the transfer `owner`, and the trailer. `arrived` is called
    /// with each complete span. Pages whose blocks belong to another transfer by now are skipped.
    pub(super) fn receive_pages(
        &mut self,
        arena: &Arena,
        owner: u64,
        spans: &[Span],
        patience: Duration,
        mut arrived: impl FnMut(usize),
    ) -> Result<Received, LinkError> {
        let (mut place, mut call) = (Place::default(), Vec::new());
        while place.next_call(spans, &mut call) {
            let until = Instant::now() + patience;
            let received = self.retry(PollFlags::IN, until, |socket| {
                arena.with_spans_mut(owner, &call, |slices| socket.read_vectored(slices)).transpose()
            })?;
            match received {
                Some(0) => return Err(LinkError::Closed),
                Some(received) => {
                    let before = place.index;
                    place.advance(spans, received);
                    (before..place.index).for_each(&mut arrived);
                    self.worked(received);
                }
                None => {
                    self.discard(place.left(spans), patience)?;
                    self.read_trailer(patience)?;
                    return Ok(Received::Discarded);
                }
            }
        }
        let trailer = self.read_trailer(patience)?;
        Ok(match trailer.failure {
            Some(kind) => Received::Failed(kind),
            None => Received::Whole,
        })
    }

    /// Receives a batch that is no longer needed.
    pub(super) fn discard_pages(&mut self, bytes: u64, patience: Duration) -> Result<(), LinkError> {
        self.discard(bytes, patience)?;
        self.read_trailer(patience).map(|_| ())
    }

    fn discard(&mut self, mut left: u64, patience: Duration) -> Result<(), LinkError> {
        let mut scratch = vec![0; left.min(256 << 10) as usize];
        while left > 0 {
            let len = left.min(scratch.len() as u64) as usize;
            self.read_exact(&mut scratch[..len], Instant::now() + patience)?;
            left -= len as u64;
        }
        Ok(())
    }

    fn read_trailer(&mut self, patience: Duration) -> Result<Trailer, LinkError> {
        let mut bytes = [0; TRAILER_BYTES];
        self.read_exact(&mut bytes, Instant::now() + patience)?;
        Ok(Trailer::decode(&bytes)?)
    }
}

/// Progress in a sequence of spans.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Index of the next span.
    index: usize,
    /// Number of bytes of this span that are done.
    offset: usize,
}

impl Place {
    /// Replaces `call` by the spans of the next system call: whole spans and parts of spans. Returns `false` at the
    /// end.
    fn next_call(&self, spans: &[Span], call: &mut Vec<Span>) -> bool {
        call.clear();
        let (mut offset, mut left) = (self.offset as u32, CALL_BYTES);
        for span in spans[self.index..].iter().take(CALL_BUFFERS) {
            let bytes = (span.bytes - offset).min(left);
            call.push(Span { offset: span.offset + offset, bytes, ..*span });
            (offset, left) = (0, left - bytes);
            if left == 0 {
                break;
            }
        }
        !call.is_empty()
    }

    fn advance(&mut self, spans: &[Span], bytes: usize) {
        self.offset += bytes;
        while let Some(span) = spans.get(self.index).filter(|span| span.bytes as usize <= self.offset) {
            self.offset -= span.bytes as usize;
            self.index += 1;
        }
    }

    fn left(&self, spans: &[Span]) -> u64 {
        let all: u64 = spans[self.index..].iter().map(|span| u64::from(span.bytes)).sum();
        all - self.offset as u64
    }
}
