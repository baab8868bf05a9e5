//! Names of requests.

use std::sync::atomic::{AtomicU64, Ordering};

use vcr_core::seed::mix;

/// Makes up names that no other process makes.
#[derive(Debug)]
pub(crate) struct RequestIds {
    base: u64,
    next: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new() -> Self {
        let mut bytes = [0; 8];
        // Without the system's randomness names repeat after a restart, no more.
        _ = getrandom::fill(&mut bytes);
        Self { base: u64::from_le_bytes(bytes), next: AtomicU64::new(0) }
    }

    /// A seed that no other request has.
    pub(crate) fn seed(&self) -> u64 {
        mix(!self.base ^ self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Thirty-two hexadecimal digits.
    pub(crate) fn long(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}{:016x}", mix(self.base ^ number), mix(!self.base ^ number))
    }

    /// Eight hexadecimal digits.
    pub(crate) fn next(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{:08x}", mix(self.base ^ number) >> 32)
    }
}
