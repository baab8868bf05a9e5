//! One transfer direction between two tiers, in which transfers run one after another.

use std::collections::VecDeque;

use super::blocks::Slot;

#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// When the transfer's last byte arrives.
    pub(super) at_ns: u64,
    /// The load that the transfer belongs to, or the connector's job, if there is one.
    pub(super) load: Option<u32>,
    /// Number of blocks that the transfer moves.
    pub(super) num_blocks: u32,
    num_slots: u32,
}

/// Transfers in order. Each has the full bandwidth from the end of the previous one.
#[derive(Debug)]
pub(super) struct TransferQueue {
    bytes_per_s: Option<u64>,
    /// Minimum time between the submission of a transfer and its first byte.
    first_byte_ns: u64,
    /// Time between sending the last byte and its arrival.
    latency_ns: u64,
    /// When all transfers so far have been sent.
    free_at_ns: u64,
    transfers: VecDeque<Transfer>,
    /// The places that the transfers read or write, in order.
    slots: VecDeque<Slot>,
    bytes: u64,
}

impl TransferQueue {
    pub(super) fn new(bytes_per_s: Option<u64>, first_byte_ns: u64, latency_ns: u64) -> Self {
        let (transfers, slots) = (VecDeque::new(), VecDeque::new());
        Self { bytes_per_s, first_byte_ns, latency_ns, free_at_ns: 0, transfers, slots, bytes: 0 }
    }

    pub(super) fn empty_like(&self) -> Self {
        Self::new(self.bytes_per_s, self.first_byte_ns, self.latency_ns)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The arrival time of a load, or of another job with a number.
    pub(super) fn arrival_ns(&self, load: u32) -> Option<u64> {
        self.transfers.iter().find(|transfer| transfer.load == Some(load)).map(|transfer| transfer.at_ns)
    }

    /// When the next transfer arrives.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.transfers.front().map(|transfer| transfer.at_ns)
    }

    /// Sends `num_blocks` blocks of `block_bytes` bytes as one transfer.
    pub(super) fn send(
        &mut self,
        now_ns: u64,
        load: Option<u32>,
        num_blocks: u32,
        block_bytes: u64,
        slots: impl IntoIterator<Item = Slot>,
    ) {
        let bytes = block_bytes.saturating_mul(u64::from(num_blocks));
        self.bytes = self.bytes.saturating_add(bytes);
        let ready_ns = now_ns.saturating_add(self.first_byte_ns);
        self.free_at_ns = self.free_at_ns.max(ready_ns).saturating_add(self.alone_ns(bytes));
        let before = self.slots.len();
        self.slots.extend(slots);
        let num_slots = (self.slots.len() - before) as u32;
        let at_ns = self.free_at_ns.saturating_add(self.latency_ns);
        self.transfers.push_back(Transfer { at_ns, load, num_blocks, num_slots });
    }

    /// Removes the first transfer, and fills `slots` with its places.
    pub(super) fn pop(&mut self, slots: &mut Vec<Slot>) -> Transfer {
        let transfer = self.transfers.pop_front().expect("a transfer is under way");
        slots.clear();
        slots.extend(self.slots.drain(..transfer.num_slots as usize));
        transfer
    }

    /// Nanoseconds that `bytes` bytes take, rounded up.
    fn alone_ns(&self, bytes: u64) -> u64 {
        let Some(bytes_per_s) = self.bytes_per_s else { return 0 };
        let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s.max(1)));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}
