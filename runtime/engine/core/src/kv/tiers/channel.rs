//! One transfer direction between two tiers: with one queue per engine, or one queue for all engines.

use super::blocks::Slot;
use super::shared_transfer_queue::{Arrived, SharedTransferQueue};
use super::transfer_queue::TransferQueue;

/// The transfers of one direction.
#[derive(Debug)]
pub(super) enum Channel {
    Own(Vec<TransferQueue>),
    /// One queue shared by all engines.
    Shared(SharedTransferQueue),
}

impl Channel {
    pub(super) fn add_client(&mut self) {
        match self {
            Self::Own(queues) => {
                let queue = queues[0].empty_like();
                queues.push(queue);
            }
            Self::Shared(queue) => queue.add_client(),
        }
    }

    /// The time of the next event, and its engine.
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

    /// The time of the next event that may concern a load of an engine.
    pub(super) fn next_of(&self, client: u32) -> Option<u64> {
        match self {
            Self::Own(queues) => queues[client as usize].next_ns(),
            Self::Shared(queue) => queue.next_ns(),
        }
    }

    /// The arrival time of an engine's load, or of another job with a number. None in a shared queue, where it is
    /// unknown.
    pub(super) fn arrival_ns(&self, client: u32, load: u32) -> Option<u64> {
        match self {
            Self::Own(queues) => queues[client as usize].arrival_ns(load),
            Self::Shared(_) => None,
        }
    }

    /// Total bytes of an engine's transfers so far.
    pub(super) fn bytes(&self, client: u32) -> u64 {
        match self {
            Self::Own(queues) => queues[client as usize].bytes(),
            Self::Shared(queue) => queue.bytes(client),
        }
    }

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

    /// Takes a transfer of an engine that arrives at `now_ns`, the time of [`Channel::next`], if there is one. Fills
    /// `slots` with its places.
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
