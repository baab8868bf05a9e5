//! The frontend's end.

use std::time::Duration;

use zmq::Socket;

use super::error::LinkError;
use super::transport::{Deadline, send, try_receive};
use crate::codec::error::DecodeError;
use crate::handshake::ReadyResponse;
use crate::output::{EngineCoreOutputs, EngineMessage};
use crate::request::{Request, StartDpWave};
use crate::versions::ProtocolRules;

/// A frontend with its engines, made by [`crate::FrontendListener::accept`].
#[derive(Default)]
pub struct FrontendLink {
    pub(super) inputs: Vec<Socket>,
    pub(super) outputs: Vec<Socket>,
    /// The coordinator's socket to the engines, and the one from them.
    pub(super) coordinator: Option<(Socket, Socket)>,
    /// The ready response of each engine.
    pub engines: Vec<ReadyResponse>,
}

/// A message from an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendMessage {
    /// The API server it is for.
    pub client: usize,
    /// Its frames; those after the first are the bytes of large tensors.
    pub frames: Vec<Vec<u8>>,
}

impl FrontendMessage {
    /// The message.
    pub fn decode(&self) -> Result<EngineMessage, DecodeError> {
        EngineMessage::decode(&self.frames)
    }
}

impl FrontendLink {
    /// Sends a request to an engine, as `rules`' version writes it, with the
    /// bytes of its large tensors.
    ///
    /// # Errors
    ///
    /// When there is no such API server or engine, or the library fails.
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

    /// Sends frames as they are to an engine.
    ///
    /// # Errors
    ///
    /// When there is no such API server or engine, or the library fails.
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

    /// Waits for a message of an engine. `None`: none came in time, or a
    /// signal came first.
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

    /// As the coordinator, notifies all engines that a wave begins.
    pub fn start_wave(&self, wave: StartDpWave, rules: &ProtocolRules) -> Result<(), LinkError> {
        let (publisher, _) = self.coordinator.as_ref().ok_or(LinkError::NoCoordinator)?;
        let request = Request::StartDpWave(wave);
        let mut payload = Vec::new();
        request.encode(&mut payload, rules);
        send(publisher, [vec![request.kind()], payload]).map_err(LinkError::socket("start a wave"))
    }

    /// Waits, as the coordinator, for an engine's message to it.
    ///
    /// # Errors
    ///
    /// When there is no coordinator, the library fails, or an engine sends something else.
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
