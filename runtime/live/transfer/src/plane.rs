//! The interface between engines and the transport of their pages.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::arena::Arena;
use crate::error::TransferError;
use crate::statistics::{Direction, Moved, Statistics};

/// Wakes the thread that polls a plane. Called on threads of the plane; must not block.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Makes the plane of an engine.
pub type PlaneFactory = Arc<dyn Fn(PlaneContext) -> Result<Box<dyn Plane>, TransferError> + Send + Sync>;

/// The engine that a plane is made for.
#[derive(Clone)]
pub struct PlaneContext {
    /// ID of the engine among its peers.
    pub engine_id: String,
    /// Rank of the engine, which is added to ports.
    pub rank: u16,
    /// Distinguishes this start of the engine from earlier ones.
    pub generation: u64,
    pub arena: Arc<Arena>,
    /// Called when there are events.
    pub wake: Wake,
}

/// An engine to read from or write to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Host name or address, which the caller must have allowed.
    pub host: String,
    /// Port of the peer's plane.
    pub port: u16,
    /// ID of the peer, which it must confirm; empty if unknown.
    pub engine_id: String,
    /// Generation of the peer, which it must confirm; `None` if unknown.
    pub generation: Option<u64>,
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.host, self.port)
    }
}

/// A local block, the peer's corresponding block, and the content of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPair {
    /// Block number at this engine.
    pub local: u32,
    /// Block number at the peer.
    pub remote: u32,
    /// The content, computed by [`crate::pattern::chain`].
    pub content: u64,
}

/// A transfer to start.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The caller's number of the transfer, which also owns the local blocks. Not 0, and never used twice.
    pub id: u64,
    /// The direction of the bytes.
    pub direction: Direction,
    /// The other engine.
    pub peer: Peer,
    /// The peer's ID for the blocks: that of the held prompt, or of the expected transfer.
    pub request: String,
    /// The blocks; if empty, the transfer only connects and notifies.
    pub blocks: Vec<BlockPair>,
    /// Notice to the peer, sent once all bytes have arrived and are right.
    pub notice: Option<Vec<u8>>,
    /// Time limit of the transfer from now on.
    pub timeout: Duration,
    /// Whether to inject a fault: a byte is changed before the comparison with the pattern.
    pub corrupts: bool,
}

/// Blocks of a finished prompt that peers may read.
#[derive(Clone, Debug)]
pub struct Hold {
    /// ID of the request.
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
    /// The caller's number of the transfer, as in [`Transfer::id`].
    pub id: u64,
    /// The engine that will write, for messages and totals.
    pub peer: Peer,
    /// The ID that the peer uses when it writes.
    pub request: String,
    /// The blocks and their contents, in the order of the prompt.
    pub blocks: Vec<Held>,
    /// Time limit of the transfer from now on.
    pub timeout: Duration,
    /// Like [`Transfer::corrupts`].
    pub corrupts: bool,
}

/// An event of a plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaneEvent {
    /// A transfer that was started or expected has ended.
    Finished {
        id: u64,
        /// Size and times of the transfer, or why it failed.
        outcome: Result<Moved, TransferError>,
    },
    /// A peer sent a notice.
    Notice(Vec<u8>),
    /// The pattern of a finished prompt's blocks is written; see [`Plane::write`].
    Written {
        /// The number that was given to [`Plane::write`].
        id: u64,
    },
}

/// The transport of one engine's pages. No method waits for the network.
pub trait Plane: Send {
    /// The plane's name in messages and metrics: `tcp` or `nixl`.
    fn name(&self) -> &'static str;

    /// The port that peers connect to.
    fn port(&self) -> u16;

    /// Whether this plane uses [`Plane::prepare`].
    fn prepares(&self) -> bool {
        false
    }

    /// Announces blocks that are computed now and will be held, so that their pattern can be written in the meantime.
    fn prepare(&mut self, _blocks: Vec<Held>) {}

    /// Has the pattern of a finished prompt's blocks written. Returns `true` if it is written, or will be before
    /// anyone can read it. Otherwise [`PlaneEvent::Written`] with `id` follows, and peers must not be notified
    /// before that.
    fn write(&mut self, _id: u64, _blocks: &[Held]) -> bool {
        true
    }

    /// Lets peers read these blocks. Must follow [`Plane::write`].
    fn hold(&mut self, hold: Hold);

    /// Ends a hold, because the blocks will be reused. Unknown IDs are ignored.
    fn release(&mut self, request: &str);

    /// Starts a transfer. It ends with [`PlaneEvent::Finished`], even if it fails at once.
    fn start(&mut self, transfer: Transfer);

    /// Lets a peer write blocks. The transfer ends like one of [`Plane::start`].
    fn expect(&mut self, expected: Expected);

    /// Cancels a transfer that was started or expected, or the rest of a [`Plane::write`]. From now on it changes
    /// no block of this engine and causes no event.
    fn cancel(&mut self, id: u64);

    /// Sends a notice, at most once. Failures are only counted and logged, because the peer's lease ends anyway.
    fn notify(&mut self, peer: &Peer, notice: Vec<u8>);

    /// Takes the events since the last call.
    fn poll(&mut self, events: &mut Vec<PlaneEvent>);

    /// Totals since the start of the plane.
    fn statistics(&self) -> Statistics;
}
