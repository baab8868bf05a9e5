//! A relay between engines and their frontend, which records messages without changing them.
//!
//! Engines see the relay as their frontend, and the frontend sees it as its engines. On the handshake socket, the
//! relay forwards messages and changes only INIT, where it replaces the frontend's addresses by its own. If that is
//! impossible, INIT is not forwarded, because the engine would bypass the relay. Connections to the relay's
//! addresses are pipes: their bytes are forwarded first, and decoded later.

pub(super) mod pipe;
pub(super) mod pipes;
pub(super) mod stream;
pub(super) mod tap;
pub(super) mod zmtp;

use std::sync::atomic::{AtomicBool, Ordering};

use zmq::PollItem;

use self::pipes::Pipes;
use self::tap::{RelayNotice, RelayTap};
use super::error::LinkError;
use super::handshake::DataAddress;
use super::inputs::Inlet;
use super::monotonic_ns;
use super::transport::{Linger, Transport, bind, connect, send};
use crate::handshake::{EngineHandshake, EngineStatus, Init};
use crate::link::wait::waker::Waker;

/// The addresses of a relay.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// The real frontend's handshake socket.
    pub frontend_handshake: String,
    /// The handshake address for engines; port `*` takes a free one.
    pub engine_handshake: String,
    /// The addresses of the data sockets for engines.
    pub data: DataAddress,
}

/// One engine's connection to its frontend, from its HELLO on.
struct EngineConnection {
    /// Distinguishes this connection from earlier ones of the same engine.
    number: u64,
    identity: Vec<u8>,
    rank: u32,
    /// A socket with the engine's identity that is connected to the frontend's handshake socket; `None` after READY.
    handshake: Option<Inlet>,
}

impl EngineConnection {
    fn open(
        transport: &Transport,
        number: u64,
        identity: Vec<u8>,
        frontend_handshake: &str,
    ) -> Result<Self, LinkError> {
        let socket = transport.socket(zmq::DEALER, Linger::Handshake)?;
        socket.set_identity(&identity).map_err(LinkError::socket("set an identity"))?;
        connect(&socket, frontend_handshake)?;
        let rank = rank_of(&identity);
        Ok(Self { number, identity, rank, handshake: Some(Inlet::new(socket)?) })
    }
}

fn rank_of(identity: &[u8]) -> u32 {
    identity.iter().rev().fold(0, |rank, byte| rank << 8 | u32::from(*byte))
}

/// Relays messages between engines and their frontend.
pub struct Relay {
    transport: Transport,
    config: RelayConfig,
    handshake: Inlet,
    engine_handshake: String,
    connections: Vec<EngineConnection>,
    /// Number of connections opened so far.
    opened: u64,
    pipes: Pipes,
    waker: Waker,
}

impl Relay {
    /// Listens for engines.
    ///
    /// # Errors
    ///
    /// The address is in use or cannot be used.
    pub fn bind(transport: &Transport, config: RelayConfig) -> Result<Self, LinkError> {
        let socket = transport.socket(zmq::ROUTER, Linger::Handshake)?;
        // An engine that was killed and restarted has the same identity and replaces the earlier one.
        socket.set_router_handover(true).map_err(LinkError::socket("take an engine back"))?;
        let engine_handshake = bind(&socket, &config.engine_handshake)?;
        let waker = Waker::new()?;
        Ok(Self {
            transport: transport.clone(),
            config,
            handshake: Inlet::new(socket)?,
            engine_handshake,
            connections: Vec::new(),
            opened: 0,
            pipes: Pipes::new(waker.clone()).map_err(LinkError::system("watch connections"))?,
            waker,
        })
    }

    /// The handshake address for engines, with the actual port.
    #[must_use]
    pub fn engine_handshake(&self) -> &str {
        &self.engine_handshake
    }

    /// Makes [`Relay::run`] check `stop`.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Relays messages until `stop` is set and the waker is called.
    pub fn run(&mut self, tap: &mut impl RelayTap, stop: &AtomicBool) -> Result<(), LinkError> {
        let mut items = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            self.pipes.pump(tap).map_err(LinkError::system("hand bytes on"))?;
            self.greet_engines(tap)?;
            self.greet_frontend(tap)?;
            self.wait(&mut items)?;
        }
        Ok(())
    }

    /// Waits for bytes or messages on any connection.
    fn wait(&mut self, items: &mut Vec<PollItem<'static>>) -> Result<(), LinkError> {
        let readable = |fd| PollItem::from_fd(fd, zmq::POLLIN);
        items.clear();
        items.push(readable(self.waker.fd()));
        items.extend(self.pipes.items());
        let first_inlet = items.len();
        let is_left = self.inlets().fold(false, |is_left, inlet| {
            items.push(readable(inlet.fd));
            is_left || inlet.may_have_message
        });
        let timeout_ms = if is_left { 0 } else { self.pipes.retry_in_ms().unwrap_or(-1) };
        match zmq::poll(items, timeout_ms) {
            Ok(0) | Err(zmq::Error::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(source) => return Err(LinkError::Socket { doing: "wait for a message", source }),
        }
        if items[0].is_readable() {
            self.waker.take_call();
        }
        for (inlet, item) in self.inlets().zip(&items[first_inlet..]) {
            inlet.may_have_message |= item.is_readable();
        }
        Ok(())
    }

    fn inlets(&mut self) -> impl Iterator<Item = &mut Inlet> {
        let connections = self.connections.iter_mut().filter_map(|connection| connection.handshake.as_mut());
        std::iter::once(&mut self.handshake).chain(connections)
    }

    /// Forwards the engines' messages on the handshake socket.
    fn greet_engines(&mut self, tap: &mut impl RelayTap) -> Result<(), LinkError> {
        while let Some(mut frames) = self.handshake.try_receive()? {
            let identity = frames.remove(0);
            let status = frames.first().and_then(|frame| EngineHandshake::decode(frame).ok()).map(|said| said.status);
            let known = self.connections.iter().position(|connection| connection.identity == identity);
            let index = match known {
                Some(index) if status != Some(EngineStatus::Hello) => index,
                _ => {
                    let rank = rank_of(&identity);
                    let notice = match self.open(identity, known) {
                        Ok(()) => RelayNotice::Hello { again: known.is_some() },
                        Err(error) => RelayNotice::Refused { reason: error.to_string() },
                    };
                    let is_refused = matches!(notice, RelayNotice::Refused { .. });
                    tap.noticed(rank, monotonic_ns(), notice);
                    if is_refused {
                        continue;
                    }
                    self.connections.len() - 1
                }
            };
            let connection = &mut self.connections[index];
            let Some(handshake) = &mut connection.handshake else { continue };
            send(&handshake.socket, &frames).map_err(LinkError::socket("hand a greeting on"))?;
            // Sending may have consumed the event of an arrival.
            handshake.may_have_message = true;
            if status == Some(EngineStatus::Ready) {
                // Engines close this socket now, too: it gets no further messages, and a restarted engine needs the
                // identity.
                connection.handshake = None;
                tap.noticed(connection.rank, monotonic_ns(), RelayNotice::Ready);
            }
        }
        Ok(())
    }

    /// Opens a connection for an engine, and closes the previous one.
    fn open(&mut self, identity: Vec<u8>, known: Option<usize>) -> Result<(), LinkError> {
        if let Some(index) = known {
            let before = self.connections.swap_remove(index);
            self.pipes.close(before.number);
        }
        self.opened += 1;
        self.connections.push(EngineConnection::open(
            &self.transport,
            self.opened,
            identity,
            &self.config.frontend_handshake,
        )?);
        Ok(())
    }

    /// Forwards the frontend's messages to engines on the handshake socket.
    fn greet_frontend(&mut self, tap: &mut impl RelayTap) -> Result<(), LinkError> {
        for connection in &mut self.connections {
            while let Some(mut frames) = connection.handshake.as_mut().map(Inlet::try_receive).transpose()?.flatten() {
                let notice = match readdress(&mut self.pipes, connection, &mut frames, &self.config.data) {
                    Ok(init) => RelayNotice::Init {
                        clients: init.addresses.inputs.len(),
                        coordinator: init.addresses.coordinator_input.is_some(),
                    },
                    Err(error) => RelayNotice::InitRefused { reason: with_sources(&error) },
                };
                let is_refused = matches!(notice, RelayNotice::InitRefused { .. });
                tap.noticed(connection.rank, monotonic_ns(), notice);
                if is_refused {
                    continue;
                }
                let message = std::iter::once(&connection.identity).chain(&frames);
                send(&self.handshake.socket, message).map_err(LinkError::socket("hand an answer on"))?;
                self.handshake.may_have_message = true;
            }
        }
        Ok(())
    }
}

/// Replaces the frontend's addresses by the relay's own. On the handshake socket, a frontend sends only INIT.
fn readdress(
    pipes: &mut Pipes,
    connection: &EngineConnection,
    frames: &mut [Vec<u8>],
    at: &DataAddress,
) -> Result<Init, LinkError> {
    let undecodable = |source| LinkError::Decode { from: "the frontend".to_owned(), source: Box::new(source) };
    let mut none = Vec::new();
    let frame = frames.first_mut().unwrap_or(&mut none);
    let init = Init::decode(frame).map_err(undecodable)?;
    let theirs = &init.addresses;
    let (inputs, outputs) = (theirs.inputs.len(), theirs.outputs.len());
    if inputs != outputs || inputs == 0 {
        return Err(LinkError::UnpairedAddresses { inputs, outputs });
    }
    pipes.close(connection.number);
    let ours = pipes
        .open(connection.number, connection.rank, theirs, at)
        .map_err(LinkError::system("listen for an engine"))?;
    *frame = Init::readdress(frame, &ours).map_err(undecodable)?;
    Ok(init)
}

/// An error and its sources in one line.
fn with_sources(error: &LinkError) -> String {
    let sources = std::iter::successors(std::error::Error::source(error), |source| source.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}
