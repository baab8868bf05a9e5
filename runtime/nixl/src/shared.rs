//! State shared by the engine's end of the plane and the agent's thread.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use vcr_transfer::{Expected, Peer, PlaneEvent, Statistics, Transfer};

/// Command for the thread.
pub(crate) enum Command {
    /// Start a transfer.
    Start(Transfer, Instant),
    /// Wait for a peer to write.
    Expect(Expected, Instant),
    /// Give a transfer up.
    Cancel(u64),
    /// Send a notice.
    Notify(Peer, Vec<u8>),
    /// End.
    Stop,
}

/// State of both threads.
pub(crate) struct Shared {
    pub(crate) events: Mutex<Vec<PlaneEvent>>,
    /// Transfers that are owed an event.
    pub(crate) open: Mutex<HashSet<u64>>,
    /// Blocks that NIXL may be writing to, and by how many transfers.
    busy: Mutex<HashMap<u32, u32>>,
    pub(crate) statistics: Mutex<Statistics>,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change of these is complete in itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self { events: Mutex::default(), open: Mutex::default(), busy: Mutex::default(), statistics: Mutex::default() }
    }

    /// Whether a transfer is still owed an event.
    pub(crate) fn is_open(&self, id: u64) -> bool {
        locked(&self.open).contains(&id)
    }

    /// Reports an event. That of a transfer that was given up, or has had one, is dropped.
    pub(crate) fn report(&self, event: PlaneEvent) -> bool {
        let mut open = locked(&self.open);
        if let PlaneEvent::Finished { id, .. } = &event
            && !open.remove(id)
        {
            return false;
        }
        locked(&self.events).push(event);
        true
    }

    /// Gives a transfer up: it has no event from now on.
    pub(crate) fn close(&self, id: u64) {
        let mut open = locked(&self.open);
        open.remove(&id);
        locked(&self.events).retain(|event| !matches!(event, PlaneEvent::Finished { id: other, .. } if *other == id));
    }

    /// NIXL may write to these blocks from now on.
    pub(crate) fn occupy(&self, blocks: impl Iterator<Item = u32>) {
        let mut busy = locked(&self.busy);
        blocks.for_each(|block| *busy.entry(block).or_default() += 1);
    }

    /// Nothing writes to these blocks for this transfer any more.
    pub(crate) fn vacate(&self, blocks: impl Iterator<Item = u32>) {
        let mut busy = locked(&self.busy);
        for block in blocks {
            if let Some(count) = busy.get_mut(&block) {
                *count -= 1;
                if *count == 0 {
                    busy.remove(&block);
                }
            }
        }
    }

    pub(crate) fn is_busy(&self, block: u32) -> bool {
        locked(&self.busy).contains_key(&block)
    }
}
