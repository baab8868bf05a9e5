//! How prefill and decode engines find each other when their requests arrive in any order.
//!
//! Routers of NVIDIA Dynamo, SGLang and llm-d send a request to a prefill engine and a decode engine at the same
//! time, and name the same **room** in both. The decode engine looks up the prefill engine with one of three
//! protocols and waits in the room:
//!
//! * [`Protocol::Dynamo`]: the prefill engine's bootstrap port is also the port of its rooms;
//! * [`Protocol::Sglang`]: SGLang's bootstrap server knows, over HTTP, the ports of all ranks (`/route`) and the
//!   rank that has got a room's request (`/query_dp_ranks`);
//! * [`Protocol::Mooncake`]: the bootstrap server of vLLM's Mooncake connector knows all workers' ports (`/query`).
//!
//! At the port of rooms, all protocols use [`wire`]. There a decode engine gets a [`crate::Description`], and the
//! planes of `vcr-transfer` move the KV. The engines of a process share their rooms and one thread for all of this.
//!
//! # Guarantees
//!
//! * Input from peers is read within limits of bytes and time. Their claims about ranks and sizes are checked, and
//!   hosts that they name are contacted only if the engine allows them.
//! * A waiting decode engine gets its prompt, or at the latest at the timeout the reason and the peer's name. A
//!   prompt that is not fetched leaves its room after the same time.

mod engine;
mod http;
mod hub;
mod join;
mod listen;
mod mooncake;
mod peer;
pub mod ranks;
mod rooms;
mod sglang;
mod shared;
pub mod wire;
pub mod workers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{RendezvousFactory, TransferError};

use crate::bootstrap::engine::EngineRendezvous;
use crate::bootstrap::hub::Hub;
use crate::bootstrap::wire::RoomKind;

/// The protocol by which engines find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The TCP bootstrap of NVIDIA Dynamo's mocker.
    Dynamo,
    /// SGLang's bootstrap server.
    Sglang,
    /// The bootstrap server of vLLM's Mooncake connector.
    Mooncake,
}

impl Protocol {
    /// How requests name rooms.
    #[must_use]
    pub fn room_kind(self) -> RoomKind {
        match self {
            Self::Dynamo | Self::Sglang => RoomKind::Number,
            Self::Mooncake => RoomKind::Name,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Dynamo => "dynamo",
            Self::Sglang => "sglang",
            Self::Mooncake => "mooncake",
        })
    }
}

/// Settings of a rendezvous, for all engines of a process.
#[derive(Clone, Debug)]
pub struct RendezvousSettings {
    /// The protocol by which engines find each other.
    pub protocol: Protocol,
    /// The host to listen at, which is also sent to peers.
    pub host: String,
    /// The bootstrap port. With Dynamo's protocol, each engine adds its rank; otherwise all engines use the first
    /// engine's port. 0 means any free port.
    pub port: u16,
    /// Rank of the first engine of the process.
    pub first_rank: u16,
    pub num_ranks: u16,
    /// Number of tensor-parallel ranks of each engine.
    pub tensor_parallel_size: u32,
    /// Tokens per KV block.
    pub block_tokens: u32,
    /// Maximum time to wait for a peer.
    pub timeout: Duration,
    /// Whether decode engines may connect here.
    pub serves: bool,
}

/// Listens, if decode engines may connect, and returns a factory for each engine's rendezvous.
///
/// # Errors
/// A port is in use, or the system has no more threads.
pub fn start(settings: RendezvousSettings) -> Result<RendezvousFactory, TransferError> {
    let hub = Arc::new(Hub::start(settings)?);
    Ok(Arc::new(move |context| Ok(Box::new(EngineRendezvous::new(Arc::clone(&hub), context)))))
}
