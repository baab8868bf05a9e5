//! The interface between engines and the rendezvous of prefill and decode engines.
//!
//! Without a rendezvous a decode engine gets its request after the prefill engine's answer, which
//! names the place of the KV. With one, both get their requests at once, in any order, and meet in
//! a **room** of the prefill engine: the decode engine waits there until the prompt is finished,
//! and gets its **description**, the same parameters as in the answer.

use std::fmt;
use std::sync::Arc;

use crate::error::TransferError;
use crate::plane::{Peer, Wake};

/// The name of one request among all that prefill and decode engines share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Room {
    /// Dynamo's and SGLang's `bootstrap_room`.
    Number(u64),
    /// The `transfer_id` of vLLM's Mooncake connector.
    Name(String),
}

impl fmt::Display for Room {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(out, "{number}"),
            Self::Name(name) => write!(out, "`{name}`"),
        }
    }
}

/// Where a decode engine meets the prefill engine of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Host of the prefill worker's bootstrap address, which the caller allows.
    pub host: String,
    pub port: u16,
    pub room: Room,
    /// The engine of the worker, if the request names it.
    pub engine_id: Option<String>,
}

impl fmt::Display for Meeting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "room {} at {}:{}", self.room, self.host, self.port)
    }
}

/// The place of a finished prompt's KV, otherwise given in `kv_transfer_params`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The engine that holds it. Whoever gets a description decides whether to connect to it.
    pub peer: Peer,
    /// That engine's name for the request.
    pub request: String,
    /// Its blocks by KV-cache group, in the order of the prompt.
    pub blocks: Vec<Vec<u32>>,
    /// Whether it writes them, instead of being read.
    pub is_pushed: bool,
}

/// News of a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousEvent {
    /// The prefill engine has finished the prompt.
    Met {
        /// The caller's number.
        id: u64,
        /// The place of the KV; none if the prefill engine does not name it.
        description: Option<Description>,
    },
    /// The engines do not meet.
    Missed {
        /// The caller's number.
        id: u64,
        /// Names the peer and the cause.
        error: TransferError,
    },
    /// A decode engine that sends no notice has arrived for this request: its KV is no longer
    /// needed.
    Taken {
        /// The name of the request.
        request: String,
    },
    /// No decode engine came for this request in time.
    Expired {
        /// The name of the request.
        request: String,
        /// Names the room and the time.
        message: String,
    },
}

/// Rendezvous of one engine with its peers. No method waits for the network.
pub trait Rendezvous: Send {
    /// A request for a room has reached this engine, which will compute its prompt.
    fn open(&mut self, room: &Room);

    /// The prompt is finished: a decode engine that comes to the room gets the description.
    fn complete(&mut self, room: Room, description: Description);

    /// The request of a room has ended without its prompt. Rooms that are not open are ignored.
    fn close(&mut self, room: &Room);

    /// Goes to a room; ends with [`RendezvousEvent::Met`] or [`RendezvousEvent::Missed`], the latter at the timeout at
    /// the latest.
    fn join(&mut self, id: u64, meeting: Meeting);

    /// Leaves a room: there is no event.
    fn leave(&mut self, id: u64);

    /// Takes the events since the last call.
    fn poll(&mut self, events: &mut Vec<RendezvousEvent>);
}

/// Whether an engine may connect to a host that a peer has named.
pub type HostFilter = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The engine of a rendezvous.
#[derive(Clone)]
pub struct RendezvousContext {
    /// Name of the engine among its peers.
    pub engine_id: String,
    /// Number of the engine within its process and frontend.
    pub rank: u16,
    /// Hosts that it may connect to.
    pub allows: HostFilter,
    /// Called when there are events.
    pub wake: Wake,
}

/// Makes the rendezvous of an engine.
pub type RendezvousFactory = Arc<dyn Fn(RendezvousContext) -> Result<Box<dyn Rendezvous>, TransferError> + Send + Sync>;
