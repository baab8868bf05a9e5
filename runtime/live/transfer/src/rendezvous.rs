//! The interface between engines and the rendezvous of prefill and decode engines.
//!
//! Without a rendezvous, a decode engine gets its request after the prefill engine's answer, which says where the
//! KV is. With a rendezvous, both get their requests in any order, and meet in a **room** of the prefill engine:
//! the decode engine waits there until the prompt is finished, and gets its **description**, which has the same
//! parameters as the answer.

use std::fmt;
use std::sync::Arc;

use crate::error::TransferError;
use crate::plane::{Peer, Wake};

/// Identifies a request at both the prefill engine and the decode engine.
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

/// The room in which a decode engine meets the prefill engine of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Host of the prefill worker's bootstrap address, which the caller must have allowed.
    pub host: String,
    pub port: u16,
    pub room: Room,
    /// ID of the worker's engine, if the request has it.
    pub engine_id: Option<String>,
}

impl fmt::Display for Meeting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "room {} at {}:{}", self.room, self.host, self.port)
    }
}

/// The place of a finished prompt's KV. Without a rendezvous, `kv_transfer_params` contain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The engine that holds the KV. The receiver of the description decides whether to connect to it.
    pub peer: Peer,
    /// That engine's ID of the request.
    pub request: String,
    /// That engine's blocks by KV-cache group, in the order of the prompt.
    pub blocks: Vec<Vec<u32>>,
    /// Whether that engine writes the blocks, instead of being read.
    pub is_pushed: bool,
}

/// An event of a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousEvent {
    /// The prefill engine has finished the prompt.
    Met {
        /// The caller's number of the wait.
        id: u64,
        /// The place of the KV; `None` if the prefill engine does not state it.
        description: Option<Description>,
    },
    /// The engines do not meet, or not in time.
    Missed {
        /// The caller's number of the wait.
        id: u64,
        /// The error, which names the peer and the cause.
        error: TransferError,
    },
    /// A decode engine has got this request's prompt and will send no notice: the KV is no longer needed.
    Taken {
        /// ID of the request.
        request: String,
    },
    /// No decode engine has fetched this request's prompt in time.
    Expired {
        /// ID of the request.
        request: String,
        /// A message with the room and the time.
        message: String,
    },
}

/// The rendezvous of one engine with its peers. No method waits for the network.
pub trait Rendezvous: Send {
    /// Opens a room, whose request has reached this engine, which will compute its prompt.
    fn open(&mut self, room: &Room);

    /// Completes a room, whose prompt is finished: its decode engine gets the description.
    fn complete(&mut self, room: Room, description: Description);

    /// Closes a room, whose request has ended without a finished prompt. Rooms that are not open are ignored.
    fn close(&mut self, room: &Room);

    /// Starts to wait in a room. The wait ends with [`RendezvousEvent::Met`] or, at the timeout at the latest, with
    /// [`RendezvousEvent::Missed`].
    fn join(&mut self, id: u64, meeting: Meeting);

    /// Ends a wait, without an event.
    fn leave(&mut self, id: u64);

    /// Takes the events since the last call.
    fn poll(&mut self, events: &mut Vec<RendezvousEvent>);
}

/// Whether an engine may connect to a host that a peer has named.
pub type HostFilter = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The engine that a rendezvous is made for.
#[derive(Clone)]
pub struct RendezvousContext {
    /// ID of the engine among its peers.
    pub engine_id: String,
    /// Rank of the engine.
    pub rank: u16,
    /// Decides which hosts the engine may connect to.
    pub allows: HostFilter,
    /// Called when there are events.
    pub wake: Wake,
}

/// Makes the rendezvous of an engine.
pub type RendezvousFactory = Arc<dyn Fn(RendezvousContext) -> Result<Box<dyn Rendezvous>, TransferError> + Send + Sync>;
