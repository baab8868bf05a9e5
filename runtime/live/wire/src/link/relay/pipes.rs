//! All connections between which a relay forwards bytes.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::pipe::{BUFFER_BYTES, End, Pipe, Purpose};
use super::stream::{Listener, Stream};
use super::tap::{RelayNotice, RelayTap};
use crate::handshake::Addresses;
use crate::link::handshake::DataAddress;
use crate::link::monotonic_ns;
use crate::link::system::{Interest, Poller};
use crate::link::wait::waker::Waker;

/// Maximum number of events handled in one turn.
const EVENTS: usize = 64;

/// Time for which a listener is not watched after the system refused resources for a connection. Otherwise the relay
/// would spin, because a waiting connection is signalled again at once.
const PAUSE_NS: u64 = 1_000_000_000;

/// A listener for one engine's connections with one purpose.
struct RankListener {
    connection: u64,
    rank: u32,
    purpose: Purpose,
    listener: Listener,
    /// Address of the frontend that the connections lead to.
    frontend: String,
    /// When the listener is watched again, by [`monotonic_ns`]; `None` if it is watched now.
    paused_until_ns: Option<u64>,
    /// Whether the last connection was refused, which is reported only once.
    is_failing: bool,
}

/// An engine's connection, and the result of connecting to the frontend.
struct PendingConnection {
    connection: u64,
    rank: u32,
    purpose: Purpose,
    address: String,
    engine: Stream,
    frontend: io::Result<Stream>,
}

/// Listeners and pipes by their keys in the poller. A pipe has two consecutive keys.
pub(in crate::link) struct Pipes {
    poller: Poller,
    listeners: BTreeMap<u64, RankListener>,
    pipes: BTreeMap<u64, Pipe>,
    next_key: u64,
    buffer: Vec<u8>,
    /// Receives from the threads that connect to the frontend, which may take long.
    pending: Receiver<PendingConnection>,
    pending_sender: Sender<PendingConnection>,
    waker: Waker,
}

impl Pipes {
    /// No connections yet. `waker` is called for work that `items` do not show.
    pub(in crate::link) fn new(waker: Waker) -> io::Result<Self> {
        let (pending_sender, pending) = channel();
        Ok(Self {
            poller: Poller::new()?,
            listeners: BTreeMap::new(),
            pipes: BTreeMap::new(),
            next_key: 0,
            buffer: vec![0; BUFFER_BYTES],
            pending,
            pending_sender,
            waker,
        })
    }

    /// Poll items that show whether there are bytes to forward.
    pub(in crate::link) fn items(&self) -> Vec<zmq::PollItem<'static>> {
        self.poller.items()
    }

    /// Opens an address of the relay for each of the frontend's addresses, and returns the opened ones.
    pub(in crate::link) fn open(
        &mut self,
        connection: u64,
        rank: u32,
        theirs: &Addresses,
        at: &DataAddress,
    ) -> io::Result<Addresses> {
        let mut ours = Addresses::default();
        let mut open = |purpose, name: &str, frontend: &String| {
            let (listener, address) = Listener::bind(at, &format!("{connection}-{name}"))?;
            let key = self.next_key;
            self.next_key += 2;
            self.poller.add(&listener, key, Interest::READ)?;
            let (paused_until_ns, is_failing, frontend) = (None, false, frontend.clone());
            let listener = RankListener { connection, rank, purpose, listener, frontend, paused_until_ns, is_failing };
            self.listeners.insert(key, listener);
            Ok::<_, io::Error>(address)
        };
        for (client, (input, output)) in theirs.inputs.iter().zip(&theirs.outputs).enumerate() {
            ours.inputs.push(open(Purpose::Input { client }, &format!("input-{client}"), input)?);
            ours.outputs.push(open(Purpose::Output { client }, &format!("output-{client}"), output)?);
        }
        if let Some(input) = &theirs.coordinator_input {
            ours.coordinator_input = Some(open(Purpose::Coordinator, "coordinator-input", input)?);
        }
        if let Some(output) = &theirs.coordinator_output {
            ours.coordinator_output = Some(open(Purpose::Coordinator, "coordinator-output", output)?);
        }
        Ok(ours)
    }

    /// Closes all listeners and pipes of an engine's connection.
    pub(in crate::link) fn close(&mut self, connection: u64) {
        for (key, _) in self.listeners.extract_if(.., |_, listener| listener.connection == connection) {
            self.poller.forget(key);
        }
        for (key, _) in self.pipes.extract_if(.., |_, pipe| pipe.connection == connection) {
            self.poller.forget(key);
            self.poller.forget(key + 1);
        }
    }

    /// Forwards all available bytes.
    pub(in crate::link) fn pump(&mut self, tap: &mut impl RelayTap) -> io::Result<()> {
        while let Ok(pending) = self.pending.try_recv() {
            self.join(pending, tap)?;
        }
        self.watch_again(monotonic_ns())?;
        let mut ready = Vec::with_capacity(EVENTS);
        self.poller.ready(&mut ready, EVENTS)?;
        for key in ready {
            if self.listeners.contains_key(&key) {
                self.accept(key, tap)?;
            } else {
                self.move_bytes(key & !1, tap)?;
            }
        }
        Ok(())
    }

    /// Accepts a connection of an engine, and starts to connect to the frontend.
    fn accept(&mut self, key: u64, tap: &mut impl RelayTap) -> io::Result<()> {
        let Some(listener) = self.listeners.get_mut(&key) else { return Ok(()) };
        let engine = match listener.listener.accept() {
            Ok(engine) => engine,
            // The engine has closed the connection already.
            Err(error) if is_of_peer(&error) => return Ok(()),
            Err(error) => return self.pause(key, "accept a connection", &error, tap),
        };
        let (connection, rank, purpose, address) =
            (listener.connection, listener.rank, listener.purpose, listener.frontend.clone());
        let (pending_sender, waker) = (self.pending_sender.clone(), self.waker.clone());
        let connect = move || {
            let frontend = Stream::connect(&address);
            // Sending fails only if the relay has ended, which needs no connection.
            _ = pending_sender.send(PendingConnection { connection, rank, purpose, address, engine, frontend });
            waker.wake();
        };
        match thread::Builder::new().name("connect".to_owned()).spawn(connect) {
            Ok(_) => {
                listener.is_failing = false;
                Ok(())
            }
            // The connection is closed, and the engine connects again.
            Err(error) => self.pause(key, "start a thread for a connection", &error, tap),
        }
    }

    /// Stops watching a listener for a while, because the system has no resources for its connections.
    fn pause(&mut self, key: u64, doing: &str, error: &io::Error, tap: &mut impl RelayTap) -> io::Result<()> {
        let Some(listener) = self.listeners.get_mut(&key) else { return Ok(()) };
        if !std::mem::replace(&mut listener.is_failing, true) {
            let reason = format!("cannot {doing}: {error}; trying again every second");
            tap.noticed(listener.rank, monotonic_ns(), RelayNotice::Refused { reason });
        }
        listener.paused_until_ns = Some(monotonic_ns() + PAUSE_NS);
        self.poller.remove(&listener.listener, key)
    }

    /// Watches listeners again whose pause has ended.
    fn watch_again(&mut self, now_ns: u64) -> io::Result<()> {
        for (key, listener) in &mut self.listeners {
            if listener.paused_until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
                self.poller.add(&listener.listener, *key, Interest::READ)?;
                listener.paused_until_ns = None;
            }
        }
        Ok(())
    }

    /// Milliseconds until the next pause of a listener ends; `None` if no listener is paused.
    pub(in crate::link) fn retry_in_ms(&self) -> Option<i64> {
        let next_ns = self.listeners.values().filter_map(|listener| listener.paused_until_ns).min()?;
        let left_ns = next_ns.saturating_sub(monotonic_ns());
        Some(left_ns.div_ceil(1_000_000) as i64)
    }

    fn join(&mut self, pending: PendingConnection, tap: &mut impl RelayTap) -> io::Result<()> {
        let PendingConnection { connection, rank, purpose, address, engine, frontend } = pending;
        if self.listeners.values().all(|listeners| listeners.connection != connection) {
            return Ok(());
        }
        let frontend = match frontend {
            Ok(frontend) => frontend,
            Err(error) => {
                // The engine connects again, as it would to the frontend itself.
                let reason = format!("cannot connect to {address}: {error}");
                tap.noticed(rank, monotonic_ns(), RelayNotice::Refused { reason });
                return Ok(());
            }
        };
        let key = self.next_key;
        self.next_key += 2;
        let pipe = Pipe::new(connection, rank, purpose, engine, frontend);
        pipe.watch(&mut self.poller, key)?;
        self.pipes.insert(key, pipe);
        Ok(())
    }

    fn move_bytes(&mut self, key: u64, tap: &mut impl RelayTap) -> io::Result<()> {
        // The event may belong to a pipe that has just ended.
        let Some(pipe) = self.pipes.get_mut(&key) else { return Ok(()) };
        let Some(closed) = pipe.pump(&mut self.poller, key, &mut self.buffer, tap)? else { return Ok(()) };
        if pipe.is_foreign() {
            let reason = "a connection speaks no ZMTP 3: what passed on it was not recorded".to_owned();
            tap.noticed(pipe.rank, monotonic_ns(), RelayNotice::Refused { reason });
        }
        // Report the loss only once: the engine's other connections end for the same reason.
        match (closed, pipe.purpose) {
            (End::Engine, Purpose::Input { client: 0 }) => {
                tap.noticed(pipe.rank, monotonic_ns(), RelayNotice::EngineLost);
            }
            (End::Frontend, Purpose::Input { client }) => {
                tap.noticed(pipe.rank, monotonic_ns(), RelayNotice::FrontendLost { client });
            }
            _ => {}
        }
        self.poller.forget(key);
        self.poller.forget(key + 1);
        self.pipes.remove(&key);
        Ok(())
    }
}

/// Whether the peer caused the failure to accept, so that the next connection is not affected.
fn is_of_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::super::tap::Passed;
    use super::*;

    #[derive(Default)]
    struct Notices(Vec<String>);

    impl RelayTap for Notices {
        fn passed(&mut self, _: Passed<'_>) {}

        fn noticed(&mut self, _: u32, _: u64, notice: RelayNotice) {
            let RelayNotice::Refused { reason } = notice else { panic!("{notice:?}") };
            self.0.push(reason);
        }
    }

    fn is_shown(pipes: &Pipes) -> bool {
        let mut ready = Vec::new();
        pipes.poller.ready(&mut ready, EVENTS).expect("it can be watched");
        !ready.is_empty()
    }

    /// Without free file descriptors, the relay must not spin on a connection that it cannot accept.
    #[test]
    fn a_listener_that_cannot_accept_is_left_alone_for_a_while() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut pipes = Pipes::new(Waker::new().expect("a waker")).expect("a poller");
        let nowhere = format!("ipc://{}/nowhere", folder.path().display());
        let theirs =
            Addresses { inputs: vec![nowhere.clone()], outputs: vec![nowhere.clone()], ..Addresses::default() };
        let at = DataAddress::Ipc { folder: folder.path().to_owned() };
        let ours = pipes.open(1, 0, &theirs, &at).expect("the folder is ours");
        let path = ours.inputs[0].strip_prefix("ipc://").expect("a file");
        let _engine = UnixStream::connect(path).expect("it listens");
        assert!(is_shown(&pipes) && pipes.retry_in_ms().is_none());
        let mut notices = Notices::default();
        let key = *pipes.listeners.first_key_value().expect("there are two").0;
        let error = io::Error::from(rustix::io::Errno::MFILE);
        for _ in 0..2 {
            pipes.pause(key, "accept a connection", &error, &mut notices).expect("it was watched");
            assert!(!is_shown(&pipes), "it would spin");
            assert!(pipes.retry_in_ms().is_some_and(|left_ms| (900..=1_000).contains(&left_ms)));
            pipes.watch_again(monotonic_ns()).expect("nothing to do");
            assert!(!is_shown(&pipes), "the pause is not over");
            pipes.watch_again(u64::MAX).expect("it can be watched again");
            assert!(is_shown(&pipes) && pipes.retry_in_ms().is_none());
        }
        assert_eq!(
            notices.0,
            ["cannot accept a connection: Too many open files (os error 24); trying again every second"],
            "once"
        );
        // The waiting connection is accepted, but its frontend does not exist.
        let since = Instant::now();
        while notices.0.len() < 2 {
            assert!(since.elapsed() < Duration::from_secs(30), "{:?}", notices.0);
            pipes.pump(&mut notices).expect("it goes on");
        }
        assert!(notices.0[1].starts_with(&format!("cannot connect to {nowhere}: ")), "{:?}", notices.0);
        assert!(!pipes.listeners[&key].is_failing, "the next failure is reported again");
    }
}
