//! KV transfers between prefill and decode engines.

pub(crate) mod content;
pub(crate) mod finished;
pub(crate) mod loads;
pub(crate) mod meetings;
pub(crate) mod mover;
pub(crate) mod pages;
pub(crate) mod params;
pub(crate) mod peers;
pub(crate) mod push;
pub(crate) mod settings;
pub(crate) mod transfers;
use std::fmt;

/// A link on which concurrent transfers slow each other down. All engines of the process use it, with times of the
/// system's monotonic clock.
pub trait SharedLink: fmt::Debug + Send + Sync {
    /// Starts to move the KV of this many tokens to an engine, for its request `tag`.
    fn start(&self, rank: u16, tag: u64, tokens: u32, now_ns: u64);
    /// Takes a request of the engine whose KV has arrived.
    fn next_arrived(&self, rank: u16, now_ns: u64) -> Option<u64>;
    /// The earliest time at which KV may arrive for the engine; it may arrive later.
    fn next_arrival_ns(&self, rank: u16) -> Option<u64>;
}
