//! Sockets with the settings that the protocol needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use zmq::{Context, Socket, SocketType};

use super::error::LinkError;

/// The common state of the sockets of a process: ZeroMQ's threads and limits.
#[derive(Clone)]
pub struct Transport {
    context: Context,
    /// Maximum size of a frame, in bytes. ZeroMQ closes the connection of a larger one.
    pub max_frame_bytes: u64,
    /// Maximum number of unreceived messages on each input; further ones wait at their sender. 0 means no limit, as
    /// in vLLM.
    pub max_waiting_requests: u32,
    /// Number of the next monitor, which is part of its name.
    monitors: Arc<AtomicU64>,
}

impl Default for Transport {
    fn default() -> Self {
        Self::new()
    }
}

/// Time for which a closed socket tries to deliver its queue, in milliseconds. The values are the real engine's.
#[derive(Clone, Copy)]
pub(super) enum Linger {
    Handshake = 5000,
    /// Long enough for ENGINE_CORE_DEAD.
    Output = 4000,
    None = 0,
}

impl Transport {
    /// Accepts frames of up to 1 GiB, and has no limit of waiting requests.
    #[must_use]
    pub fn new() -> Self {
        let (context, monitors) = (Context::new(), Arc::default());
        Self { context, max_frame_bytes: 1 << 30, max_waiting_requests: 0, monitors }
    }

    /// A socket without limits of waiting messages: a slow peer must neither block this end nor lose messages.
    pub(super) fn socket(&self, kind: SocketType, linger: Linger) -> Result<Socket, LinkError> {
        let make = || {
            let socket = self.context.socket(kind)?;
            socket.set_linger(linger as i32)?;
            socket.set_sndhwm(0)?;
            socket.set_rcvhwm(0)?;
            socket.set_maxmsgsize(i64::try_from(self.max_frame_bytes).unwrap_or(i64::MAX))?;
            Ok(socket)
        };
        make().map_err(LinkError::socket("make a socket"))
    }

    /// A socket that reports when connections of `socket` are made and when they end. Unless
    /// [`end_monitor`](Self::end_monitor) was called, it must not be closed before `socket`: ZeroMQ's own thread
    /// would wait forever for its events to be read.
    pub(super) fn monitor(&self, socket: &Socket) -> Result<Socket, LinkError> {
        let name = self.monitor_name();
        let make = || {
            let events = zmq::SocketEvent::HANDSHAKE_SUCCEEDED as i32 | zmq::SocketEvent::DISCONNECTED as i32;
            socket.monitor(&name, events)?;
            let monitor = self.context.socket(zmq::PAIR)?;
            monitor.set_linger(0)?;
            monitor.connect(&name)?;
            Ok(monitor)
        };
        make().map_err(LinkError::socket("watch a connection"))
    }

    pub(super) fn end_monitor(&self, socket: &Socket) -> Result<(), LinkError> {
        // A new monitor without events replaces the old one.
        socket.monitor(&self.monitor_name(), 0).map_err(LinkError::socket("watch a connection no more"))
    }

    fn monitor_name(&self) -> String {
        format!("inproc://vcr-monitor-{}", self.monitors.fetch_add(1, Ordering::Relaxed))
    }
}

/// Connects; the peer need not exist yet.
pub(super) fn connect(socket: &Socket, address: &str) -> Result<(), LinkError> {
    socket.connect(address).map_err(|reason| LinkError::BadAddress { address: address.to_owned(), reason })
}

/// Binds, and returns the address with the actual port.
pub(super) fn bind(socket: &Socket, address: &str) -> Result<String, LinkError> {
    socket.bind(address).map_err(|reason| match reason {
        zmq::Error::EADDRINUSE => LinkError::AddressInUse { address: address.to_owned() },
        reason => LinkError::BadAddress { address: address.to_owned(), reason },
    })?;
    let bound = socket.get_last_endpoint().map_err(LinkError::socket("ask for an address"))?;
    Ok(bound.unwrap_or_else(|_| address.to_owned()))
}

#[derive(Clone, Copy)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        // A time beyond the clock's range means no deadline.
        Self(Instant::now().checked_add(timeout))
    }

    /// Waits for a message on one of `sockets`. Returns `false` at the deadline, or after a signal, which the
    /// caller may want to handle.
    pub(super) fn wait<'a>(self, sockets: impl Iterator<Item = &'a Socket>) -> Result<bool, LinkError> {
        let mut items: Vec<_> = sockets.map(|socket| socket.as_poll_item(zmq::POLLIN)).collect();
        loop {
            let milliseconds = match self.0 {
                None => -1,
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    // Rounded up, because ZeroMQ waits whole milliseconds, and waits of zero would be a busy loop
                    // until the deadline.
                    i64::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i64::MAX)
                }
            };
            match zmq::poll(&mut items, milliseconds) {
                Ok(0) if milliseconds == 0 => return Ok(false),
                Ok(0) => {}
                Ok(_) => return Ok(true),
                Err(zmq::Error::EINTR) => return Ok(false),
                Err(source) => return Err(LinkError::Socket { doing: "wait for a message", source }),
            }
        }
    }

    /// The earlier of this deadline and the end of `timeout`.
    pub(super) fn at_most(self, timeout: Duration) -> Self {
        let other = Self::after(timeout);
        match (self.0, other.0) {
            (Some(own), Some(other)) => Self(Some(own.min(other))),
            (None, other) => Self(other),
            (own, None) => Self(own),
        }
    }

    pub(super) fn is_over(self) -> bool {
        self.0.is_some_and(|deadline| deadline <= Instant::now())
    }
}

/// Takes the frames of a message, if one waits.
pub(super) fn try_receive(socket: &Socket) -> Result<Option<Vec<Vec<u8>>>, LinkError> {
    loop {
        match socket.recv_multipart(zmq::DONTWAIT) {
            Ok(frames) => return Ok(Some(frames)),
            Err(zmq::Error::EAGAIN) => return Ok(None),
            Err(zmq::Error::EINTR) => {}
            Err(source) => return Err(LinkError::Socket { doing: "receive a message", source }),
        }
    }
}

/// Sends frames, without blocking: the queue has no limit.
pub(super) fn send<F: AsRef<[u8]>>(socket: &Socket, frames: impl IntoIterator<Item = F>) -> Result<(), zmq::Error> {
    let mut frames = frames.into_iter().peekable();
    while let Some(frame) = frames.next() {
        let more = if frames.peek().is_some() { zmq::SNDMORE } else { 0 };
        while let Err(error) = socket.send(frame.as_ref(), more | zmq::DONTWAIT) {
            if error != zmq::Error::EINTR {
                return Err(error);
            }
        }
    }
    Ok(())
}
