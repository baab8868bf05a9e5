//! Moves real KV bytes between engines.
//!
//! Prefill and decode engines of vLLM move KV pages between their memories. This crate does the same with pages of
//! known content. So networks, routers and failures affect bytes of the right size in the right pattern, and the
//! receiver can verify them.
//!
//! # Parts
//!
//! * [`Geometry`]: the sizes. An engine with T tensor-parallel ranks has T memories. Each memory has a region for K
//!   and one for V of every layer, and a region has one **page** for each block. A page consists of the rank's KV
//!   heads in order (vLLM's `HND` layout); the bytes of one head are a **slice**. [`Geometry::pieces`] splits pages
//!   between engines with different T.
//! * [`Arena`]: one anonymous mapping with all regions, and the owner and content of each block. Every access to a
//!   page holds its block's lock during one copy or system call.
//! * [`pattern`]: the bytes of a slice, a function of the block's content, the region and the head. They do not
//!   depend on ranks or block numbers, so they can be verified after any split.
//! * [`Plane`]: the transport of pages. [`tcp`] is the one of this crate; the NIXL plane has a separate crate. A
//!   plane has its own threads, and its methods never block: outcomes arrive as [`PlaneEvent`]s, and a callback
//!   wakes the thread that polls. Each plane belongs to one engine.
//! * [`LeaseTable`]: finished prompts whose blocks wait for readers: notices, counts of readers, heartbeats, and
//!   ends of leases.
//! * [`Rendezvous`]: connects engines whose requests arrive in any order; [`bootstrap`] implements it.
//! * [`Statistics`]: bytes, pages and times by peer.
//! * [`mod@bench`]: a measurement of the TCP plane between two processes.
//!
//! # Life of a prompt
//!
//! The prefill engine computes a prompt, keeps its blocks, and calls [`Plane::write`] to have their pattern
//! written, which may continue in the background. Then it puts the blocks into its lease table and calls
//! [`Plane::hold`]. From now on peers may read exactly these blocks with the request's ID.
//!
//! The decode engine reserves blocks and calls [`Plane::start`] with the pairs that its own cache lacks. The plane
//! claims the local blocks, reads all their pages, compares them with the pattern, and sends the notice. The
//! prefill engine gets [`PlaneEvent::Notice`], and its lease table decides which blocks are free.
//!
//! Pushes go the other way: the decode engine calls [`Plane::expect`] and sends its blocks in a notice, and the
//! prefill engine starts a transfer of [`Direction::Write`].
//!
//! # Guarantees of a plane
//!
//! * Each started transfer ends with one [`PlaneEvent::Finished`], at its deadline at the latest, unless it is
//!   cancelled.
//! * A transfer that is cancelled, or whose blocks are claimed again, changes no page from then on. A plane that
//!   cannot stop a copy keeps the blocks' old owner until the copy has ended, and starts later transfers into these
//!   blocks afterwards.
//! * Data from peers is never trusted: block numbers, sizes and texts are compared with the agreed and held ones. A
//!   mismatch ends the transfer with a reason, but not the process.

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
