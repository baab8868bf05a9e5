//! A link that concurrent KV transfers share.
//!
//! Processor sharing: each of `n` transfers in progress gets an `n`th of the bandwidth. A transfer's time therefore
//! depends on its bytes and on the other transfers. Arithmetic uses integers in units of 1e-9 bytes, so results do
//! not depend on the machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Units of 1e-9 bytes per byte: `bytes_per_s * ns` counts in this unit.
const UNITS_PER_BYTE: u128 = 1_000_000_000;

/// Identity of a transfer on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransferKey {
    /// The request, or any number that the caller chooses.
    pub tag: u64,
    /// Attempt of the request, from 0.
    pub attempt: u32,
}

/// A link whose bandwidth concurrent transfers share equally. Times are in nanoseconds and never decrease.
#[derive(Debug)]
pub struct Link {
    bytes_per_s: u64,
    /// Units that a transfer would have received if it had been in progress since the start.
    served_units: u128,
    updated_ns: u64,
    /// Transfers, by the value of `served_units` at which they complete.
    active: BinaryHeap<Reverse<(u128, TransferKey)>>,
    /// Cancelled transfers that are still in `active`. They get no bandwidth.
    cancelled: Vec<TransferKey>,
    /// Counter of changes that may move the next completion.
    version: u64,
    busy_ns: u64,
    bytes: u64,
}

impl Link {
    /// A link with this bandwidth, which must not be 0.
    #[must_use]
    pub fn new(bytes_per_s: u64) -> Self {
        Self {
            bytes_per_s,
            served_units: 0,
            updated_ns: 0,
            active: BinaryHeap::new(),
            cancelled: Vec::new(),
            version: 0,
            busy_ns: 0,
            bytes: 0,
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Total time with at least one transfer in progress.
    pub(crate) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Bytes of all transfers that have started.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Starts a transfer.
    pub fn start(&mut self, now_ns: u64, key: TransferKey, bytes: u64) {
        self.advance(now_ns);
        self.version += 1;
        self.bytes += bytes;
        self.active.push(Reverse((self.served_units + u128::from(bytes) * UNITS_PER_BYTE, key)));
    }

    pub(crate) fn cancel(&mut self, now_ns: u64, key: TransferKey) {
        self.advance(now_ns);
        if self.active.iter().any(|Reverse((_, other))| *other == key) {
            self.version += 1;
            self.cancelled.push(key);
            self.drop_cancelled_head();
        }
    }

    /// The time at which the next transfer completes if no transfer starts or is cancelled before.
    #[must_use]
    pub fn next_completion_ns(&self) -> Option<u64> {
        let Reverse((done_units, _)) = self.active.peek()?;
        let remaining = done_units.saturating_sub(self.served_units);
        let wait_ns = (remaining * self.sharers()).div_ceil(u128::from(self.bytes_per_s));
        Some(self.updated_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX)))
    }

    /// Takes one transfer that is complete at `now_ns`.
    pub fn pop_complete(&mut self, now_ns: u64) -> Option<TransferKey> {
        self.advance(now_ns);
        let Reverse((done_units, key)) = *self.active.peek()?;
        if done_units > self.served_units {
            return None;
        }
        self.active.pop();
        self.version += 1;
        self.drop_cancelled_head();
        Some(key)
    }

    fn sharers(&self) -> u128 {
        (self.active.len() - self.cancelled.len()) as u128
    }

    fn advance(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns - self.updated_ns;
        self.updated_ns = now_ns;
        if !self.active.is_empty() {
            self.busy_ns += elapsed_ns;
            self.served_units += u128::from(elapsed_ns) * u128::from(self.bytes_per_s) / self.sharers();
        }
    }

    fn drop_cancelled_head(&mut self) {
        while let Some(Reverse((_, key))) = self.active.peek() {
            let Some(at) = self.cancelled.iter().position(|other| other == key) else { return };
            self.cancelled.swap_remove(at);
            self.active.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn key(tag: u64) -> TransferKey {
        TransferKey { tag, attempt: 0 }
    }

    #[test]
    fn a_lone_transfer_takes_its_bytes_over_the_bandwidth() {
        // 1,000 tokens of 1e6 bytes take 15.625 ms at 64 GB/s.
        let mut link = Link::new(64_000_000_000);
        link.start(0, key(1), 1_000_000_000);
        assert_eq!(link.next_completion_ns(), Some(15_625_000));
    }

    #[test]
    fn two_transfers_halve_each_other() {
        let mut link = Link::new(1_000_000_000);
        link.start(0, key(1), 10_000_000);
        link.start(5 * MS, key(2), 10_000_000);
        // The first has 5 ms of service left, at half speed.
        assert_eq!(link.next_completion_ns(), Some(15 * MS));
        assert_eq!(link.pop_complete(15 * MS), Some(key(1)));
        assert_eq!(link.pop_complete(15 * MS), None);
        assert_eq!(link.next_completion_ns(), Some(20 * MS));
        assert_eq!(link.pop_complete(20 * MS), Some(key(2)));
        assert_eq!(link.next_completion_ns(), None);
        assert_eq!(link.busy_ns(), 20 * MS);
    }

    #[test]
    fn a_cancelled_transfer_gives_its_share_back() {
        let mut link = Link::new(1_000_000_000);
        link.start(0, key(1), 10_000_000);
        link.start(0, key(2), 20_000_000);
        link.cancel(10 * MS, key(2));
        assert_eq!(link.next_completion_ns(), Some(15 * MS));
        assert_eq!(link.pop_complete(15 * MS), Some(key(1)));
        assert_eq!(link.next_completion_ns(), None);
    }
}
