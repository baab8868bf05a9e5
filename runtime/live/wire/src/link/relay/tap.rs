//! Reports of a relay: relayed messages, and events of connections.

/// The sockets between which a message was relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayPath {
    /// From an API server to the engine.
    Request {
        /// Index of the API server.
        client: usize,
    },
    /// From the engine to the input socket of an API server: the engine's ready response.
    Registration {
        /// Index of the API server.
        client: usize,
    },
    /// From the engine to an API server.
    Outputs {
        /// Index of the API server.
        client: usize,
    },
}

/// A message that was relayed.
#[derive(Clone, Copy, Debug)]
pub struct Passed<'a> {
    /// Arrival time of the last byte, by [`crate::monotonic_ns`].
    pub at_ns: u64,
    /// The engine's rank: its identity as a little-endian integer.
    pub rank: u32,
    /// The sockets between which the message was relayed.
    pub path: RelayPath,
    /// The number of frames.
    pub frames: usize,
    /// The first two frames; a missing frame is empty.
    pub head: [&'a [u8]; 2],
}

/// A change of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayNotice {
    /// The engine sent HELLO.
    Hello {
        /// Whether an engine with this identity was connected before.
        again: bool,
    },
    /// The frontend answered HELLO.
    Init {
        /// Number of the frontend's API servers.
        clients: usize,
        /// Whether there is a coordinator.
        coordinator: bool,
    },
    /// The frontend's answer to HELLO cannot be readdressed, so the engine got no answer.
    InitRefused {
        /// The reason why the relay refused the answer.
        reason: String,
    },
    /// The engine serves.
    Ready,
    /// The connection to an API server ended.
    FrontendLost {
        /// Index of the API server.
        client: usize,
    },
    /// The connection of the engine ended.
    EngineLost,
    /// A handshake or a connection was refused.
    Refused {
        /// The reason why the relay refused the handshake or the connection.
        reason: String,
    },
}

/// Observes the messages of a [`crate::Relay`], on the relay's thread: a slow observer slows down the relay.
pub trait RelayTap {
    /// A message was relayed.
    fn passed(&mut self, message: Passed<'_>);
    /// The connections of an engine changed, at a time of [`crate::monotonic_ns`].
    fn noticed(&mut self, rank: u32, at_ns: u64, notice: RelayNotice);
}
