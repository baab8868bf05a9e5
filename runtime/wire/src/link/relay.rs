//! A relay between engines and their frontend that changes nothing.
//!
//! To an engine it is the frontend, to the frontend it is each of the engines.
//! Frames are handed on as they came, before anyone looks at them; the one
//! exception is INIT, in which the frontend's addresses are replaced by the
//! relay's own.

use std::sync::atomic::{AtomicBool, Ordering};

use zmq::PollItem;

use super::error::LinkError;
use super::handshake::DataAddress;
use super::inputs::Inlet;
use super::relay_lane::{Data, Lane};
use super::relay_pump::Head;
use super::transport::{Linger, Transport, bind, send};
use super::wait::{Waker, monotonic_ns};
use crate::handshake::{EngineHandshake, EngineStatus, Init};

/// Where a relay stands.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// The real frontend's handshake socket.
    pub frontend_handshake: String,
    /// Where engines say HELLO; port `*` takes a free one.
    pub engine_handshake: String,
    /// Where engines are told to connect to.
    pub data: DataAddress,
}

/// Between which sockets a message passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayPath {
    /// From an API server to the engine.
    Request {
        /// The API server.
        client: usize,
    },
    /// From the engine to the input socket of an API server: who it is.
    Registration {
        /// The API server.
        client: usize,
    },
    /// From the engine to an API server.
    Outputs {
        /// The API server.
        client: usize,
    },
    /// From the engine to the coordinator: what it wants to hear.
    Subscription,
    /// From the coordinator to the engine.
    Wave,
    /// From the engine to the coordinator.
    Control,
}

/// A message that was handed on.
#[derive(Clone, Copy, Debug)]
pub struct Passed<'a> {
    /// When, by [`monotonic_ns`].
    pub at_ns: u64,
    /// The engine's number: its identity as a little-endian integer.
    pub rank: u32,
    /// Between which sockets.
    pub path: RelayPath,
    /// How many frames it has.
    pub frames: usize,
    /// Its first two frames; an absent one is empty.
    pub head: [&'a [u8]; 2],
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayNotice {
    /// The engine said HELLO.
    Hello {
        /// Whether one of its identity had been there before.
        again: bool,
    },
    /// The frontend answered it.
    Init {
        /// API servers of the frontend.
        clients: usize,
        /// Whether there is a coordinator.
        coordinator: bool,
    },
    /// The engine serves.
    Ready,
    /// The connection to an API server came to an end.
    FrontendLost {
        /// The API server.
        client: usize,
    },
    /// The connection of the engine came to an end.
    EngineLost,
    /// A message could not be handed on, since its receiver is not connected.
    Undeliverable {
        /// Between which sockets.
        path: RelayPath,
    },
    /// A message of an identity that does not belong to this socket was left
    /// out.
    Stray,
    /// A handshake could not be served.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Hears what passes a [`Relay`], on its thread: whoever is slow here makes the
/// relay slow.
pub trait RelayTap {
    /// A message was handed on.
    fn passed(&mut self, message: Passed<'_>);
    /// Something happened to the connections of an engine, at an instant of
    /// [`monotonic_ns`].
    fn noticed(&mut self, rank: u32, at_ns: u64, notice: RelayNotice);
}

/// Stands between engines and their frontend.
pub struct Relay {
    transport: Transport,
    config: RelayConfig,
    handshake: Inlet,
    engine_handshake: String,
    lanes: Vec<Lane>,
    /// Whether `lanes` has other sockets than when they were last waited for.
    is_changed: bool,
    /// Lanes opened so far, for the names of their sockets.
    opened: u64,
    head: Head,
    waker: Waker,
}

impl Relay {
    /// Listens for engines.
    ///
    /// # Errors
    ///
    /// When the address is in use or cannot be used.
    pub fn bind(transport: &Transport, config: RelayConfig) -> Result<Self, LinkError> {
        let socket = transport.socket(zmq::ROUTER, Linger::Handshake)?;
        // An engine that was killed and started again is the same to us.
        socket.set_router_handover(true).map_err(LinkError::socket("take an engine back"))?;
        let engine_handshake = bind(&socket, &config.engine_handshake)?;
        Ok(Self {
            transport: transport.clone(),
            config,
            handshake: Inlet::new(socket)?,
            engine_handshake,
            lanes: Vec::new(),
            is_changed: true,
            opened: 0,
            head: Head::default(),
            waker: Waker::new()?,
        })
    }

    /// Where engines say HELLO, the port filled in.
    #[must_use]
    pub fn engine_handshake(&self) -> &str {
        &self.engine_handshake
    }

    /// Makes [`Relay::run`] look at `stop`.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Relays until `stop` is set and the waker was called.
    ///
    /// # Errors
    ///
    /// When the library fails.
    pub fn run(&mut self, tap: &mut impl RelayTap, stop: &AtomicBool) -> Result<(), LinkError> {
        let mut items = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            for lane in &mut self.lanes {
                lane.pump(&mut self.head, tap)?;
            }
            self.greet_engines(tap)?;
            self.greet_frontend(tap)?;
            if std::mem::take(&mut self.is_changed) {
                items = self.watched();
            }
            self.wait(&mut items)?;
        }
        Ok(())
    }

    /// The handshake first, then the lanes; and the bell at the end.
    fn inlets(&mut self) -> impl Iterator<Item = &mut Inlet> {
        std::iter::once(&mut self.handshake).chain(self.lanes.iter_mut().flat_map(Lane::inlets))
    }

    fn watched(&mut self) -> Vec<PollItem<'static>> {
        let bell = self.waker.fd();
        let fds: Vec<_> = self.inlets().map(|inlet| inlet.fd).chain([bell]).collect();
        fds.into_iter().map(|fd| PollItem::from_fd(fd, zmq::POLLIN)).collect()
    }

    /// Waits until something has come in anywhere; only looks if something may
    /// be left to be moved.
    fn wait(&mut self, items: &mut [PollItem<'static>]) -> Result<(), LinkError> {
        let is_left = self.inlets().any(|inlet| inlet.may_have_message);
        match zmq::poll(items, if is_left { 0 } else { -1 }) {
            Ok(0) | Err(zmq::Error::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(source) => return Err(LinkError::Socket { doing: "wait for a message", source }),
        }
        if items.last().is_some_and(PollItem::is_readable) {
            self.waker.take_call();
        }
        for (inlet, item) in self.inlets().zip(items.iter()) {
            inlet.may_have_message |= item.is_readable();
        }
        Ok(())
    }

    /// Hands on what engines say on the handshake socket.
    fn greet_engines(&mut self, tap: &mut impl RelayTap) -> Result<(), LinkError> {
        while let Some(mut frames) = self.handshake.try_receive()? {
            let identity = frames.remove(0);
            let status = frames.first().and_then(|frame| EngineHandshake::decode(frame).ok()).map(|said| said.status);
            let known = self.lanes.iter().position(|lane| lane.identity == identity);
            let index = match known {
                Some(index) if status != Some(EngineStatus::Hello) => index,
                _ => match self.open(identity, known) {
                    Ok(index) => {
                        let notice = RelayNotice::Hello { again: known.is_some() };
                        tap.noticed(self.lanes[index].rank, monotonic_ns(), notice);
                        index
                    }
                    Err((rank, error)) => {
                        tap.noticed(rank, monotonic_ns(), RelayNotice::Refused { reason: error.to_string() });
                        continue;
                    }
                },
            };
            let lane = &mut self.lanes[index];
            let Some(handshake) = &mut lane.handshake else { continue };
            send(&handshake.socket, &frames).map_err(LinkError::socket("hand a greeting on"))?;
            handshake.may_have_message = true;
            if status == Some(EngineStatus::Ready) {
                // As the engine does: nothing more is said here, and one that
                // takes its place must not find its name in use.
                lane.handshake = None;
                self.is_changed = true;
                tap.noticed(lane.rank, monotonic_ns(), RelayNotice::Ready);
            }
        }
        Ok(())
    }

    /// A new lane, in place of one that the engine had before.
    fn open(&mut self, identity: Vec<u8>, known: Option<usize>) -> Result<usize, (u32, LinkError)> {
        self.is_changed = true;
        let rank = known.map(|index| self.lanes.swap_remove(index).rank);
        let lane = Lane::open(&self.transport, identity, &self.config.frontend_handshake);
        self.lanes.push(lane.map_err(|error| (rank.unwrap_or_default(), error))?);
        Ok(self.lanes.len() - 1)
    }

    /// Hands on what the frontend says to engines on the handshake socket.
    fn greet_frontend(&mut self, tap: &mut impl RelayTap) -> Result<(), LinkError> {
        for lane in &mut self.lanes {
            while let Some(mut frames) = lane.handshake.as_mut().map(Inlet::try_receive).transpose()?.flatten() {
                if let Some(init) = frames.first().and_then(|frame| Init::decode(frame).ok()) {
                    self.opened += 1;
                    self.is_changed = true;
                    match open_data(&self.transport, lane, &init, &self.config.data, self.opened) {
                        Ok((data, addresses)) => {
                            let (clients, coordinator) = (data.clients(), data.has_coordinator());
                            lane.data = Some(data);
                            // It was decoded a moment ago.
                            frames[0] = Init::readdress(&frames[0], &addresses).unwrap_or_default();
                            tap.noticed(lane.rank, monotonic_ns(), RelayNotice::Init { clients, coordinator });
                        }
                        Err(error) => {
                            let reason = error.to_string();
                            tap.noticed(lane.rank, monotonic_ns(), RelayNotice::Refused { reason });
                            continue;
                        }
                    }
                }
                let message = std::iter::once(&lane.identity).chain(&frames);
                send(&self.handshake.socket, message).map_err(LinkError::socket("hand an answer on"))?;
                self.handshake.may_have_message = true;
            }
        }
        Ok(())
    }
}

fn open_data(
    transport: &Transport,
    lane: &Lane,
    init: &Init,
    at: &DataAddress,
    opened: u64,
) -> Result<(Data, crate::handshake::Addresses), LinkError> {
    Data::open(transport, &lane.identity, &init.addresses, at, &opened.to_string())
}
