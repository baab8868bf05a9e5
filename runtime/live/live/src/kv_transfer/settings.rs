//! Settings of transfers that move real bytes.

use std::fmt;
use std::sync::Arc;

use vcr_transfer::{Geometry, Moved, Peer, PlaneFactory, RendezvousFactory, TransferError};

/// A finished transfer to an engine.
#[derive(Clone, Copy, Debug)]
pub struct EndedTransfer<'a> {
    /// Rank of the engine that received the KV.
    pub rank: u16,
    /// The engine that computed the prompt.
    pub peer: &'a Peer,
    /// When the engine noticed the end, in nanoseconds on the system's monotonic clock.
    pub at_ns: u64,
    /// Size and times of the transfer, or why it failed.
    pub outcome: &'a Result<Moved, TransferError>,
}

/// Is called with each finished transfer. It must not block.
pub type TransferObserver = Arc<dyn Fn(&EndedTransfer<'_>) + Send + Sync>;

/// The data plane, and the memories between which it moves KV.
#[derive(Clone)]
pub struct PlaneSettings {
    /// Makes the plane of an engine.
    pub factory: PlaneFactory,
    /// Sizes of an engine's KV.
    pub geometry: Geometry,
    /// Maximum size of an engine's arena.
    pub memory_limit_bytes: Option<u64>,
    /// Whether an arena may be larger than the limit, because only blocks whose KV moves take memory. Must be
    /// `false` for libraries that register the whole arena.
    pub backs_as_used: bool,
    /// The rule for the time of a transfer.
    pub time: TransferTime,
    /// Whether the prefill engine writes the KV, instead of the decode engine reading it.
    pub is_pushed: bool,
    /// Is called with each transfer to an engine of this process.
    pub observer: Option<TransferObserver>,
}

impl fmt::Debug for PlaneSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { geometry, time, is_pushed, .. } = self;
        write!(out, "PlaneSettings {{ {geometry:?}, {time:?}, is_pushed: {is_pushed} }}")
    }
}

/// The rendezvous of prefill and decode engines whose requests come in any order.
#[derive(Clone)]
pub struct MeetingSettings {
    /// Makes the rendezvous of an engine.
    pub factory: RendezvousFactory,
    /// The keys by which requests name their rooms.
    pub room_keys: RoomKeys,
    /// Default role of this engine in requests; `None`: requests without a role have none.
    pub role: Option<PdRole>,
}

impl fmt::Debug for MeetingSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { room_keys, role, .. } = self;
        write!(out, "MeetingSettings {{ {room_keys:?}, {role:?} }}")
    }
}

/// The keys of `kv_transfer_params` that name a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomKeys {
    /// `bootstrap_room`, `bootstrap_host` and `bootstrap_port`.
    Bootstrap,
    /// `transfer_id`, `remote_bootstrap_addr` and `remote_engine_id`.
    TransferId,
}

/// An engine's part in requests that two engines share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PdRole {
    /// The engine computes prompts for other engines.
    Prefill,
    /// Other engines compute prompts for the engine.
    Decode,
}

/// The rule for the time of a transfer if bytes move and a time is modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferTime {
    /// The real time of the transfer.
    Real,
    /// The modelled time, although bytes move as well.
    Modelled,
    /// The longer of the two.
    #[default]
    SlowerOf,
}

/// Handling of a request whose KV does not arrive (vLLM's `kv_load_failure_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFailurePolicy {
    /// The request ends with an error.
    #[default]
    Fail,
    /// This engine computes the prompt.
    Recompute,
}

/// A fault of one KV transfer to this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferFault {
    /// Nothing arrives, and the transfer fails at its time limit.
    Drop,
    /// A byte is changed.
    Corrupt,
    /// The peer refuses.
    Refuse,
    /// The transfer takes longer.
    Slow {
        /// Minimum duration, in nanoseconds.
        by_ns: u64,
        /// Bandwidth, in bytes per second.
        bytes_per_s: Option<u64>,
    },
}
