//! The client side of the engines in this process.

mod client;
mod collector;
mod connection;
mod observer;
mod rank;
mod stream;
mod utilities;
mod wake_ups;

pub use client::{Admission, EngineClient};
pub(crate) use connection::{current_connection, with_connection};
pub use observer::{EngineObserver, RequestObserver, RequestStart, ToolParsing};
pub use stream::RequestStream;

/// The reason why an engine did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("data_parallel_rank {rank} is out of range [0, {ranks})")]
    UnknownRank {
        /// The requested rank.
        rank: u32,
        /// The number of engines.
        ranks: u32,
    },
    #[error("the waiting queue is full: at most {limit} requests may be under way")]
    QueueFull {
        /// Limit of requests in progress.
        limit: usize,
    },
    /// A call has more requests than idle engines can take at once.
    #[error(
        "this call asks for {count} answers at once, and the engines take at most {most}: split it into several calls"
    )]
    TooMany {
        /// The number of requests in the call.
        count: usize,
        /// The limit for one call.
        most: usize,
    },
    /// The limit of requests in [`Admission`] is reached.
    #[error(
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
    )]
    Busy,
    /// The limit of prompt tokens in [`Admission`] is reached.
    #[error(
        "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."
    )]
    Backlog,
    #[error("EngineCore encountered an issue. See stack trace (above) for the root cause.")]
    Dead,
    #[error("a message of the engine cannot be read")]
    Unreadable,
    #[error("the engine's queue is full; please retry later")]
    Full,
    #[error("{0}")]
    Utility(String),
}
