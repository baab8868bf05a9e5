//! KV that really moves between engines.
//!
//! Prefill and decode engines of vLLM move KV pages between their memories. This crate does the
//! same with pages of known content, so that networks, routers and failures handle bytes of the
//! right size in the right pattern, and the receiver can verify them.
//!
//! # Parts
//!
//! * [`Geometry`]: the sizes. An engine of T tensor-parallel ranks has T memories; each has a
//!   region for K and one for V of every layer, and a region has one **page** for each block. A
//!   page consists of the rank's KV heads in order (vLLM's `HND` layout), each of which is a
//!   **slice**. [`Geometry::pieces`] splits pages between engines of different T.
//! * [`Arena`]: one anonymous mapping with all regions, and the owner and content of each block.
//!   Every access to a page holds its block's lock for one copy or system call.
//! * [`pattern`]: the bytes of a slice, a function of the block's content, the region and the head.
//!   They do not depend on ranks or block numbers, so they can be checked after any split.
//! * [`Plane`]: the transport of pages. [`tcp`] is ours; the NIXL plane is a crate of its own. A
//!   plane has threads of its own, and its methods never wait: outcomes arrive as [`PlaneEvent`]s,
//!   and a callback wakes the thread that polls. One plane belongs to one engine.
//! * [`LeaseTable`]: finished prompts whose blocks wait for their readers: notices, counts of readers,
//!   heartbeats, ends of leases.
//! * [`Rendezvous`]: connects engines whose requests come in any order; a crate of its own.
//! * [`Statistics`]: bytes, pages and times by peer.
//! * [`mod@bench`]: a measurement of the TCP plane between two processes.
//!
//! # The way of a prompt
//!
//! The prefill engine computes a prompt, keeps its blocks, and asks by [`Plane::write`] whether
//! their pattern is written, which may take a while in the background. Then it puts them into its
//! lease table and calls [`Plane::hold`]: from now on peers may read exactly these blocks under the
//! request's name. The decode engine reserves blocks and calls [`Plane::start`] with the pairs that
//! its own cache lacks; that claims the local blocks, reads all their pages, compares them with the
//! pattern, and sends the notice. The prefill engine gets [`PlaneEvent::Notice`], and its lease
//! table decides which blocks are free. Pushed transfers go the other way: the decode engine calls
//! [`Plane::expect`] and sends its blocks in a notice, and the prefill engine starts a transfer of
//! [`Direction::Write`].
//!
//! # Guarantees of a plane
//!
//! * Each started transfer ends with one [`PlaneEvent::Finished`], unless it was cancelled: by its deadline at
//!   the latest.
//! * A transfer that was cancelled, or whose blocks were claimed again, changes no page from then on.
//!   A plane that cannot stop a copy keeps the blocks' old owner until it has ended, and starts later
//!   transfers into them afterwards.
//! * A peer's data is never trusted: block numbers, sizes and texts are checked against the agreed
//!   and held ones, and a mismatch ends the transfer with a reason, not the process.

mod arena;
pub mod bench;
pub mod bootstrap;
mod error;
mod geometry;
mod lease;
pub mod pattern;
mod plane;
mod priority;
mod rendezvous;
mod statistics;
pub mod tcp;

pub use arena::{Arena, ArenaError, Span};
pub use error::{ErrorKind, TransferError};
pub use geometry::{Geometry, GeometryError, GeometryInput, HeadOrder, Mismatch, Piece, Regions};
pub use lease::{LeaseTable, Notice, NoticeEffect};
pub use plane::{BlockPair, Expected, Held, Hold, Peer, Plane, PlaneContext, PlaneEvent, PlaneFactory, Transfer, Wake};
pub use priority::{MOVER_NICENESS, lower_priority};
pub use rendezvous::{
    Description, HostFilter, Meeting, Rendezvous, RendezvousContext, RendezvousEvent, RendezvousFactory, Room,
};
pub use statistics::{Direction, Moved, PeerStatistics, Statistics};
