//! All connections that a relay hands bytes between.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;

use super::handshake::DataAddress;
use super::relay::{RelayNotice, RelayTap};
use super::relay_pipe::{BUFFER_BYTES, End, Pipe, Purpose};
use super::stream::{Listener, Stream};
use super::wait::{Waker, monotonic_ns};
use crate::handshake::Addresses;

/// Connections that are looked at in one turn.
const EVENTS: usize = 64;

/// Where connections of one engine for one purpose come in.
struct Door {
    lane: u64,
    rank: u32,
    purpose: Purpose,
    listener: Listener,
    /// Where they go.
    frontend: String,
}

/// An engine's connection, and that to the frontend if there is one.
struct Met {
    lane: u64,
    rank: u32,
    purpose: Purpose,
    address: String,
    engine: Stream,
    frontend: io::Result<Stream>,
}

/// Doors and pipes, by the names under which they are watched: a pipe has its
/// own and the next one.
pub(super) struct Pipes {
    epoll: OwnedFd,
    doors: BTreeMap<u64, Door>,
    pipes: BTreeMap<u64, Pipe>,
    next_key: u64,
    buffer: Vec<u8>,
    /// From the threads that connect to the frontend, which may take a while.
    met: Receiver<Met>,
    meet: Sender<Met>,
    waker: Waker,
}

impl Pipes {
    /// None yet. `waker` is called when there is something to do that `fd` does
    /// not show.
    pub(super) fn new(waker: Waker) -> io::Result<Self> {
        let (meet, met) = channel();
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            doors: BTreeMap::new(),
            pipes: BTreeMap::new(),
            next_key: 0,
            buffer: vec![0; BUFFER_BYTES],
            met,
            meet,
            waker,
        })
    }

    /// Readable when something can be moved.
    pub(super) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Listens for an engine in place of everything that its frontend names.
    /// Returns where.
    pub(super) fn open(&mut self, lane: u64, rank: u32, theirs: &Addresses, at: &DataAddress) -> io::Result<Addresses> {
        let mut ours = Addresses::default();
        let mut open = |purpose, name: &str, frontend: &String| {
            let (listener, address) = Listener::bind(at, &format!("{lane}-{name}"))?;
            let key = self.next_key;
            self.next_key += 2;
            epoll::add(&self.epoll, &listener, EventData::new_u64(key), EventFlags::IN)?;
            self.doors.insert(key, Door { lane, rank, purpose, listener, frontend: frontend.clone() });
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

    /// Forgets everything of an engine that is there no more.
    pub(super) fn close(&mut self, lane: u64) {
        self.doors.retain(|_, door| door.lane != lane);
        self.pipes.retain(|_, pipe| pipe.lane != lane);
    }

    /// Moves what has come in.
    pub(super) fn pump(&mut self, tap: &mut impl RelayTap) -> io::Result<()> {
        while let Ok(met) = self.met.try_recv() {
            self.join(met, tap)?;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let key = event.data.u64();
            if self.doors.contains_key(&key) {
                self.accept(key)?;
            } else {
                self.move_bytes(key & !1, tap)?;
            }
        }
        Ok(())
    }

    /// Lets an engine's connection in, and makes the one that goes with it.
    fn accept(&mut self, key: u64) -> io::Result<()> {
        let Some(door) = self.doors.get(&key) else { return Ok(()) };
        // One that has gone already is none.
        let Ok(engine) = door.listener.accept() else { return Ok(()) };
        let (lane, rank, purpose, address) = (door.lane, door.rank, door.purpose, door.frontend.clone());
        let (meet, waker) = (self.meet.clone(), self.waker.clone());
        let connect = move || {
            let frontend = Stream::connect(&address);
            // A relay that has ended needs no connections.
            _ = meet.send(Met { lane, rank, purpose, address, engine, frontend });
            waker.wake();
        };
        thread::Builder::new().name("connect".to_owned()).spawn(connect)?;
        Ok(())
    }

    fn join(&mut self, met: Met, tap: &mut impl RelayTap) -> io::Result<()> {
        let Met { lane, rank, purpose, address, engine, frontend } = met;
        if self.doors.values().all(|door| door.lane != lane) {
            return Ok(());
        }
        let frontend = match frontend {
            Ok(frontend) => frontend,
            Err(error) => {
                // The engine tries again, as it would with the frontend itself.
                let reason = format!("cannot connect to {address}: {error}");
                tap.noticed(rank, monotonic_ns(), RelayNotice::Refused { reason });
                return Ok(());
            }
        };
        let key = self.next_key;
        self.next_key += 2;
        let pipe = Pipe::new(lane, rank, purpose, engine, frontend);
        pipe.watch(&self.epoll, key)?;
        self.pipes.insert(key, pipe);
        Ok(())
    }

    fn move_bytes(&mut self, key: u64, tap: &mut impl RelayTap) -> io::Result<()> {
        // What belonged to a pipe that has just ended.
        let Some(pipe) = self.pipes.get_mut(&key) else { return Ok(()) };
        let Some(closed) = pipe.pump(&self.epoll, key, &mut self.buffer, tap)? else { return Ok(()) };
        if pipe.is_foreign() {
            let reason = "a connection speaks no ZMTP 3: what passed on it was not recorded".to_owned();
            tap.noticed(pipe.rank, monotonic_ns(), RelayNotice::Refused { reason });
        }
        // The other connections end for the same reason.
        match (closed, pipe.purpose) {
            (End::Engine, Purpose::Input { client: 0 }) => {
                tap.noticed(pipe.rank, monotonic_ns(), RelayNotice::EngineLost);
            }
            (End::Frontend, Purpose::Input { client }) => {
                tap.noticed(pipe.rank, monotonic_ns(), RelayNotice::FrontendLost { client });
            }
            _ => {}
        }
        self.pipes.remove(&key);
        Ok(())
    }
}
