//! Errors of live engines.

use vcr_core::fault::FaultError;
use vcr_core::latency::LatencyError;
use vcr_core::policy::PolicyError;
use vcr_core::route::RouteError;
use vcr_core::tokens::TokenError;
use vcr_wire::LinkError;

/// The reason why an engine cannot start, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The engine's link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The frontend has too few engines for the ranks of this process.
    #[error(
        "the frontend at {address} has --data-parallel-size {frontend}, but the engines here are {first} to {last}: its own \
         are 0 to {}",
        frontend.saturating_sub(1)
    )]
    DataParallelSize {
        address: String,
        frontend: u64,
        /// The rank of this process's first engine.
        first: u16,
        last: u16,
    },
    /// The engine's latency model failed.
    #[error(transparent)]
    Latency(#[from] LatencyError),
    /// The engine's scheduling policy failed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The router failed.
    #[error(transparent)]
    Router(#[from] RouteError),
    /// The engine's token source failed.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// The engine's failure injector failed.
    #[error(transparent)]
    Injector(#[from] FaultError),
    /// A record of the played-back capture cannot be read.
    #[error(transparent)]
    Playback(#[from] vcr_record::playback::PlaybackError),
    /// There is no memory for the KV to move.
    #[error(transparent)]
    Arena(#[from] vcr_transfer::ArenaError),
    /// KV cannot be moved.
    #[error(transparent)]
    Transfer(#[from] vcr_transfer::TransferError),
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    #[error("engine {rank} panicked; this is a bug of vcr")]
    Panicked { rank: u16 },
}
