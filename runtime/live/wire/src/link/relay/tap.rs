//! Reports of a relay: relayed messages, and events of connections.

/// Between which sockets a message passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayPath {
    /// From an API server to the engine.
    Request {
        /// The API server.
        client: usize,
    },
    /// From the engine to the input socket of an API server: its identity.
    Registration {
        /// The API server.
        client: usize,
    },
    /// From the engine to an API server.
    Outputs {
        /// The API server.
        client: usize,
    },
}

/// A message that was handed on.
#[derive(Clone, Copy, Debug)]
pub struct Passed<'a> {
    /// When, by [`crate::monotonic_ns`].
    pub at_ns: u64,
    /// The engine's number: its identity as a little-endian integer.
    pub rank: u32,
    /// Between which sockets.
    pub path: RelayPath,
    /// Its number of frames.
    pub frames: usize,
    /// Its first two frames; an absent one is empty.
    pub head: [&'a [u8]; 2],
}

/// A change of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayNotice {
    /// The engine sent HELLO.
    Hello {
        /// Whether one of its identity had been there before.
        again: bool,
    },
    /// The frontend answered it.
    Init {
        /// API servers of the frontend.
        clients: usize,
        /// Whether there is a coordinator.
        coordinator: bool,
    },
    /// The frontend answered it with something that the relay cannot readdress,
    /// so the engine got no answer.
    InitRefused {
        /// Cause of the refusal.
        reason: String,
    },
    /// The engine serves.
    Ready,
    /// The connection to an API server came to an end.
    FrontendLost {
        /// The API server.
        client: usize,
    },
    /// The connection of the engine came to an end.
    EngineLost,
    /// A handshake or a connection could not be served.
    Refused {
        /// Cause of the refusal.
        reason: String,
    },
}

/// Observes the messages of a [`crate::Relay`], on its thread: a slow observer makes the
/// relay slow.
pub trait RelayTap {
    /// A message was handed on.
    fn passed(&mut self, message: Passed<'_>);
    /// Something happened to the connections of an engine, at an instant of
    /// [`crate::monotonic_ns`].
    fn noticed(&mut self, rank: u32, at_ns: u64, notice: RelayNotice);
}
