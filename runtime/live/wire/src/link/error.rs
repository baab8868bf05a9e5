//! Errors of links.

use std::time::Duration;

use crate::codec::error::DecodeError;

/// An error of opening or using a link.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error texts describe them")]
pub enum LinkError {
    #[error("the address {address} is in use by another process")]
    AddressInUse { address: String },
    #[error("invalid address `{address}`: {problem}")]
    InvalidAddress { address: String, problem: String },
    #[error("{address} cannot be used: {reason}")]
    BadAddress { address: String, reason: zmq::Error },
    #[error("nothing came from {address} within {} s: {expected}", waited.as_secs_f64())]
    Silent {
        address: String,
        /// The expected message, and possible reasons why it did not come.
        expected: String,
        waited: Duration,
    },
    #[error("waiting was stopped")]
    Stopped,
    #[error("{from} does not speak this protocol")]
    Decode { from: String, source: Box<DecodeError> },
    #[error("invalid engine identity {identity}: expected 0 to {last}, as 2 bytes little-endian")]
    UnknownEngine {
        identity: String,
        /// The highest rank of an engine.
        last: u16,
    },
    #[error("engine {rank} said {said}, but had {already}")]
    OutOfOrder { rank: u16, said: &'static str, already: &'static str },
    #[error("INIT has {inputs} input addresses but {outputs} output addresses")]
    UnpairedAddresses { inputs: usize, outputs: usize },
    #[error("unknown API server {client}: the frontend has {clients}")]
    NoSuchClient {
        /// The given index.
        client: usize,
        clients: usize,
    },
    #[error("engine {rank} is not connected")]
    NoSuchEngine {
        /// The given rank.
        rank: u16,
    },
    #[error("past events need a replay endpoint")]
    NoReplay,
    #[error("the frontend has no coordinator")]
    NoCoordinator,
    #[error("cannot {doing}")]
    System { doing: &'static str, source: std::io::Error },
    #[error("cannot {doing}")]
    Socket { doing: &'static str, source: zmq::Error },
}

impl LinkError {
    /// Whether this process has reached its limit of open files and sockets.
    #[must_use]
    pub fn is_limit_of_files(&self) -> bool {
        match self {
            Self::System { source, .. } => source.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()),
            Self::Socket { source, .. } => *source == zmq::Error::EMFILE,
            _ => false,
        }
    }

    /// For `map_err`: ZeroMQ failed while `doing` something.
    pub(super) fn socket(doing: &'static str) -> impl Fn(zmq::Error) -> Self {
        move |source| Self::Socket { doing, source }
    }

    /// For `map_err`: the operating system failed while `doing` something.
    pub(super) fn system<E: Into<std::io::Error>>(doing: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::System { doing, source: source.into() }
    }
}
