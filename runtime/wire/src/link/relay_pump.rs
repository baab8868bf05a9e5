//! Moving one message from socket to socket, byte for byte.

use zmq::{Message, Socket};

use super::error::LinkError;
use super::inputs::Inlet;

/// Frames of a message that say what it is; what follows them are the bytes of
/// large tensors, which nobody keeps a copy of.
const HEAD_FRAMES: usize = 2;

/// A copy of the first frames of the message that passed last.
#[derive(Default)]
pub(super) struct Head {
    bytes: [Vec<u8>; HEAD_FRAMES],
    frames: usize,
}

impl Head {
    /// The first frames; empty where the message has fewer.
    pub(super) fn bytes(&self) -> [&[u8]; HEAD_FRAMES] {
        [&self.bytes[0], &self.bytes[1]]
    }

    /// How many frames the message has.
    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    fn clear(&mut self) {
        self.bytes.iter_mut().for_each(Vec::clear);
        self.frames = 0;
    }

    fn note(&mut self, frame: &Message) {
        if let Some(bytes) = self.bytes.get_mut(self.frames) {
            bytes.extend_from_slice(frame);
        }
        self.frames += 1;
    }
}

/// What stands before the frames of a message on one side of it only.
pub(super) enum Envelope<'a> {
    /// Nothing.
    None,
    /// The message goes to a ROUTER, which wants to know to whom.
    To(&'a [u8]),
    /// The message comes from a ROUTER, which says from whom.
    From(&'a [u8]),
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was handed on.
    Passed,
    /// Nobody of that name is connected.
    Undeliverable,
    /// It came from somebody else.
    Stray,
}

/// Moves one message that has come in on `from`, if any, and leaves a copy of
/// its first frames in `head`. Never blocks: nothing limits what may wait.
pub(super) fn pump(
    from: &mut Inlet,
    to: &Socket,
    envelope: &Envelope<'_>,
    head: &mut Head,
) -> Result<Option<Fate>, LinkError> {
    if !from.may_have_message {
        return Ok(None);
    }
    let Some(mut frame) = receive(&from.socket)? else {
        from.may_have_message = false;
        return Ok(None);
    };
    head.clear();
    let mut fate = Fate::Passed;
    match envelope {
        Envelope::None => {}
        Envelope::To(identity) => fate = send(to, Message::from(*identity), true)?,
        Envelope::From(identity) => {
            if frame[..] != **identity {
                fate = Fate::Stray;
            }
            if !frame.get_more() {
                return Ok(Some(Fate::Stray));
            }
            frame = receive(&from.socket)?.unwrap_or_else(Message::new);
        }
    }
    loop {
        let is_last = !frame.get_more();
        head.note(&frame);
        if fate == Fate::Passed {
            fate = send(to, frame, !is_last)?;
        }
        if is_last {
            return Ok(Some(fate));
        }
        // All frames of a message are there when the first one is.
        frame = receive(&from.socket)?.unwrap_or_else(Message::new);
    }
}

fn receive(socket: &Socket) -> Result<Option<Message>, LinkError> {
    loop {
        match socket.recv_msg(zmq::DONTWAIT) {
            Ok(frame) => return Ok(Some(frame)),
            Err(zmq::Error::EAGAIN) => return Ok(None),
            Err(zmq::Error::EINTR) => {}
            Err(source) => return Err(LinkError::Socket { doing: "receive a message", source }),
        }
    }
}

fn send(socket: &Socket, frame: Message, has_more: bool) -> Result<Fate, LinkError> {
    // Signals interrupt the main thread only, which relays nothing.
    let flags = zmq::DONTWAIT | if has_more { zmq::SNDMORE } else { 0 };
    match socket.send(frame, flags) {
        Ok(()) => Ok(Fate::Passed),
        Err(zmq::Error::EHOSTUNREACH | zmq::Error::EAGAIN) => Ok(Fate::Undeliverable),
        Err(source) => Err(LinkError::Socket { doing: "hand a message on", source }),
    }
}
