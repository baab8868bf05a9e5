//! Ids of requests.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use vcr_core::seed::mix;

/// An id of 32 hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongId(u64, u64);

impl fmt::Display for LongId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}{:016x}", self.0, self.1)
    }
}

/// An id of 8 hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortId(u32);

impl fmt::Display for ShortId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:08x}", self.0)
    }
}

/// Creates ids that are unique across processes.
#[derive(Debug)]
pub(crate) struct RequestIds {
    base: u64,
    next: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new() -> Self {
        let mut bytes = [0; 8];
        // If the system has no randomness, ids may repeat after a restart.
        _ = getrandom::fill(&mut bytes);
        Self { base: u64::from_le_bytes(bytes), next: AtomicU64::new(0) }
    }

    /// A seed that no other request has.
    pub(crate) fn seed(&self) -> u64 {
        mix(!self.base ^ self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// An id of 32 hexadecimal digits. It is formatted only if it is shown.
    pub(crate) fn long(&self) -> LongId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        LongId(mix(self.base ^ number), mix(!self.base ^ number))
    }

    /// An id of 8 hexadecimal digits.
    pub(crate) fn next(&self) -> String {
        self.short().to_string()
    }

    /// An id of 8 hexadecimal digits. It is formatted only if it is shown.
    pub(crate) fn short(&self) -> ShortId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        ShortId((mix(self.base ^ number) >> 32) as u32)
    }

    /// `start`, a dash and 8 hexadecimal digits.
    pub(crate) fn behind(&self, start: &str) -> String {
        let mut name = String::with_capacity(start.len() + 9);
        name.push_str(start);
        name.push('-');
        // Writing to a string cannot fail.
        _ = write!(name, "{}", self.short());
        name
    }
}
