//! Errors of links.

use std::time::Duration;

use crate::codec::error::DecodeError;

/// An error of opening or using a link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Something else listens there.
    #[error("the address {address} is in use by another process")]
    AddressInUse {
        /// The address.
        address: String,
    },
    /// It is not written as an address, or leads to something else.
    #[error("invalid address `{address}`: {problem}")]
    InvalidAddress {
        /// The address.
        address: String,
        /// The problem.
        problem: String,
    },
    /// There is no such interface.
    #[error("{address} cannot be used: {reason}")]
    BadAddress {
        /// The address.
        address: String,
        /// The library's message.
        reason: zmq::Error,
    },
    /// The other end did not say what it had to.
    #[error("nothing came from {address} within {} s: {expected}", waited.as_secs_f64())]
    Silent {
        /// Its expected address.
        address: String,
        /// The expected message, and possible reasons why it did not come.
        expected: String,
        /// The time waited.
        waited: Duration,
    },
    /// Another thread ended the waiting.
    #[error("waiting was stopped")]
    Stopped,
    /// The other end said something else.
    #[error("{from} does not speak this protocol")]
    Decode {
        /// Name of the sender.
        from: String,
        /// The problem.
        source: Box<DecodeError>,
    },
    /// An engine has a number that no engine has here.
    #[error("invalid engine identity {identity}: expected 0 to {last}, as 2 bytes little-endian")]
    UnknownEngine {
        /// Its identity, in hex.
        identity: String,
        /// The highest number of an engine.
        last: u16,
    },
    /// An engine did something twice or too early.
    #[error("engine {rank} said {said}, but had {already}")]
    OutOfOrder {
        /// The engine.
        rank: u16,
        /// The message.
        said: &'static str,
        /// The state before it.
        already: &'static str,
    },
    /// The frontend has fewer inputs than outputs, or the reverse.
    #[error("INIT has {inputs} input addresses but {outputs} output addresses")]
    UnpairedAddresses {
        /// Inputs.
        inputs: usize,
        /// Outputs.
        outputs: usize,
    },
    /// There is no such API server.
    #[error("unknown API server {client}: the frontend has {clients}")]
    NoSuchClient {
        /// The one that was meant.
        client: usize,
        /// Their number.
        clients: usize,
    },
    /// There is no such engine, or it is gone.
    #[error("engine {rank} is not connected")]
    NoSuchEngine {
        /// The one that was meant.
        rank: u16,
    },
    /// The publisher's replay endpoint is not known.
    #[error("past events need a replay endpoint")]
    NoReplay,
    /// There is no coordinator.
    #[error("the frontend has no coordinator")]
    NoCoordinator,
    /// The operating system failed.
    #[error("cannot {doing}")]
    System {
        /// The operation.
        doing: &'static str,
        /// The system's message.
        source: std::io::Error,
    },
    /// The library failed.
    #[error("cannot {doing}")]
    Socket {
        /// The operation.
        doing: &'static str,
        /// The library's message.
        source: zmq::Error,
    },
}

impl LinkError {
    /// Whether this process may not open more files and sockets.
    #[must_use]
    pub fn is_limit_of_files(&self) -> bool {
        match self {
            Self::System { source, .. } => source.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()),
            Self::Socket { source, .. } => *source == zmq::Error::EMFILE,
            _ => false,
        }
    }

    /// For `map_err`: the library failed while `doing` something.
    pub(super) fn socket(doing: &'static str) -> impl Fn(zmq::Error) -> Self {
        move |source| Self::Socket { doing, source }
    }

    /// For `map_err`: the operating system failed while `doing` something.
    pub(super) fn system<E: Into<std::io::Error>>(doing: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::System { doing, source: source.into() }
    }
}
