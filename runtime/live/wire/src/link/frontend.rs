//! The frontend's end of a link.

use std::time::Duration;

use zmq::Socket;

use super::error::LinkError;
use super::transport::{Deadline, send, try_receive};
use crate::codec::error::DecodeError;
use crate::handshake::ReadyResponse;
use crate::output::{EngineCoreOutputs, EngineMessage};
use crate::request::{Request, StartDpWave};
use crate::versions::ProtocolRules;

/// A frontend that is connected to its engines, made by [`crate::FrontendListener::accept`].
#[derive(Default)]
pub struct FrontendLink {
    pub(super) inputs: Vec<Socket>,
    pub(super) outputs: Vec<Socket>,
    /// The coordinator's sockets: one sends to the engines, the other receives from them.
    pub(super) coordinator: Option<(Socket, Socket)>,
    /// The engines' ready responses, by rank.
    pub engines: Vec<ReadyResponse>,
}

/// A message from an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendMessage {
    /// Index of the API server that the message is for.
    pub client: usize,
    /// The frames; those after the first are the bytes of large tensors.
    pub frames: Vec<Vec<u8>>,
}

impl FrontendMessage {
    /// Decodes the message.
    pub fn decode(&self) -> Result<EngineMessage, DecodeError> {
        EngineMessage::decode(&self.frames)
    }
}

impl FrontendLink {
    /// Sends a request to an engine in the encoding of `rules`, with the bytes of its large tensors.
    ///
    /// # Errors
    ///
    /// There is no such API server or engine, or ZeroMQ fails.
    pub fn send(
        &self,
        client: usize,
        rank: u16,
        request: &Request,
        aux: &[Vec<u8>],
        rules: &ProtocolRules,
    ) -> Result<(), LinkError> {
        let mut payload = Vec::new();
        request.encode(&mut payload, rules);
        let head = [vec![request.kind()], payload];
        self.send_frames(client, rank, head.iter().chain(aux))
    }

    /// Sends raw frames to an engine.
    ///
    /// # Errors
    ///
    /// There is no such API server or engine, or ZeroMQ fails.
    pub fn send_frames(
        &self,
        client: usize,
        rank: u16,
        frames: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<(), LinkError> {
        let clients = self.inputs.len();
        let socket = self.inputs.get(client).ok_or(LinkError::NoSuchClient { client, clients })?;
        let frames: Vec<_> = frames.into_iter().collect();
        let identity = rank.to_le_bytes();
        let message = std::iter::once(&identity[..]).chain(frames.iter().map(AsRef::as_ref));
        send(socket, message).map_err(|error| match error {
            zmq::Error::EHOSTUNREACH => LinkError::NoSuchEngine { rank },
            source => LinkError::Socket { doing: "send a request", source },
        })
    }

    /// Waits for a message of an engine. Returns `None` at the timeout or after a signal.
    pub fn receive(&self, timeout: Duration) -> Result<Option<FrontendMessage>, LinkError> {
        let deadline = Deadline::after(timeout);
        loop {
            for (client, socket) in self.outputs.iter().enumerate() {
                if let Some(frames) = try_receive(socket)? {
                    return Ok(Some(FrontendMessage { client, frames }));
                }
            }
            if !deadline.wait(self.outputs.iter())? {
                return Ok(None);
            }
        }
    }

    /// Tells all engines, as the coordinator, that a wave begins.
    pub fn start_wave(&self, wave: StartDpWave, rules: &ProtocolRules) -> Result<(), LinkError> {
        let (publisher, _) = self.coordinator.as_ref().ok_or(LinkError::NoCoordinator)?;
        let request = Request::StartDpWave(wave);
        let mut payload = Vec::new();
        request.encode(&mut payload, rules);
        send(publisher, [vec![request.kind()], payload]).map_err(LinkError::socket("start a wave"))
    }

    /// Waits, as the coordinator, for a message of an engine.
    ///
    /// # Errors
    ///
    /// There is no coordinator, ZeroMQ fails, or an engine sends an invalid message.
    pub fn receive_as_coordinator(&self, timeout: Duration) -> Result<Option<EngineCoreOutputs>, LinkError> {
        let (_, control) = self.coordinator.as_ref().ok_or(LinkError::NoCoordinator)?;
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(frames) = try_receive(control)? {
                let outputs = EngineCoreOutputs::decode(frames.first().map_or(&[], Vec::as_slice));
                let decode_error =
                    |source| LinkError::Decode { from: "an engine".to_owned(), source: Box::new(source) };
                return outputs.map(Some).map_err(decode_error);
            }
            if !deadline.wait(std::iter::once(control))? {
                return Ok(None);
            }
        }
    }
}
