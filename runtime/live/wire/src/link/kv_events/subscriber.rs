//! A subscriber of KV events.

use std::time::Duration;

use zmq::Socket;

use super::publisher::END_OF_REPLAY;
use crate::codec::error::{DecodeError, Problem};
use crate::kv_events::KvEventMessage;
use crate::link::error::LinkError;
use crate::link::transport::{Deadline, Linger, Transport, connect, send, try_receive};

/// Receives the published events of an engine's cache, and can request missed batches.
pub struct KvEventSubscriber {
    events: Socket,
    replay: Option<Socket>,
}

impl KvEventSubscriber {
    /// Subscribes to topics that begin with `topic` at an engine's endpoint. The replay endpoint is for missed
    /// batches.
    pub fn connect(
        transport: &Transport,
        endpoint: &str,
        replay_endpoint: Option<&str>,
        topic: &str,
    ) -> Result<Self, LinkError> {
        let events = transport.socket(zmq::SUB, Linger::None)?;
        events.set_subscribe(topic.as_bytes()).map_err(LinkError::socket("subscribe"))?;
        connect(&events, endpoint)?;
        let replay = replay_endpoint.map(|endpoint| {
            let socket = transport.socket(zmq::DEALER, Linger::None)?;
            connect(&socket, endpoint)?;
            Ok(socket)
        });
        Ok(Self { events, replay: replay.transpose()? })
    }

    /// Waits for a batch. Returns `None` at the timeout or after a signal.
    pub fn receive(&self, timeout: Duration) -> Result<Option<KvEventMessage>, LinkError> {
        let Some(frames) = self.receive_frames(timeout)? else { return Ok(None) };
        KvEventMessage::decode(&frames).map(Some).map_err(malformed)
    }

    /// Waits for a batch like [`Self::receive`], but does not decode its frames.
    pub fn receive_frames(&self, timeout: Duration) -> Result<Option<Vec<Vec<u8>>>, LinkError> {
        receive(&self.events, timeout)
    }

    /// Requests the batches from `start` on that the engine still has. `timeout` is the time limit for each of them.
    ///
    /// # Errors
    ///
    /// There is no replay endpoint, no answer comes, or the answer is invalid.
    pub fn replay(&self, start: u64, timeout: Duration) -> Result<Vec<KvEventMessage>, LinkError> {
        let socket = self.replay.as_ref().ok_or(LinkError::NoReplay)?;
        send(socket, [&b""[..], &start.to_be_bytes()]).map_err(LinkError::socket("ask for events"))?;
        let mut messages = Vec::new();
        loop {
            let silent = || LinkError::Silent {
                address: "the replay endpoint".to_owned(),
                expected: "batches of KV events and a last word were expected".to_owned(),
                waited: timeout,
            };
            let frames = receive(socket, timeout)?.ok_or_else(silent)?;
            // The answer is an empty frame, as for a REQ socket, and the frames of a batch.
            let [_, batch @ ..] = frames.as_slice() else {
                let problem = Problem::Frames { expected: "an empty frame and a batch", found: frames.len() };
                return Err(malformed(DecodeError::new(problem, 0).of("replay")));
            };
            if batch.get(1).is_some_and(|sequence| *sequence == END_OF_REPLAY) {
                return Ok(messages);
            }
            messages.push(KvEventMessage::decode(batch).map_err(malformed)?);
        }
    }
}

fn malformed(source: DecodeError) -> LinkError {
    LinkError::Decode { from: "the publisher of KV events".to_owned(), source: Box::new(source) }
}

fn receive(socket: &Socket, timeout: Duration) -> Result<Option<Vec<Vec<u8>>>, LinkError> {
    let deadline = Deadline::after(timeout);
    loop {
        if let Some(frames) = try_receive(socket)? {
            return Ok(Some(frames));
        }
        if !deadline.wait(std::iter::once(socket))? {
            return Ok(None);
        }
    }
}
