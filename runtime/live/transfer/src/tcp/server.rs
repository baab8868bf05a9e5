//! The side that listens. One thread watches all connections, and a few others serve those with requests.

mod connection;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::connection::{Connection, GREETING_TIMEOUT};
use crate::error::{ErrorKind, TransferError};
use crate::priority::lower_priority;
use crate::tcp::link::{LinkError, Watch};
use crate::tcp::shared::Shared;
use crate::tcp::spawn;

pub(super) use self::connection::wrong_byte;

/// Maximum number of threads that serve connections. The allocator reserves 32 MiB of address space for each.
const MAX_TURNS: usize = 64;
/// Maximum number of serving threads whose peers have not identified themselves.
const MAX_GREETINGS: usize = 32;
/// Maximum number of connections that have sent nothing.
const MAX_SILENT: usize = 256;
/// Time that a connection may be silent, and that a peer may keep a thread waiting. After that, the connection is
/// closed if another one needs its place.
const GRACE: Duration = Duration::from_millis(500);
/// Delay before the next attempt to serve a connection for which there was no thread.
const RETRY: Duration = Duration::from_millis(10);
/// Time after which a connection without requests is closed. Peers close their connections earlier.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

pub(super) struct Server {
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Accepts connections until the plane is stopped.
    pub(super) fn start(listener: TcpListener, shared: &Arc<Shared>) -> Result<Self, TransferError> {
        let error =
            |error: io::Error| TransferError::new(ErrorKind::Local, format!("cannot watch KV connections: {error}"));
        let turns = Arc::new(Turns::new().map_err(error)?);
        let (returned, returns) = channel();
        let acceptor = Acceptor {
            shared: Arc::clone(shared),
            turns,
            count: Arc::default(),
            silent: VecDeque::new(),
            idle: VecDeque::new(),
            returned,
            returns,
            threads: Vec::new(),
        };
        let thread = spawn("kv-accept", move || acceptor.accept(&listener))?;
        Ok(Self { thread: Some(thread) })
    }

    /// Waits for all threads to end; the plane must be stopped.
    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// A connection that no thread serves.
struct Waiting<T> {
    connection: T,
    address: SocketAddr,
    since: Instant,
}

impl<T> Waiting<T> {
    fn new(connection: T, address: SocketAddr) -> Self {
        Self { connection, address, since: Instant::now() }
    }
}

/// Accepts connections, and assigns a thread to each connection that has sent something, until it is served. Other
/// connections take no thread.
struct Acceptor {
    shared: Arc<Shared>,
    turns: Arc<Turns>,
    /// Number of peers that have identified themselves.
    count: Arc<AtomicUsize>,
    /// Connections that have sent nothing, the oldest first.
    silent: VecDeque<Waiting<TcpStream>>,
    /// Connections of identified peers, the least recently served first.
    idle: VecDeque<Waiting<Connection>>,
    /// Threads return served connections here.
    returned: Sender<Waiting<Connection>>,
    returns: Receiver<Waiting<Connection>>,
    threads: Vec<JoinHandle<()>>,
}

impl Acceptor {
    fn accept(mut self, listener: &TcpListener) {
        while !self.shared.is_stopped() {
            self.wait(listener);
            while self.has_place() {
                match listener.accept() {
                    Ok((stream, address)) => self.silent.push_back(Waiting::new(stream, address)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        tracing::warn!("cannot accept a KV connection: {error}");
                        std::thread::sleep(Duration::from_millis(50));
                        break;
                    }
                }
            }
        }
        for thread in self.threads {
            _ = thread.join();
        }
    }

    /// Waits a short time for connections and for their bytes, and serves those that have sent some, identified
    /// peers first.
    fn wait(&mut self, listener: &TcpListener) {
        self.idle.extend(self.returns.try_iter());
        let idle = self.idle.iter().map(|waiting| waiting.connection.as_fd());
        let silent = self.silent.iter().map(|waiting| waiting.connection.as_fd());
        let mut fds: Vec<PollFd<'_>> = [self.turns.bell.as_fd(), listener.as_fd()]
            .into_iter()
            .chain(idle)
            .chain(silent)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 })).is_err() {
            return;
        }
        let mut speaks = fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
        self.turns.silence_bell();
        let mut idle_left = 0;
        for (waiting, speaks) in std::mem::take(&mut self.idle).into_iter().zip(speaks.by_ref()) {
            if speaks && self.turns.has_place(false) {
                self.serve(waiting.address, false, |_| Ok(waiting.connection));
            } else if speaks || waiting.since.elapsed() < IDLE_TIMEOUT {
                idle_left += usize::from(speaks);
                self.idle.push_back(waiting);
            }
        }
        let mut silent_left = 0;
        for (waiting, speaks) in std::mem::take(&mut self.silent).into_iter().zip(speaks) {
            if speaks && self.turns.has_place(true) {
                let (shared, count) = (Arc::clone(&self.shared), Arc::clone(&self.count));
                let greeted = move |watch: &_| connection::greeted(waiting.connection, &shared, watch, &count);
                self.serve(waiting.address, true, greeted);
            } else if waiting.since.elapsed() < GREETING_TIMEOUT {
                silent_left += usize::from(speaks);
                self.silent.push_back(waiting);
            }
        }
        self.turns.make_place(idle_left, silent_left);
        if idle_left + silent_left > 0 || self.silent.len() >= MAX_SILENT {
            self.turns.wait(RETRY);
        }
    }

    /// Whether another connection can be accepted. If necessary, closes the oldest silent connection whose time has
    /// passed.
    fn has_place(&mut self) -> bool {
        if self.silent.len() < MAX_SILENT {
            return true;
        }
        self.silent.pop_front_if(|oldest| oldest.since.elapsed() >= GRACE).is_some()
    }

    /// Starts a thread that serves a connection. If that fails, the connection is closed.
    fn serve(
        &mut self,
        address: SocketAddr,
        is_greeting: bool,
        open: impl FnOnce(&Arc<Watch>) -> Result<Connection, LinkError> + Send + 'static,
    ) {
        let turn = Turn::begun(&self.turns, is_greeting);
        let (niceness, returned) = (self.shared.settings.niceness, self.returned.clone());
        let run = move || {
            lower_priority(niceness);
            let served = open(&turn.watch).and_then(|connection| {
                turn.greeted();
                connection.take_turn(&turn.watch, || turn.turns.is_full.load(Ordering::Relaxed))
            });
            match served {
                Ok(connection) => _ = returned.send(Waiting::new(connection, address)),
                Err(LinkError::Closed | LinkError::Stopped) => {}
                Err(error) => tracing::debug!(%address, "a KV connection ended: {error}"),
            }
        };
        match spawn("kv-serve", run) {
            Ok(thread) => {
                self.threads.retain(|thread| !thread.is_finished());
                self.threads.push(thread);
            }
            Err(error) => tracing::warn!(%address, "a KV connection was closed: {error}"),
        }
    }
}

/// The threads that serve connections.
struct Turns {
    running: Mutex<Vec<Running>>,
    /// Whether a connection waits for a thread.
    is_full: AtomicBool,
    /// Readable after a thread has ended.
    bell: UnixStream,
    ringer: UnixStream,
}

struct Running {
    watch: Arc<Watch>,
    is_greeting: bool,
}

impl Turns {
    fn new() -> io::Result<Self> {
        let (bell, ringer) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ringer.set_nonblocking(true)?;
        Ok(Self { running: Mutex::default(), is_full: AtomicBool::new(false), bell, ringer })
    }

    fn running(&self) -> MutexGuard<'_, Vec<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another connection can be served now.
    fn has_place(&self, is_greeting: bool) -> bool {
        let running = self.running();
        let greetings = running.iter().filter(|running| running.is_greeting).count();
        running.len() < MAX_TURNS && !(is_greeting && greetings >= MAX_GREETINGS)
    }

    /// Frees threads for connections that wait for one: ends the turns of other peers early, and closes connections
    /// that have kept their threads waiting for too long.
    fn make_place(&self, idle_left: usize, silent_left: usize) {
        let running = self.running();
        let is_full = running.len() >= MAX_TURNS && idle_left + silent_left > 0;
        self.is_full.store(is_full, Ordering::Relaxed);
        let needed = if is_full { idle_left + silent_left } else { silent_left };
        let candidates = running.iter().filter(|running| is_full || running.is_greeting);
        let mut late: Vec<_> = candidates.map(|running| (running.watch.waited(), running)).collect();
        late.retain(|(waited, _)| *waited >= GRACE);
        late.sort_by_key(|(waited, _)| Reverse(*waited));
        late.into_iter().take(needed).for_each(|(_, running)| running.watch.cut());
    }

    fn wait(&self, time: Duration) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        _ = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(&timeout));
    }

    fn silence_bell(&self) {
        while matches!((&self.bell).read(&mut [0; 64]), Ok(1..)) {}
    }
}

/// The turn of one connection on a thread.
struct Turn {
    turns: Arc<Turns>,
    watch: Arc<Watch>,
}

impl Turn {
    fn begun(turns: &Arc<Turns>, is_greeting: bool) -> Self {
        let watch = Arc::new(Watch::default());
        turns.running().push(Running { watch: Arc::clone(&watch), is_greeting });
        Self { turns: Arc::clone(turns), watch }
    }

    /// Records that the peer has identified itself.
    fn greeted(&self) {
        self.watch.advance();
        let mut running = self.turns.running();
        let own = running.iter_mut().find(|running| Arc::ptr_eq(&running.watch, &self.watch));
        own.into_iter().for_each(|running| running.is_greeting = false);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.running().retain(|running| !Arc::ptr_eq(&running.watch, &self.watch));
        // If the buffer is full, the bell is readable already.
        _ = (&self.turns.ringer).write(&[0]);
    }
}
