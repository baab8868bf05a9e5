//! The age of the snapshot that other threads see.

/// Oldest that a snapshot may be, in nanoseconds.
const MAX_AGE_NS: u64 = 50_000_000;

/// When the next snapshot of an engine is published.
#[derive(Debug, Default)]
pub(crate) struct SnapshotTimer {
    due_ns: u64,
    is_current: bool,
}

impl SnapshotTimer {
    /// Something has changed; it may wait for the next regular snapshot.
    #[inline]
    pub(crate) fn mark_stale(&mut self) {
        self.is_current = false;
    }

    /// Something has changed that others must see with this turn of the loop.
    pub(crate) fn expire(&mut self) {
        self.due_ns = 0;
        self.is_current = false;
    }

    /// A snapshot was published.
    pub(crate) fn restart(&mut self, now_ns: u64) {
        self.due_ns = now_ns + MAX_AGE_NS;
        self.is_current = true;
    }

    /// When the next snapshot is due; `None` while the last one is current.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        (!self.is_current).then_some(self.due_ns)
    }
}
