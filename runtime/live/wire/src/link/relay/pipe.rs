//! One connection of an engine, and the connection to the frontend that belongs to it.
//!
//! Bytes are forwarded as they arrive. So identities, subscriptions and frames of any size arrive as without a
//! relay, and a slow peer slows down the other one as without a relay.

use std::io::{self, ErrorKind};

use super::stream::Stream;
use super::tap::{Passed, RelayPath, RelayTap};
use super::zmtp::Zmtp;
use crate::link::monotonic_ns;
use crate::link::system::{Interest, Poller};

/// Maximum number of bytes that are read at once, and that wait for a slow peer.
pub(in crate::link) const BUFFER_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) enum End {
    Engine = 0,
    Frontend = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) enum Purpose {
    /// Requests of an API server.
    Input { client: usize },
    /// Outputs for an API server.
    Output { client: usize },
    /// Messages to and from the coordinator.
    Coordinator,
}

impl Purpose {
    /// The path of the messages from one end; `None` if the tap does not get them.
    fn path(self, from: End) -> Option<RelayPath> {
        match (self, from) {
            (Self::Input { client }, End::Engine) => Some(RelayPath::Registration { client }),
            (Self::Input { client }, End::Frontend) => Some(RelayPath::Request { client }),
            (Self::Output { client }, End::Engine) => Some(RelayPath::Outputs { client }),
            (Self::Output { .. }, End::Frontend) | (Self::Coordinator, _) => None,
        }
    }
}

/// Two connections, each of which receives the other's bytes.
pub(in crate::link) struct Pipe {
    pub(in crate::link) connection: u64,
    pub(in crate::link) rank: u32,
    pub(in crate::link) purpose: Purpose,
    /// Both connections, indexed by [`End`].
    sides: [Side; 2],
    /// The end that has closed its connection, if one has.
    closed: Option<End>,
}

struct Side {
    stream: Stream,
    /// Bytes from the other side that are not written yet.
    pending: Vec<u8>,
    /// The events that are watched.
    interest: Interest,
    /// Decodes the bytes that come from this end, if the tap gets its messages.
    messages: Option<(RelayPath, Zmtp)>,
}

impl Pipe {
    pub(in crate::link) fn new(connection: u64, rank: u32, purpose: Purpose, engine: Stream, frontend: Stream) -> Self {
        let side = |stream, end| {
            let messages = purpose.path(end).map(|path| (path, Zmtp::new()));
            Side { stream, pending: Vec::new(), interest: Interest::READ, messages }
        };
        let sides = [side(engine, End::Engine), side(frontend, End::Frontend)];
        Self { connection, rank, purpose, sides, closed: None }
    }

    /// Watches both ends, with the poller's keys `key` and `key + 1`.
    pub(in crate::link) fn watch(&self, poller: &mut Poller, key: u64) -> io::Result<()> {
        for (side, key) in self.sides.iter().zip(key..) {
            poller.add(&side.stream, key, side.interest)?;
        }
        Ok(())
    }

    /// Forwards all available bytes in both directions. Returns the end that has closed its connection, once all
    /// its bytes are forwarded.
    pub(in crate::link) fn pump(
        &mut self,
        poller: &mut Poller,
        key: u64,
        buffer: &mut [u8],
        tap: &mut impl RelayTap,
    ) -> io::Result<Option<End>> {
        let rank = self.rank;
        for (end, other) in [(End::Engine, End::Frontend), (End::Frontend, End::Engine)] {
            let [engine, frontend] = &mut self.sides;
            let (from, to) = if end == End::Engine { (engine, frontend) } else { (frontend, engine) };
            if !to.flush() {
                // Nobody reads the bytes any more.
                to.pending.clear();
                self.closed = Some(other);
            } else if self.closed.is_none() && to.pending.is_empty() && !from.carry(to, rank, buffer, tap) {
                self.closed = Some(end);
            }
        }
        let [engine, frontend] = &mut self.sides;
        if self.closed.is_some() && engine.pending.is_empty() && frontend.pending.is_empty() {
            return Ok(self.closed);
        }
        let is_open = self.closed.is_none();
        let wanted = |own: &Side, other: &Side| Interest {
            read: is_open && other.pending.is_empty(),
            write: !own.pending.is_empty(),
        };
        let interests = [wanted(engine, frontend), wanted(frontend, engine)];
        for ((side, interest), key) in [engine, frontend].into_iter().zip(interests).zip(key..) {
            side.listen_for(interest, poller, key)?;
        }
        Ok(None)
    }

    pub(in crate::link) fn is_foreign(&self) -> bool {
        self.sides.iter().filter_map(|side| side.messages.as_ref()).any(|(_, messages)| messages.is_foreign())
    }
}

impl Side {
    fn listen_for(&mut self, interest: Interest, poller: &mut Poller, key: u64) -> io::Result<()> {
        let before = std::mem::replace(&mut self.interest, interest);
        match (before.is_empty(), interest.is_empty()) {
            _ if before == interest => {}
            (true, _) => poller.add(&self.stream, key, interest)?,
            // The end of a connection is reported repeatedly, even without any registered interest.
            (false, true) => poller.remove(&self.stream, key)?,
            (false, false) => poller.change(&self.stream, key, interest)?,
        }
        Ok(())
    }

    /// Writes pending bytes. Returns `false` if the peer has disconnected.
    fn flush(&mut self) -> bool {
        let Self { stream, pending, .. } = self;
        match write(stream, pending) {
            Some(written) => {
                pending.drain(..written);
                true
            }
            None => false,
        }
    }

    /// Forwards the bytes that come from this end, then reports them. Returns `false` at the end of the stream.
    fn carry(&mut self, to: &mut Self, rank: u32, buffer: &mut [u8], tap: &mut impl RelayTap) -> bool {
        let count = loop {
            match self.stream.read(buffer) {
                Ok(0) => return false,
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        };
        let at_ns = monotonic_ns();
        let bytes = &buffer[..count];
        // An error of this write shows at the next write.
        let written = write(&mut to.stream, bytes).unwrap_or(0);
        to.pending.extend_from_slice(&bytes[written..]);
        if let Some((path, messages)) = &mut self.messages {
            let path = *path;
            messages.feed(bytes, |message| {
                tap.passed(Passed { at_ns, rank, path, frames: message.frames, head: message.head });
            });
        }
        true
    }
}

/// Writes as much as the other end accepts now. Returns `None` if it will accept nothing more.
fn write(stream: &mut Stream, bytes: &[u8]) -> Option<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(0) => return None,
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => return None,
        }
    }
    Some(written)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::link::relay::tap::RelayNotice;

    struct Deaf;

    impl RelayTap for Deaf {
        fn passed(&mut self, _: Passed<'_>) {}
        fn noticed(&mut self, _: u32, _: u64, _: RelayNotice) {}
    }

    fn end() -> (UnixStream, Stream) {
        let (theirs, ours) = UnixStream::pair().expect("the system has sockets");
        ours.set_nonblocking(true).expect("it can");
        (theirs, Stream::Unix(ours))
    }

    /// A slow reader gets all messages, even those sent just before the other end closed, and few bytes wait in the
    /// relay.
    #[test]
    fn a_slow_reader_gets_all() {
        let ((mut engine, ours), (mut frontend, theirs)) = (end(), end());
        let mut pipe = Pipe::new(0, 0, Purpose::Output { client: 0 }, ours, theirs);
        let mut poller = Poller::new().expect("the system has one");
        pipe.watch(&mut poller, 0).expect("both can be watched");
        let bytes: Vec<u8> = (0..8_u32 << 20).map(|index| (index % 251) as u8).collect();
        let sent = bytes.clone();
        let sending = thread::spawn(move || engine.write_all(&sent).expect("there is a reader"));
        let reading = thread::spawn(move || {
            let (mut all, mut part) = (Vec::new(), [0; 10_000]);
            loop {
                match frontend.read(&mut part).expect("it can be read") {
                    0 => return all,
                    count => all.extend_from_slice(&part[..count]),
                }
                thread::yield_now();
            }
        });
        let mut buffer = vec![0; BUFFER_BYTES];
        let closed = loop {
            zmq::poll(&mut poller.items(), -1).expect("it waits");
            if let Some(closed) = pipe.pump(&mut poller, 0, &mut buffer, &mut Deaf).expect("it works") {
                break closed;
            }
            assert!(
                pipe.sides.iter().all(|side| side.pending.len() <= BUFFER_BYTES),
                "more waits than is read at once"
            );
        };
        assert_eq!(closed, End::Engine);
        drop(pipe);
        sending.join().expect("no panic");
        assert!(reading.join().expect("no panic") == bytes, "every byte arrived, in order");
    }
}
