//! One direction between two tiers: one per engine, or one shared by all.

use super::blocks::Slot;
use super::shared_transfer_queue::{Arrived, SharedTransferQueue};
use super::transfer_queue::TransferQueue;

/// A direction with its transfers.
#[derive(Debug)]
pub(super) enum Channel {
    /// One queue for each engine.
    Own(Vec<TransferQueue>),
    /// Shared by all engines.
    Shared(SharedTransferQueue),
}

impl Channel {
    /// Adds an engine.
    pub(super) fn add_client(&mut self) {
        match self {
            Self::Own(queues) => {
                let queue = queues[0].empty_like();
                queues.push(queue);
            }
            Self::Shared(queue) => queue.add_client(),
        }
    }

    /// The time of its next event, and the engine concerned.
    pub(super) fn next(&self) -> Option<(u64, u32)> {
        match self {
            Self::Own(queues) => {
                let next =
                    queues.iter().enumerate().filter_map(|(client, queue)| Some((queue.next_ns()?, client as u32)));
                next.min()
            }
            Self::Shared(queue) => Some((queue.next_ns()?, 0)),
        }
    }

    /// When something happens next that may concern a load of an engine.
    pub(super) fn next_of(&self, client: u32) -> Option<u64> {
        match self {
            Self::Own(queues) => queues[client as usize].next_ns(),
            Self::Shared(queue) => queue.next_ns(),
        }
    }

    /// The arrival of the transfer of an engine's load, or of another numbered job; unknown for a shared direction.
    pub(super) fn arrival_ns(&self, client: u32, load: u32) -> Option<u64> {
        match self {
            Self::Own(queues) => queues[client as usize].arrival_ns(load),
            Self::Shared(_) => None,
        }
    }

    /// Bytes of all transfers of an engine so far.
    pub(super) fn bytes(&self, client: u32) -> u64 {
        match self {
            Self::Own(queues) => queues[client as usize].bytes(),
            Self::Shared(queue) => queue.bytes(client),
        }
    }

    /// Sends blocks as one transfer of an engine.
    pub(super) fn send(
        &mut self,
        now_ns: u64,
        client: u32,
        load: Option<u32>,
        (num_blocks, block_bytes): (u32, u64),
        slots: &[Slot],
    ) {
        match self {
            Self::Own(queues) => {
                let queue = &mut queues[client as usize];
                queue.send(now_ns, load, num_blocks, block_bytes, slots.iter().copied());
            }
            Self::Shared(queue) => queue.send(now_ns, client, load, (num_blocks, block_bytes), slots.to_vec()),
        }
    }

    /// Takes a transfer that arrives at `now_ns`, which is [`Channel::next`], if one does; `slots`
    /// are its places.
    pub(super) fn pop(&mut self, now_ns: u64, client: u32, slots: &mut Vec<Slot>) -> Option<Arrived> {
        match self {
            Self::Own(queues) => {
                let transfer = queues[client as usize].pop(slots);
                Some(Arrived { client, load: transfer.load, num_blocks: transfer.num_blocks })
            }
            Self::Shared(queue) => queue.pop(now_ns, slots),
        }
    }
}
