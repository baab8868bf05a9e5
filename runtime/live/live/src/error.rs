//! Why an engine has failed.

use vcr_core::fault::FaultError;
use vcr_core::latency::LatencyError;
use vcr_core::policy::PolicyError;
use vcr_core::route::RouteError;
use vcr_core::tokens::TokenError;
use vcr_wire::LinkError;

/// Why an engine cannot start, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// Its link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Its frontend has fewer engines.
    #[error(
        "the frontend at {address} has --data-parallel-size {frontend}, but the engines here are {first} to {last}: its own \
         are 0 to {}",
        frontend.saturating_sub(1)
    )]
    DataParallelSize {
        address: String,
        frontend: u64,
        /// The first engine of this process.
        first: u16,
        last: u16,
    },
    /// Its latency model failed.
    #[error(transparent)]
    Latency(#[from] LatencyError),
    /// Its scheduling policy failed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The router failed.
    #[error(transparent)]
    Router(#[from] RouteError),
    /// Its token source failed.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// Its failure injector failed.
    #[error(transparent)]
    Injector(#[from] FaultError),
    /// A record of the capture that it plays back cannot be read.
    #[error(transparent)]
    Playback(#[from] vcr_record::playback::PlaybackError),
    /// It has no memory for KV that moves.
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
