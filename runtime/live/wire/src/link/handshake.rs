//! A frontend's handshake with its engines.

use std::path::PathBuf;
use std::time::Duration;

use zmq::Socket;

use super::error::LinkError;
use super::frontend::FrontendLink;
use super::transport::{Deadline, Linger, Transport, bind, send, try_receive};
use crate::handshake::{Addresses, EngineHandshake, EngineStatus, Init, ReadyResponse};

/// The addresses of the sockets for requests and outputs.
#[derive(Clone, Debug)]
pub enum DataAddress {
    /// On free ports of this host.
    Tcp {
        /// Host name or address.
        host: String,
    },
    /// In this folder, which must exist and be used by no other frontend.
    Ipc {
        /// The folder.
        folder: PathBuf,
    },
}

impl DataAddress {
    pub(super) fn of(&self, name: &str, client: usize) -> String {
        match self {
            Self::Tcp { host } => format!("tcp://{host}:*"),
            Self::Ipc { folder } => format!("ipc://{}/{name}-{client}", folder.display()),
        }
    }
}

/// The settings of a frontend.
#[derive(Clone, Debug)]
pub struct FrontendConfig {
    /// The handshake address; port `*` takes a free port.
    pub handshake_address: String,
    /// The addresses of the other sockets.
    pub data: DataAddress,
    /// Number of API servers.
    pub clients: usize,
    /// Number of engines, whose ranks start at 0.
    pub engines: u16,
    /// Whether there is a coordinator.
    pub coordinator: bool,
}

/// A frontend whose sockets listen and whose engines are not connected yet.
pub struct FrontendListener {
    config: FrontendConfig,
    handshake: Socket,
    handshake_address: String,
    init: Vec<u8>,
    link: FrontendLink,
}

#[derive(Default)]
struct Progress {
    hello: bool,
    ready: bool,
    /// Whether the engine has registered, by API server.
    registered: Vec<bool>,
    response: Option<ReadyResponse>,
}

impl FrontendListener {
    /// Opens all sockets.
    ///
    /// # Errors
    ///
    /// An address is in use or cannot be used.
    pub fn bind(transport: &Transport, config: FrontendConfig) -> Result<Self, LinkError> {
        let handshake = transport.socket(zmq::ROUTER, Linger::Handshake)?;
        let handshake_address = bind(&handshake, &config.handshake_address)?;
        let mut addresses = Addresses::default();
        let mut link = FrontendLink::default();
        for client in 0..config.clients {
            let input = transport.socket(zmq::ROUTER, Linger::None)?;
            // A request to an engine that is not connected is an error, instead of being dropped.
            input.set_router_mandatory(true).map_err(LinkError::socket("make requests mandatory"))?;
            addresses.inputs.push(bind(&input, &config.data.of("input", client))?);
            let output = transport.socket(zmq::PULL, Linger::None)?;
            addresses.outputs.push(bind(&output, &config.data.of("output", client))?);
            link.inputs.push(input);
            link.outputs.push(output);
        }
        if config.coordinator {
            let publisher = transport.socket(zmq::XPUB, Linger::None)?;
            // Count every subscription, not only the first.
            publisher.set_xpub_verbose(true).map_err(LinkError::socket("count subscriptions"))?;
            addresses.coordinator_input = Some(bind(&publisher, &config.data.of("coordinator-input", 0))?);
            let control = transport.socket(zmq::PULL, Linger::None)?;
            addresses.coordinator_output = Some(bind(&control, &config.data.of("coordinator-output", 0))?);
            link.coordinator = Some((publisher, control));
        }
        let mut init = Vec::new();
        Init { addresses, ..Init::default() }.encode(&mut init);
        Ok(Self { config, handshake, handshake_address, init, link })
    }

    /// The handshake address, with the actual port.
    #[must_use]
    pub fn handshake_address(&self) -> &str {
        &self.handshake_address
    }

    /// Waits until every engine has sent READY and registered with every API server.
    ///
    /// # Errors
    ///
    /// An engine does not do so in time, or an unknown engine connects.
    pub fn accept(mut self, timeout: Duration) -> Result<FrontendLink, LinkError> {
        let deadline = Deadline::after(timeout);
        let fresh = || Progress { registered: vec![false; self.config.clients], ..Progress::default() };
        let mut engines: Vec<Progress> = (0..self.config.engines).map(|_| fresh()).collect();
        let mut subscriptions = 0;
        while !engines.iter().all(|engine| engine.ready && engine.registered.iter().all(|done| *done)) {
            let mut is_idle = true;
            if let Some(frames) = try_receive(&self.handshake)? {
                is_idle = false;
                self.greet(&frames, &mut engines)?;
            }
            for client in 0..self.config.clients {
                if let Some(frames) = try_receive(&self.link.inputs[client])? {
                    is_idle = false;
                    self.register(client, &frames, &mut engines)?;
                }
            }
            if let Some((publisher, _)) = &self.link.coordinator
                && let Some(frames) = try_receive(publisher)?
            {
                is_idle = false;
                subscriptions += usize::from(frames == [[1]]);
                if subscriptions == engines.len() {
                    send(publisher, [b"READY"]).map_err(LinkError::socket("open the gate"))?;
                }
            }
            let sockets = std::iter::once(&self.handshake).chain(&self.link.inputs);
            let all = sockets.chain(self.link.coordinator.iter().map(|(publisher, _)| publisher));
            if is_idle && !deadline.wait(all)? && deadline.is_over() {
                return Err(self.silence(&engines, timeout));
            }
        }
        self.link.engines = engines.into_iter().filter_map(|engine| engine.response).collect();
        Ok(self.link)
    }

    /// Handles a message on the handshake socket.
    fn greet(&self, frames: &[Vec<u8>], engines: &mut [Progress]) -> Result<(), LinkError> {
        let (rank, payload) = self.sender(frames)?;
        let from = || format!("engine {rank} at {}", self.handshake_address);
        let said = EngineHandshake::decode(payload)
            .map_err(|source| LinkError::Decode { from: from(), source: Box::new(source) })?;
        let engine = &mut engines[usize::from(rank)];
        match said.status {
            EngineStatus::Hello if engine.hello => {
                Err(LinkError::OutOfOrder { rank, said: "HELLO", already: "said it before" })
            }
            EngineStatus::Ready if !engine.hello => {
                Err(LinkError::OutOfOrder { rank, said: "READY", already: "not said HELLO" })
            }
            EngineStatus::Ready => {
                engine.ready = true;
                Ok(())
            }
            EngineStatus::Hello => {
                engine.hello = true;
                let answer = [&frames[0], &self.init];
                send(&self.handshake, answer).map_err(LinkError::socket("send INIT"))
            }
        }
    }

    /// Handles a message on an input socket: the ready response.
    fn register(&self, client: usize, frames: &[Vec<u8>], engines: &mut [Progress]) -> Result<(), LinkError> {
        let (rank, payload) = self.sender(frames)?;
        let from = || format!("engine {rank} at API server {client}");
        let response = ReadyResponse::decode(payload)
            .map_err(|source| LinkError::Decode { from: from(), source: Box::new(source) })?;
        let engine = &mut engines[usize::from(rank)];
        engine.registered[client] = true;
        engine.response = Some(response);
        Ok(())
    }

    /// The engine that sent the message, and the message's content.
    fn sender<'a>(&self, frames: &'a [Vec<u8>]) -> Result<(u16, &'a [u8]), LinkError> {
        let identity = frames.first().map_or(&[][..], Vec::as_slice);
        let rank = identity.try_into().map(u16::from_le_bytes).ok().filter(|rank| *rank < self.config.engines);
        let Some(rank) = rank else {
            let identity = hex::encode(identity);
            return Err(LinkError::UnknownEngine { identity, last: self.config.engines.saturating_sub(1) });
        };
        Ok((rank, frames.get(1).map_or(&[], Vec::as_slice)))
    }

    fn silence(&self, engines: &[Progress], waited: Duration) -> LinkError {
        let missing = |(rank, engine): (usize, &Progress)| {
            let what = match (engine.hello, engine.ready) {
                (false, _) => "HELLO",
                (true, false) => "READY",
                (true, true) if engine.registered.iter().all(|done| *done) => return None,
                (true, true) => "the ready response on every input",
            };
            Some(format!("engine {rank} has not sent {what}"))
        };
        let missing: Vec<String> = engines.iter().enumerate().filter_map(missing).collect();
        LinkError::Silent { address: self.handshake_address.clone(), expected: missing.join(", "), waited }
    }
}
