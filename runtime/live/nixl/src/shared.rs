//! State that the engine's end of the plane and the agent's thread share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use vcr_transfer::{Expected, Peer, PlaneEvent, Statistics, Transfer};

/// A command for the agent's thread.
pub(crate) enum Command {
    Start(Transfer, Instant),
    /// Wait until a peer has written.
    Expect(Expected, Instant),
    /// Cancel a transfer.
    Cancel(u64),
    Notify(Peer, Vec<u8>),
    Stop,
}

pub(crate) struct Shared {
    pub(crate) events: Mutex<Vec<PlaneEvent>>,
    /// Transfers, and writes of finished prompts, that are still to be reported by an event.
    pub(crate) open: Mutex<HashSet<u64>>,
    /// By block, the number of NIXL transfers that may write to it. Atomic instead of locked, because the engine's
    /// thread reads it for each block.
    busy: Vec<AtomicU32>,
    pub(crate) statistics: Mutex<Statistics>,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change of this state is complete in itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(blocks: u32) -> Self {
        let busy = (0..blocks).map(|_| AtomicU32::new(0)).collect();
        Self { events: Mutex::default(), open: Mutex::default(), busy, statistics: Mutex::default() }
    }

    /// Whether a transfer is still to be reported.
    pub(crate) fn is_open(&self, id: u64) -> bool {
        locked(&self.open).contains(&id)
    }

    /// Reports an event. Returns `false` and drops the event if the transfer was cancelled or reported already.
    pub(crate) fn report(&self, event: PlaneEvent) -> bool {
        let mut open = locked(&self.open);
        if let PlaneEvent::Finished { id, .. } | PlaneEvent::Written { id } = &event
            && !open.remove(id)
        {
            return false;
        }
        locked(&self.events).push(event);
        true
    }

    /// Calls `change` unless the transfer was cancelled. Cancelling waits until `change` returns. Returns whether
    /// `change` was called.
    pub(crate) fn while_open(&self, id: u64, change: impl FnOnce()) -> bool {
        let open = locked(&self.open);
        let is_open = open.contains(&id);
        if is_open {
            change();
        }
        is_open
    }

    /// Closes a transfer, which is not reported from now on.
    pub(crate) fn close(&self, id: u64) {
        let mut open = locked(&self.open);
        open.remove(&id);
        locked(&self.events).retain(|event| match event {
            PlaneEvent::Finished { id: other, .. } | PlaneEvent::Written { id: other } => *other != id,
            PlaneEvent::Notice(_) => true,
        });
    }

    /// Records that NIXL may write to these blocks.
    pub(crate) fn occupy(&self, blocks: impl Iterator<Item = u32>) {
        blocks.for_each(|block| _ = self.busy[block as usize].fetch_add(1, Ordering::AcqRel));
    }

    /// Records that a transfer no longer writes to these blocks.
    pub(crate) fn vacate(&self, blocks: impl Iterator<Item = u32>) {
        blocks.for_each(|block| _ = self.busy[block as usize].fetch_sub(1, Ordering::AcqRel));
    }

    pub(crate) fn is_busy(&self, block: u32) -> bool {
        self.busy[block as usize].load(Ordering::Acquire) > 0
    }
}
