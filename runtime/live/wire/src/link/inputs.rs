//! The input sockets of an engine.

use std::os::fd::RawFd;
use std::time::Duration;

use zmq::Socket;

use super::error::LinkError;
use super::local::LocalLink;
use super::transport::{Deadline, Transport, try_receive};
use crate::codec::error::DecodeError;
use crate::request::{EngineCoreRequest, Request};
use crate::versions::VersionEvidence;

/// The socket that a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An API server's socket, by its index.
    Client(usize),
    /// The coordinator's socket.
    Coordinator,
}

/// An event on the input sockets.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// A request.
    Request {
        /// The socket that the request came from.
        source: Source,
        /// The message.
        request: Request,
        /// Bytes of the request's large tensors: the frames after the payload.
        aux: Vec<Vec<u8>>,
    },
    /// A message that could not be decoded. Other messages are unaffected.
    Malformed {
        /// The socket that the message came from.
        source: Source,
        /// The problem.
        error: DecodeError,
        /// The ID of the request in the message, if it is known. The frontend waits for an answer to it.
        request_id: Option<String>,
    },
    /// The connection to an API server ended. ZeroMQ tries to connect again, but a new listener there does not know
    /// this engine.
    FrontendLost {
        /// Index of the API server.
        client: usize,
    },
}

/// A socket that is read only when a message may have arrived, because every read takes a system call.
pub(super) struct Inlet {
    pub(super) socket: Socket,
    /// Becomes readable at the first event after a read that found nothing.
    pub(super) fd: RawFd,
    /// Whether the last read found a message, or `fd` has become readable since.
    pub(super) may_have_message: bool,
}

impl Inlet {
    pub(super) fn new(socket: Socket) -> Result<Self, LinkError> {
        let fd = socket.get_fd().map_err(LinkError::socket("watch a socket"))?;
        Ok(Self { socket, fd, may_have_message: true })
    }

    pub(super) fn try_receive(&mut self) -> Result<Option<Vec<Vec<u8>>>, LinkError> {
        if !self.may_have_message {
            return Ok(None);
        }
        let frames = try_receive(&self.socket)?;
        self.may_have_message = frames.is_some();
        Ok(frames)
    }
}

/// The receiving half of an engine's link.
pub struct EngineInputs {
    /// The transport of the sockets; `None` for a frontend in this process.
    transport: Option<Transport>,
    local: Option<LocalLink>,
    clients: Vec<Client>,
    coordinator: Option<Inlet>,
    /// Index of the API server that is read first. It changes, so that no API server starves another.
    first: usize,
    evidence: Option<VersionEvidence>,
}

/// Watches whether a socket is connected.
pub(super) struct Watch {
    pub(super) monitor: Inlet,
    /// Whether the peer has answered. The launcher of several API servers listens at their addresses before they
    /// run. A connection without an answer ends after half a minute and is made again, without loss.
    is_connected: bool,
}

impl Watch {
    pub(super) fn new(monitor: Socket) -> Result<Self, LinkError> {
        Ok(Self { monitor: Inlet::new(monitor)?, is_connected: false })
    }

    /// Whether the socket is connected now.
    pub(super) fn is_connected(&mut self) -> Result<bool, LinkError> {
        self.monitor.may_have_message = true;
        while self.is_lost()? {}
        Ok(self.is_connected)
    }

    pub(super) fn is_lost(&mut self) -> Result<bool, LinkError> {
        while let Some(frames) = self.monitor.try_receive()? {
            let event =
                frames.first().and_then(|frame| frame.first_chunk()).map_or(0, |event| u16::from_le_bytes(*event));
            if event == zmq::SocketEvent::HANDSHAKE_SUCCEEDED as u16 {
                self.is_connected = true;
            } else if std::mem::take(&mut self.is_connected) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for EngineInputs {
    fn drop(&mut self) {
        if let Some(link) = &self.local {
            link.close();
        }
        for client in &self.clients {
            // A connection may still end while its last messages are delivered.
            if let Some(transport) = &self.transport {
                _ = transport.end_monitor(&client.socket.socket);
            }
        }
    }
}

struct Client {
    socket: Inlet,
    watch: Watch,
}

impl EngineInputs {
    /// Inputs from the API servers' sockets, each with its monitor, and from the coordinator's socket.
    pub(super) fn new(
        transport: Transport,
        sockets: Vec<(Socket, Socket)>,
        coordinator: Option<Socket>,
    ) -> Result<Self, LinkError> {
        let client = |(socket, monitor)| Ok(Client { socket: Inlet::new(socket)?, watch: Watch::new(monitor)? });
        let clients = sockets.into_iter().map(client).collect::<Result<_, _>>()?;
        let coordinator = coordinator.map(Inlet::new).transpose()?;
        Ok(Self { transport: Some(transport), local: None, clients, coordinator, first: 0, evidence: None })
    }

    pub(super) fn local(link: LocalLink) -> Self {
        Self { transport: None, local: Some(link), clients: Vec::new(), coordinator: None, first: 0, evidence: None }
    }

    /// Whether messages wait that no descriptor signals.
    pub(super) fn has_waiting(&self) -> bool {
        self.local.as_ref().is_some_and(LocalLink::has_requests)
    }

    /// Arranges that the waker is called for the next message, if no descriptor signals this message. Returns `false`
    /// if such a message waits already.
    pub(super) fn await_messages(&self) -> bool {
        self.local.as_ref().is_none_or(LocalLink::await_requests)
    }

    /// Reverses [`EngineInputs::await_messages`].
    pub(super) fn stop_waiting(&self) {
        if let Some(link) = &self.local {
            link.stop_waiting();
        }
    }

    /// The versions that the frontend may have, judged by its messages; `None` before its first ADD.
    #[must_use]
    pub fn line_evidence(&self) -> Option<VersionEvidence> {
        self.evidence
    }

    /// Waits for input. Returns `None` at the timeout or after a signal.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Received>, LinkError> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(received) = self.try_receive()? {
                return Ok(Some(received));
            }
            if !deadline.wait(self.sockets())? {
                return Ok(None);
            }
        }
    }

    /// Takes a message that has arrived already, if any.
    pub fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
        for inlet in self.inlets(true) {
            inlet.may_have_message = true;
        }
        if let Some(message) = self.try_receive_message()? {
            return Ok(Some(message));
        }
        self.try_receive_loss()
    }

    /// The number of API servers.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len() + usize::from(self.local.is_some())
    }

    /// Takes the end of a connection, if a [`Waiter`] noticed one at its last check.
    ///
    /// # Errors
    ///
    /// ZeroMQ fails.
    ///
    /// [`Waiter`]: super::Waiter
    pub fn try_receive_loss(&mut self) -> Result<Option<Received>, LinkError> {
        for (client, connection) in self.clients.iter_mut().enumerate() {
            if connection.watch.is_lost()? {
                return Ok(Some(Received::FrontendLost { client }));
            }
        }
        Ok(None)
    }

    /// Takes a message that had arrived when a [`Waiter`] last checked, if any. If there was none, the call takes
    /// no system call.
    ///
    /// # Errors
    ///
    /// ZeroMQ fails.
    ///
    /// [`Waiter`]: super::Waiter
    pub fn try_receive_message(&mut self) -> Result<Option<Received>, LinkError> {
        if let Some(link) = &self.local {
            let received = |request| Received::Request { source: Source::Client(0), request, aux: Vec::new() };
            return Ok(link.take().map(received));
        }
        if let Some(coordinator) = &mut self.coordinator {
            while let Some(frames) = coordinator.try_receive()? {
                // The coordinator repeats READY whenever an engine joins.
                if frames != [b"READY"] {
                    return Ok(Some(self.received(Source::Coordinator, frames)));
                }
            }
        }
        let clients = self.clients.len();
        for offset in 0..clients {
            let client = (self.first + offset) % clients;
            if let Some(frames) = self.clients[client].socket.try_receive()? {
                self.first = (client + 1) % clients;
                return Ok(Some(self.received(Source::Client(client), frames)));
            }
        }
        Ok(None)
    }

    /// The sockets to watch for ends of connections and, if `messages` is set, for messages.
    pub(super) fn inlets(&mut self, messages: bool) -> impl Iterator<Item = &mut Inlet> {
        let coordinator = self.coordinator.as_mut().filter(move |_| messages);
        let clients = self.clients.iter_mut();
        let of_clients = clients
            .flat_map(move |client| [Some(&mut client.watch.monitor), Some(&mut client.socket).filter(|_| messages)]);
        of_clients.flatten().chain(coordinator)
    }

    fn sockets(&self) -> impl Iterator<Item = &Socket> {
        let clients = self.clients.iter();
        clients
            .flat_map(|client| [&client.socket.socket, &client.watch.monitor.socket])
            .chain(self.coordinator.as_ref().map(|inlet| &inlet.socket))
    }

    fn received(&mut self, source: Source, mut frames: Vec<Vec<u8>>) -> Received {
        match Request::decode(&frames) {
            Ok(request) => {
                self.note(&request, &frames[1]);
                Received::Request { source, request, aux: frames.split_off(2) }
            }
            Err(error) => {
                let payload = frames.get(1).filter(|_| frames[0] == [0]);
                let request_id = payload.and_then(|payload| EngineCoreRequest::peek_id(payload)).map(str::to_owned);
                Received::Malformed { source, error, request_id }
            }
        }
    }

    /// Gathers evidence of the frontend's version. Only the first ADD is checked: a later one could add only the
    /// evidence of an adapter, which is not worth checking each request.
    fn note(&mut self, request: &Request, payload: &[u8]) {
        match request {
            Request::Add(_) if self.evidence.is_none() => self.evidence = VersionEvidence::from_add(payload).ok(),
            Request::Utility(call) => {
                self.evidence = self.evidence.map(|evidence| evidence.with_utility(&call.method));
            }
            _ => {}
        }
    }
}
