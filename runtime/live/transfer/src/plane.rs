//! The interface between engines and the transport of their pages.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::arena::Arena;
use crate::error::TransferError;
use crate::statistics::{Direction, Moved, Statistics};

/// Wakes the thread that polls a plane. Called from threads of the plane; must not wait.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Makes the plane of an engine.
pub type PlaneFactory = Arc<dyn Fn(PlaneContext) -> Result<Box<dyn Plane>, TransferError> + Send + Sync>;

/// The engine of a plane.
#[derive(Clone)]
pub struct PlaneContext {
    /// Name of the engine among its peers.
    pub engine_id: String,
    /// Number of the engine within its process and frontend; it is added to ports.
    pub rank: u16,
    /// Tells this start of the engine from earlier ones.
    pub generation: u64,
    pub arena: Arc<Arena>,
    /// Called when there are events.
    pub wake: Wake,
}

/// An engine to read from or write to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its host: a name or address, that the caller allows.
    pub host: String,
    /// The port of its plane.
    pub port: u16,
    /// Its name, which it must confirm; empty if unknown.
    pub engine_id: String,
    /// Its start, which it must confirm; none if unknown.
    pub generation: Option<u64>,
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.host, self.port)
    }
}

/// A block here, its counterpart at the peer, and their common content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPair {
    /// Block of this engine.
    pub local: u32,
    /// Block of the peer.
    pub remote: u32,
    /// Content by [`crate::pattern::chain`].
    pub content: u64,
}

/// A transfer to start.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The caller's number for it, never 0, never used twice: also the owner of its blocks.
    pub id: u64,
    /// The direction of the bytes.
    pub direction: Direction,
    /// The other engine.
    pub peer: Peer,
    /// The peer's name for the blocks: the held prompt's, or the expected transfer's.
    pub request: String,
    /// The blocks; none only connects and notifies.
    pub blocks: Vec<BlockPair>,
    /// Sent to the peer once all bytes are here and right.
    pub notice: Option<Vec<u8>>,
    /// Time limit of the transfer from now on.
    pub timeout: Duration,
    /// A fault: a byte is changed before the comparison with the pattern.
    pub corrupts: bool,
}

/// Blocks of a finished prompt that peers may read.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The request's name.
    pub request: String,
    /// The blocks in the order of the prompt.
    pub blocks: Vec<Held>,
}

/// A held block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub block: u32,
    pub content: u64,
}

/// Blocks that a peer will write.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The caller's number for the transfer, as in [`Transfer::id`].
    pub id: u64,
    /// The engine that will write, as messages and totals name it.
    pub peer: Peer,
    /// The name under which the peer writes.
    pub request: String,
    /// The blocks and their contents, in the order of the prompt.
    pub blocks: Vec<Held>,
    /// Time limit of the transfer from now on.
    pub timeout: Duration,
    /// As [`Transfer::corrupts`].
    pub corrupts: bool,
}

/// News of a plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaneEvent {
    /// A transfer that was started or expected has ended.
    Finished {
        id: u64,
        /// Its size, or why it failed.
        outcome: Result<Moved, TransferError>,
    },
    /// A peer sent a notice.
    Notice(Vec<u8>),
    /// The pattern of a finished prompt's blocks is written, see [`Plane::write`].
    Written {
        /// The number that was given to [`Plane::write`].
        id: u64,
    },
}

/// Transport of one engine's pages. No method waits for the network.
pub trait Plane: Send {
    /// `tcp` or `nixl`, in messages and metrics.
    fn name(&self) -> &'static str;

    /// The port for peers.
    fn port(&self) -> u16;

    /// Whether [`Plane::prepare`] is of use.
    fn prepares(&self) -> bool {
        false
    }

    /// Announces blocks that are computed now and held afterwards, so that their pattern is written meanwhile.
    fn prepare(&mut self, _blocks: Vec<Held>) {}

    /// Whether the pattern of these blocks of a finished prompt is written, or will be before
    /// anyone can read it. If not, [`PlaneEvent::Written`] with `id` follows, and no peer may be
    /// notified before it.
    fn write(&mut self, _id: u64, _blocks: &[Held]) -> bool {
        true
    }

    /// Lets peers read these blocks, after [`Plane::write`].
    fn hold(&mut self, hold: Hold);

    /// Ends a hold: its blocks will be used otherwise. Unknown names are ignored.
    fn release(&mut self, request: &str);

    /// Starts a transfer; it ends with [`PlaneEvent::Finished`], also if it fails at once.
    fn start(&mut self, transfer: Transfer);

    /// Lets a peer write blocks; ends as [`Plane::start`] does.
    fn expect(&mut self, expected: Expected);

    /// Cancels a transfer, started or expected, or the rest of a [`Plane::write`]: from now on it
    /// changes no block of this engine, and has no event.
    fn cancel(&mut self, id: u64);

    /// Sends a notice, at most once. Failures are only counted and logged: the peer's lease ends in
    /// any case.
    fn notify(&mut self, peer: &Peer, notice: Vec<u8>);

    /// Takes the events since the last call.
    fn poll(&mut self, events: &mut Vec<PlaneEvent>);

    /// Totals since its start.
    fn statistics(&self) -> Statistics;
}
