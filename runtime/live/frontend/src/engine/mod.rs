//! The engines of this process, as the server uses them.

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

/// Why an engine gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("data_parallel_rank {rank} is out of range [0, {ranks})")]
    UnknownRank {
        /// The requested one.
        rank: u32,
        /// Their number.
        ranks: u32,
    },
    #[error("the waiting queue is full: at most {limit} requests may be under way")]
    QueueFull {
        /// Requests that run and wait at most.
        limit: usize,
    },
    /// A call asks for more requests than engines take at once, however idle they are.
    #[error(
        "this call asks for {count} answers at once, and the engines take at most {most}: split it into several calls"
    )]
    TooMany {
        /// Requests of the call.
        count: usize,
        /// The limit of taken ones.
        most: usize,
    },
    /// As many requests are in progress as [`Admission`] allows.
    #[error(
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
    )]
    Busy,
    /// As many tokens of prompts are not computed yet as [`Admission`] allows.
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
