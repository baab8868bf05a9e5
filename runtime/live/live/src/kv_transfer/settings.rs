//! Settings of transfers whose bytes really move.

use std::fmt;
use std::sync::Arc;

use vcr_transfer::{Geometry, Moved, Peer, PlaneFactory, RendezvousFactory, TransferError};

/// A transfer to an engine that has ended.
#[derive(Clone, Copy, Debug)]
pub struct EndedTransfer<'a> {
    /// The engine.
    pub rank: u16,
    /// The engine that computed the prompt.
    pub peer: &'a Peer,
    /// When it was known, in nanoseconds on the system's monotonic clock.
    pub at_ns: u64,
    /// Its size and times, or why it failed.
    pub outcome: &'a Result<Moved, TransferError>,
}

/// Hears of transfers. It must not wait.
pub type TransferObserver = Arc<dyn Fn(&EndedTransfer<'_>) + Send + Sync>;

/// The data plane, and the memories between which it moves KV.
#[derive(Clone)]
pub struct PlaneSettings {
    /// Makes the plane of an engine.
    pub factory: PlaneFactory,
    /// Sizes of an engine's KV.
    pub geometry: Geometry,
    /// The largest arena of an engine.
    pub memory_limit_bytes: Option<u64>,
    /// Whether an arena may be larger than that, since only blocks whose KV moves take memory. Libraries that register
    /// the whole of it cannot have that.
    pub backs_as_used: bool,
    /// Source of a transfer's time.
    pub time: TransferTime,
    /// Whether the prefill engine writes, instead of the decode engine reading.
    pub is_pushed: bool,
    /// Hears of each transfer to an engine of this process.
    pub observer: Option<TransferObserver>,
}

impl fmt::Debug for PlaneSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { geometry, time, is_pushed, .. } = self;
        write!(out, "PlaneSettings {{ {geometry:?}, {time:?}, is_pushed: {is_pushed} }}")
    }
}

/// How prefill and decode engines meet whose requests come in any order.
#[derive(Clone)]
pub struct MeetingSettings {
    /// Makes the rendezvous of an engine.
    pub factory: RendezvousFactory,
    /// How requests name their rooms.
    pub room_keys: RoomKeys,
    /// The default role of this engine in requests; `None`: they have none.
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
    /// `bootstrap_room`, with `bootstrap_host` and `bootstrap_port`.
    Bootstrap,
    /// `transfer_id`, with `remote_bootstrap_addr` and `remote_engine_id`.
    TransferId,
}

/// An engine's part in requests that two engines share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PdRole {
    /// It computes prompts for others.
    Prefill,
    /// Others compute prompts for it.
    Decode,
}

/// The time that a transfer takes, where bytes move and a time is modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferTime {
    /// The real time of the transfer.
    Real,
    /// The modelled time. The bytes move in addition.
    Modelled,
    /// The longer one of both.
    #[default]
    SlowerOf,
}

/// The fate of a request whose KV does not arrive (vLLM's `kv_load_failure_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFailurePolicy {
    /// It ends with an error.
    #[default]
    Fail,
    /// Its prompt is computed here.
    Recompute,
}

/// A fault of one KV transfer to this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferFault {
    /// Nothing arrives until the transfer's time has passed.
    Drop,
    /// A byte is changed.
    Corrupt,
    /// The peer refuses.
    Refuse,
    /// It takes longer.
    Slow {
        /// Nanoseconds that it takes at least.
        by_ns: u64,
        /// Its bandwidth, in bytes per second.
        bytes_per_s: Option<u64>,
    },
}
